"""The feed-forward blocks."""

from __future__ import annotations

import torch

from pagemill import kernels
from pagemill.layers.linear import Linear
from pagemill.loading.weights import Weights
from pagemill.model_config import ModelConfig

_ACTIVATION = {
    "silu": kernels.silu,
    "gelu": kernels.gelu,
    "gelu_tanh": kernels.gelu_tanh,
}
_GATED_ACTIVATION = {
    "silu": kernels.silu_and_mul,
    "gelu": kernels.gelu_and_mul,
    "gelu_tanh": kernels.gelu_tanh_and_mul,
}


class GatedMLP:
    """``down(act(gate(x)) * up(x))`` (arXiv:2002.05202)."""

    def __init__(self, config: ModelConfig, weights: Weights, prefix: str) -> None:
        hidden, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        names = [f"{prefix}.gate_proj", f"{prefix}.up_proj"]
        self._gate_up = Linear.load_joined(weights, names, hidden, [inner, inner], bias)
        self._down = Linear.load(weights, f"{prefix}.down_proj", inner, hidden, bias)
        self._act_and_mul = _GATED_ACTIVATION[config.hidden_act]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """``[T, hidden_size]`` to ``[T, hidden_size]``."""
        return self._down(self._act_and_mul(self._gate_up(x)))


class PlainMLP:
    """``down(act(up(x)))``, with the weights stored as GPT-2 does."""

    def __init__(self, config: ModelConfig, weights: Weights, prefix: str) -> None:
        hidden, inner = config.hidden_size, config.intermediate_size
        self._up = Linear.load_transposed(weights, f"{prefix}.c_fc", hidden, inner)
        self._down = Linear.load_transposed(weights, f"{prefix}.c_proj", inner, hidden)
        self._act = _ACTIVATION[config.hidden_act]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """``[T, hidden_size]`` to ``[T, hidden_size]``."""
        return self._down(self._act(self._up(x)))
