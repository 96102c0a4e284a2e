"""The torch form of a step's batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pagemill.batch import Batch
from pagemill.kernels import AttentionLayout


@dataclass(frozen=True)
class DeviceBatch:
    """What a model reads of a `Batch`, on the device; all tensors are int64."""

    token_ids: torch.Tensor  # [T]
    positions: torch.Tensor  # [T]
    slot_mapping: torch.Tensor  # [T]
    logits_indices: torch.Tensor  # [L]
    layout: AttentionLayout
    max_position: int

    @classmethod
    def from_batch(cls, batch: Batch, device: torch.device) -> DeviceBatch:
        """Move ``batch`` to ``device``; on the CPU the arrays are shared, not copied."""
        return cls(
            token_ids=torch.from_numpy(batch.token_ids).to(device),
            positions=torch.from_numpy(batch.positions).to(device),
            slot_mapping=torch.from_numpy(batch.slot_mapping).to(device),
            logits_indices=torch.from_numpy(batch.logits_indices).to(device),
            layout=AttentionLayout(
                query_start_loc=batch.query_start_loc.tolist(),
                context_lens=batch.context_lens.tolist(),
                block_tables=torch.from_numpy(batch.block_tables).to(device),
            ),
            max_position=int(batch.positions.max(initial=0)),
        )
