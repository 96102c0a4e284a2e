"""Rotary position embeddings as a checkpoint or a user describes them (no arithmetic on tensors).

`pagemill.layers.rope` turns a `RopeConfig` into frequencies. Reading follows Hugging Face's
``config.json`` in its old spelling (``rope_theta`` and ``rope_scaling``, with ``type`` or
``rope_type``) and its new one (``rope_parameters``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagemill.errors import PagemillError
from pagemill.hf_fields import is_positive

DEFAULT_THETA = 10000.0
MAX_FACTOR = 1e6
"""Far above any in use, and below where lengths and frequencies overflow."""

_ORIGINAL = "original_max_position_embeddings"
_KEYS_OF_TYPE: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    # rope type: (required keys, optional keys)
    "default": (frozenset(), frozenset()),
    "linear": (frozenset({"factor"}), frozenset({_ORIGINAL})),
    "ntk": (frozenset({"factor"}), frozenset({_ORIGINAL})),
    "dynamic": (frozenset({"factor"}), frozenset()),
    "yarn": (
        frozenset(),  # the factor may follow from the two lengths
        frozenset({"factor", _ORIGINAL, "attention_factor", "beta_fast", "beta_slow"})
        | {"mscale", "mscale_all_dim", "truncate"},
    ),
    "llama3": (
        frozenset({"factor", "low_freq_factor", "high_freq_factor"}),
        frozenset({_ORIGINAL}),
    ),
    "longrope": (
        frozenset({"short_factor", "long_factor"}),
        frozenset({"factor", _ORIGINAL, "attention_factor"}),
    ),
}
_COMMON_KEYS = frozenset({"rope_type", "type", "rope_theta", "partial_rotary_factor"})
_ALIASES = {"su": "longrope"}  # the name that the first Phi-3 checkpoints used

ROPE_TYPES = tuple(sorted(_KEYS_OF_TYPE))


@dataclass(frozen=True)
class RopeConfig:
    """One set of rotary frequencies.

    Two lengths matter. ``trained_len`` is what the unscaled frequencies were made for;
    ``max_len`` is how far the scaled ones reach.
    """

    rotary_dim: int
    """How many of a head's dimensions are rotated (the first ones); even."""
    trained_len: int
    max_len: int
    theta: float = DEFAULT_THETA
    rope_type: str = "default"
    factor: float = 1.0
    attention_factor: float | None = None
    """Multiplies cos and sin (yarn, longrope); None: by the type's own formula."""
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()
    freq_factors: tuple[float, ...] = ()
    """Divides each frequency, whatever the type (GGUF's ``rope_freqs.weight``)."""


def read_rope(
    parameters: Mapping[str, Any],
    *,
    head_dim: int,
    max_position_embeddings: int,
    theta: float = DEFAULT_THETA,
    partial_rotary_factor: float = 1.0,
    original_max_position_embeddings: int | None = None,
    freq_factors: tuple[float, ...] = (),
    error: type[PagemillError],
    source: str,
) -> RopeConfig:
    """Check and read one ``rope_scaling`` or ``rope_parameters`` dictionary.

    Args:
        parameters: the dictionary.
        head_dim: dimensions of a head.
        max_position_embeddings: the checkpoint's length.
        theta: the base where the dictionary gives none.
        partial_rotary_factor: the rotated share of a head where the dictionary gives none.
        original_max_position_embeddings: the trained length where a checkpoint states it beside
            the dictionary; wins over the dictionary's, as in Hugging Face.
        freq_factors: see `RopeConfig`.
        error: what to raise: `ConfigError` for a user, `UnsupportedModelError` for a file.
        source: how the dictionary is called in messages.
    """
    read = _Reader(parameters, error, source)
    rope_type = read.rope_type()
    read.check_keys(rope_type)
    rotary_dim = int(head_dim * read.number("partial_rotary_factor", partial_rotary_factor))
    if not 2 <= rotary_dim <= head_dim or rotary_dim % 2:
        raise error(
            f"{source}: the rotated part of a head must be even and between 2 and head_dim "
            f"{head_dim}, got {rotary_dim} (partial_rotary_factor)"
        )
    stated_original = original_max_position_embeddings or read.optional_integer(_ORIGINAL)
    trained_len = stated_original or max_position_embeddings
    if rope_type == "longrope" and trained_len < 2:  # its attention factor divides by the logarithm
        raise error(f"{source}: longrope needs a trained length above 1, got {trained_len}")
    factor = read.factor(rope_type, max_position_embeddings / trained_len)
    pairs = rotary_dim // 2
    return RopeConfig(
        rotary_dim=rotary_dim,
        trained_len=trained_len,
        max_len=_reach(rope_type, factor, trained_len, max_position_embeddings),
        theta=read.number("rope_theta", theta, above=1.0),
        rope_type=rope_type,
        factor=factor,
        attention_factor=read.optional_number("attention_factor"),
        beta_fast=read.optional_number("beta_fast") or 32.0,
        beta_slow=read.optional_number("beta_slow") or 1.0,
        mscale=read.optional_number("mscale"),
        mscale_all_dim=read.optional_number("mscale_all_dim"),
        truncate=read.flag("truncate", True),
        low_freq_factor=read.number("low_freq_factor", 1.0),
        high_freq_factor=read.number("high_freq_factor", 1.0),
        short_factor=read.factors("short_factor", pairs),
        long_factor=read.factors("long_factor", pairs),
        freq_factors=check_freq_factors(freq_factors, pairs, error),
    )


def check_freq_factors(
    factors: tuple[float, ...], pairs: int, error: type[PagemillError]
) -> tuple[float, ...]:
    """``factors`` if there is one positive number for each rotated pair (or none at all)."""
    if factors and len(factors) != pairs:
        raise error(
            f"rope_freq_factors: {pairs} values are needed, one for each rotated pair of "
            f"dimensions, got {len(factors)}"
        )
    if not all(map(is_positive, factors)):
        raise error("rope_freq_factors: every value must be finite and above 0")
    return factors


def _reach(rope_type: str, factor: float, trained_len: int, max_position_embeddings: int) -> int:
    """How many positions a checkpoint's own frequencies reach.

    ``max_position_embeddings`` is the extended length in llama3, longrope and linear checkpoints;
    in ntk, dynamic and many yarn ones it is the length before scaling.
    """
    if rope_type in ("ntk", "dynamic", "yarn"):
        return max(max_position_embeddings, int(trained_len * factor))
    return max_position_embeddings


class _Reader:
    """Typed access to the dictionary; every complaint names the key, the rule and the value."""

    def __init__(
        self, parameters: Mapping[str, Any], error: type[PagemillError], source: str
    ) -> None:
        self._parameters = parameters
        self._error = error
        self._source = source

    def rope_type(self) -> str:
        value = self._parameters.get("rope_type", self._parameters.get("type"))
        if value is None:
            # `{"factor": 4.0}` does not say how to scale; only a bare theta needs no type.
            if set(self._parameters) <= _COMMON_KEYS:
                return "default"
            raise self._error(
                f'{self._source}: "rope_type" is missing; valid types: {", ".join(ROPE_TYPES)}'
            )
        name = _ALIASES.get(value, value) if isinstance(value, str) else value
        if name not in ROPE_TYPES:
            raise self._error(
                f"{self._source}: unknown rope_type {value!r}; valid types: {', '.join(ROPE_TYPES)}"
            )
        return str(name)

    def check_keys(self, rope_type: str) -> None:
        required, optional = _KEYS_OF_TYPE[rope_type]
        valid = ", ".join(sorted(required | optional | _COMMON_KEYS - {"type"}))
        for key in sorted(required):
            if self._parameters.get(key) is None:
                raise self._error(
                    f'{self._source}: rope_type "{rope_type}" needs "{key}"; its keys: {valid}'
                )
        if rope_type == "yarn" and not {"factor", _ORIGINAL} & set(self._parameters):
            raise self._error(
                f'{self._source}: rope_type "yarn" needs "factor" or "{_ORIGINAL}"; '
                f"its keys: {valid}"
            )
        for key, value in self._parameters.items():
            if key not in required | optional | _COMMON_KEYS and value is not None:
                raise self._error(
                    f'{self._source}: rope_type "{rope_type}" has no key {key!r} '
                    f"(got {value!r}); its keys: {valid}"
                )

    def optional_number(self, key: str, above: float = 0.0) -> float | None:
        value = self._parameters.get(key)
        if value is None:
            return None
        if not is_positive(value, above):
            raise self._error(
                f"{self._source}: {key} must be a number above {above:g}, got {value!r}"
            )
        return float(value)

    def number(self, key: str, default: float, above: float = 0.0) -> float:
        value = self.optional_number(key, above)
        return default if value is None else value

    def optional_integer(self, key: str) -> int | None:
        value = self.optional_number(key)
        if value is not None and value != int(value):
            raise self._error(f"{self._source}: {key} must be a whole number, got {value!r}")
        return None if value is None else int(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._parameters.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._error(f"{self._source}: {key} must be true or false, got {value!r}")
        return value

    def factor(self, rope_type: str, ratio: float) -> float:
        """The scaling factor; yarn and longrope may leave it to the ratio of the two lengths."""
        if rope_type == "default":
            return 1.0
        default = ratio if rope_type in ("yarn", "longrope") else 1.0
        value = self.number("factor", default)
        if not 1.0 <= value <= MAX_FACTOR:
            raise self._error(
                f"{self._source}: factor must be between 1 and {MAX_FACTOR:g}, got {value:g}"
            )
        return value

    def factors(self, key: str, count: int) -> tuple[float, ...]:
        values = self._parameters.get(key)
        if values is None:
            return ()
        if not isinstance(values, (list, tuple)) or len(values) != count:
            given = f"{len(values)} values" if isinstance(values, (list, tuple)) else repr(values)
            raise self._error(
                f"{self._source}: {key} must be a list of {count} numbers, one for each rotated "
                f"pair of dimensions, got {given}"
            )
        for value in values:
            if not is_positive(value):
                raise self._error(f"{self._source}: {key} must hold numbers above 0, got {value!r}")
        return tuple(float(value) for value in values)
