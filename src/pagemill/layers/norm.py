"""Normalization layers."""

from __future__ import annotations

import torch

from pagemill import kernels
from pagemill.loading.weights import Weights


class RMSNorm:
    """Root mean square norm over the last dimension; the weight is kept in float32."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self.weight = weight.float()
        self.eps = eps

    @classmethod
    def load(
        cls, weights: Weights, name: str, size: int, eps: float, *, offset: float = 0.0
    ) -> RMSNorm:
        """Take ``name.weight [size]``; Gemma stores its difference from ``offset`` = 1."""
        return cls(weights.take(f"{name}.weight", (size,)).float() + offset, eps)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Normalize ``[..., size]`` float32."""
        return kernels.rms_norm(x, self.weight, self.eps)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The norm of ``x + residual``, and that sum."""
        return kernels.add_rms_norm(x, residual, self.weight, self.eps)


class LayerNorm:
    """Mean and variance norm over the last dimension, with bias."""

    def __init__(self, weights: Weights, name: str, size: int, eps: float) -> None:
        self.weight = weights.take(f"{name}.weight", (size,)).float()
        self.bias = weights.take(f"{name}.bias", (size,)).float()
        self.eps = eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Normalize ``[..., size]`` float32."""
        return kernels.layer_norm(x, self.weight, self.bias, self.eps)
