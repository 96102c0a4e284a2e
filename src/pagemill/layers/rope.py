"""Rotary position embeddings: the frequencies of each type, and the table of their angles.

A position's rotation never depends on the batch, nor on how long its sequence has become: it would
change the keys that are already in the cache. The two types whose frequencies depend on a length
(dynamic, longrope) are therefore evaluated once, for the length that is served; they equal Hugging
Face's at ``seq_len = max_model_len``.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch

from pagemill.rope_config import RopeConfig


def rope_frequencies(config: RopeConfig, max_model_len: int) -> tuple[torch.Tensor, float]:
    """Angle per position of each rotated pair, and the factor on cos and sin.

    Args:
        config: the rotary embedding.
        max_model_len: the served length; below the trained one it scales nothing.

    Returns:
        ``[rotary_dim / 2]`` float32 in radians, and the attention factor.
    """
    if config.rope_type == "linear":
        frequencies = _unscaled(config) / config.factor
    elif config.rope_type == "ntk":
        frequencies = _unscaled(config, ntk_theta(config, config.factor))
    elif config.rope_type == "dynamic":
        stretch = max(max_model_len, config.trained_len) / config.trained_len
        growth = config.factor * stretch - (config.factor - 1)
        frequencies = _unscaled(config, ntk_theta(config, growth))
    elif config.rope_type == "yarn":
        frequencies = _yarn(config)
    elif config.rope_type == "llama3":
        frequencies = _llama3(config)
    elif config.rope_type == "longrope":
        long = max_model_len > config.trained_len
        factors = torch.tensor(config.long_factor if long else config.short_factor)
        frequencies = 1.0 / (factors * config.theta ** _exponents(config))
    else:
        frequencies = _unscaled(config)
    if config.freq_factors:
        frequencies = frequencies / torch.tensor(config.freq_factors)
    return frequencies, attention_factor(config)


def ntk_theta(config: RopeConfig, factor: float) -> float:
    """The base at which the slowest pair turns ``factor`` times slower ("NTK-aware" scaling)."""
    dim = config.rotary_dim
    if dim == 2:
        return config.theta  # the only pair does not depend on the base
    return config.theta * float(factor ** (dim / (dim - 2)))


def attention_factor(config: RopeConfig) -> float:
    """What multiplies cos and sin (YaRN's temperature, arXiv:2309.00071 section 3.4)."""
    if config.rope_type not in ("yarn", "longrope"):
        return 1.0
    if config.attention_factor is not None:
        return config.attention_factor
    if config.factor <= 1.0:
        return 1.0
    if config.rope_type == "longrope":  # arXiv:2402.13753
        return math.sqrt(1 + math.log(config.factor) / math.log(config.trained_len))
    growth = 0.1 * math.log(config.factor)
    if config.mscale is not None and config.mscale_all_dim is not None:
        return (config.mscale * growth + 1.0) / (config.mscale_all_dim * growth + 1.0)
    return growth + 1.0


def _exponents(config: RopeConfig) -> torch.Tensor:
    return torch.arange(0, config.rotary_dim, 2, dtype=torch.float32) / config.rotary_dim


def _unscaled(config: RopeConfig, theta: float | None = None) -> torch.Tensor:
    base = config.theta if theta is None else theta
    return 1.0 / (base ** _exponents(config))


def _yarn(config: RopeConfig) -> torch.Tensor:
    """NTK by parts: fast pairs as trained, slow ones interpolated, a ramp between.

    arXiv:2309.00071 section 3.2.
    """
    dim, theta = config.rotary_dim, config.theta

    def pair_that_turns(rotations: float) -> float:
        """Index of the pair that turns this often within the trained length."""
        return (
            dim * math.log(config.trained_len / (rotations * 2 * math.pi)) / (2 * math.log(theta))
        )

    low, high = pair_that_turns(config.beta_fast), pair_that_turns(config.beta_slow)
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001  # a step instead of a ramp
    pairs = torch.arange(dim // 2, dtype=torch.float32)
    interpolated = ((pairs - low) / (high - low)).clamp(0, 1)
    turns = theta ** _exponents(config)
    return interpolated / (config.factor * turns) + (1 - interpolated) / turns


def _llama3(config: RopeConfig) -> torch.Tensor:
    """Llama 3.1: as YaRN's idea, with the ramp over wavelengths relative to the trained length."""
    frequencies = _unscaled(config)
    wavelengths = 2 * math.pi / frequencies
    trained_len, low, high = config.trained_len, config.low_freq_factor, config.high_freq_factor
    as_trained = (trained_len / wavelengths - low) / (high - low)
    ramp = (1 - as_trained) * frequencies / config.factor + as_trained * frequencies
    slow = torch.where(wavelengths > trained_len / low, frequencies / config.factor, ramp)
    return torch.where(wavelengths < trained_len / high, frequencies, slow)


class RotaryTable:
    """cos and sin of every position, computed as far as positions have come.

    The memory is there for the whole served length, and costs nothing where it is not written.
    """

    _PIECE = 1024  # positions that are computed at a time

    def __init__(self, config: RopeConfig, max_model_len: int) -> None:
        self._frequencies, self._factor = rope_frequencies(config, max_model_len)
        num_positions = -(-max_model_len // self._PIECE) * self._PIECE
        shape = (num_positions, config.rotary_dim // 2)
        self._cos, self._sin = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        self._num_computed = 0

    def arrays(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """The memory of the tables, ``[max_model_len or more, rotary_dim / 2]``.

        Valid up to the largest position that `up_to` was asked for.
        """
        return self._cos, self._sin

    def up_to(self, max_position: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines, valid up to ``max_position``: ``[more, rotary_dim / 2]`` float32."""
        self.compute_to(max_position)
        return torch.from_numpy(self._cos), torch.from_numpy(self._sin)

    def compute_to(self, max_position: int) -> None:
        """Make `arrays` valid up to ``max_position``."""
        while self._num_computed <= max_position:
            piece = slice(self._num_computed, self._num_computed + self._PIECE)
            positions = torch.arange(piece.start, piece.stop, dtype=torch.float32)
            angles = positions[:, None] * self._frequencies
            self._cos[piece] = (angles.cos() * self._factor).numpy()
            self._sin[piece] = (angles.sin() * self._factor).numpy()
            self._num_computed = piece.stop
