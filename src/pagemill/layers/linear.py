"""Linear maps: a weight ``[N, K]`` in its stored dtype and a bias, if any."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pagemill import kernels
from pagemill.loading.weights import Weights


class Linear:
    """``x @ weight^T + bias``."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
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
        sizes = list(zip(names, out_sizes, strict=True))
        parts = [weights.take(f"{name}.weight", (size, in_size)) for name, size in sizes]
        biases = [weights.take(f"{name}.bias", (size,)) for name, size in sizes] if bias else []
        return cls(_join(parts), _join(biases) if bias else None)

    @classmethod
    def load_transposed(cls, weights: Weights, name: str, in_size: int, out_size: int) -> Linear:
        """Take a map with bias whose weight is stored ``[in, out]`` (GPT-2's Conv1D)."""
        weight = weights.take(f"{name}.weight", (in_size, out_size))
        return cls(weight.T.contiguous(), weights.take(f"{name}.bias", (out_size,)))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Float32 ``[T, K]`` to ``[T, N]``."""
        return kernels.linear(x, self.weight, self.bias)


def _join(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
