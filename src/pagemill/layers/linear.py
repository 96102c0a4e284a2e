"""Linear maps: a weight ``[N, K]`` in its stored dtype and a bias, if any."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pagemill import kernels
from pagemill.loading.weights import Weights


class Linear:
    """``x @ weight^T + bias``."""

    def __init__(self, weight: kernels.LinearWeight, bias: torch.Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias

    @classmethod
    def load(cls, weights: Weights, name: str, in_size: int, out_size: int, bias: bool) -> Linear:
        """Take ``name.weight [out, in]`` and, with ``bias``, ``name.bias [out]``."""
        return cls.load_joined(weights, [name], in_size, [out_size], bias)

    @classmethod
    def load_joined(
        cls,
        weights: Weights,
        names: Sequence[str],
        in_size: int,
        out_sizes: Sequence[int],
        bias: bool,
    ) -> Linear:
        """Several maps of the same input as one, outputs one after another."""
        weight = weights.matrix([f"{name}.weight" for name in names], in_size, out_sizes)
        if not bias:
            return cls(weight)
        sizes = zip(names, out_sizes, strict=True)
        return cls(weight, torch.cat([weights.take(f"{name}.bias", (n,)) for name, n in sizes]))

    @classmethod
    def load_transposed(cls, weights: Weights, name: str, in_size: int, out_size: int) -> Linear:
        """Take a map with bias whose weight is stored ``[in, out]`` (GPT-2's Conv1D)."""
        weight = weights.transposed_matrix(f"{name}.weight", in_size, out_size)
        return cls(weight, weights.take(f"{name}.bias", (out_size,)))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Float32 ``[T, K]`` to ``[T, N]``."""
        return kernels.linear(x, self.weight, self.bias)
