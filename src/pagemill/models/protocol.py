"""What every architecture provides."""

from __future__ import annotations

from typing import Protocol

import torch

from pagemill.layers.rope import RotaryTable
from pagemill.runner.device_batch import DeviceBatch
from pagemill.runner.kv_pool import KVPool


class Model(Protocol):
    """A decoder-only language model with its weights."""

    rotations: list[RotaryTable]
    """The tables of its rotary embeddings."""

    def forward(self, batch: DeviceBatch, kv: KVPool) -> torch.Tensor:
        """Final hidden states ``[T, hidden_size]`` float32; writes the batch's slots of ``kv``."""
        ...

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits ``[L, vocab_size]`` float32 for selected rows of `forward`'s result."""
        ...
