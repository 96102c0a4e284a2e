"""The feed-forward blocks."""

from __future__ import annotations

import torch

from pagemill import kernels
from pagemill.layers.linear import Linear
from pagemill.loading.weights import Weights
from pagemill.model_config import ModelConfig


class GatedMLP:
    """``down(act(gate(x)) * up(x))`` (arXiv:2002.05202)."""

    def __init__(self, config: ModelConfig, weights: Weights, prefix: str) -> None:
        hidden, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        names = [f"{prefix}.gate_proj", f"{prefix}.up_proj"]
        self._gate_up = Linear.load_joined(weights, names, hidden, [inner, inner], bias)
        self._down = Linear.load(weights, f"{prefix}.down_proj", inner, hidden, bias)
        self._activation = config.hidden_act

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """``[T, hidden_size]`` to ``[T, hidden_size]``."""
        return self._down(kernels.act_and_mul(self._gate_up(x), self._activation))


class PlainMLP:
    """``down(act(up(x)))``, with the weights stored as GPT-2 does."""

    def __init__(self, config: ModelConfig, weights: Weights, prefix: str) -> None:
        hidden, inner = config.hidden_size, config.intermediate_size
        self._up = Linear.load_transposed(weights, f"{prefix}.c_fc", hidden, inner)
        self._down = Linear.load_transposed(weights, f"{prefix}.c_proj", inner, hidden)
        self._activation = config.hidden_act

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """``[T, hidden_size]`` to ``[T, hidden_size]``."""
        return self._down(kernels.act(self._up(x), self._activation))
