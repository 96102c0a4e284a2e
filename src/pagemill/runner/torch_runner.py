"""Runs a model's steps with torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pagemill.batch import Batch, BlockMove, StepResult
from pagemill.model_config import ModelConfig
from pagemill.models.protocol import Model
from pagemill.pooling import add_rows
from pagemill.runner.device_batch import DeviceBatch
from pagemill.runner.kv_pool import KVPool
from pagemill.runner.logits_pieces import logits_pieces, sample_and_score
from pagemill.runner.swap_memory import SwapMemory
from pagemill.sampling import NumpyVocabulary


class TorchRunner:
    """A `pagemill.batch.ModelRunner` over a model with real weights; owns the KV pool."""

    def __init__(
        self,
        model: Model,
        config: ModelConfig,
        *,
        num_kv_blocks: int,
        block_size: int,
        swap: SwapMemory | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.vocab_size = config.vocab_size
        self._model = model
        self._device = device or torch.device("cpu")
        self._vocabulary = NumpyVocabulary()
        self._kv = KVPool(config, num_kv_blocks, block_size, self._device)
        self.swap = swap or SwapMemory.none()
        """Where blocks are that were moved out of the pool."""

    def move_blocks(self, moves: Sequence[BlockMove]) -> None:
        """Make ``moves``, as if one after another in this order."""
        self._kv.move_blocks(moves, self.swap)

    def read_block(self, block_id: int) -> bytes:
        """The keys and values of a block in all layers."""
        return self._kv.read_block(block_id)

    def write_block(self, block_id: int, content: bytes) -> None:
        """Put back what `read_block` gave, into the same block or another."""
        self._kv.write_block(block_id, content)

    @torch.inference_mode()
    def execute(self, batch: Batch) -> StepResult:
        """Write the KV of the batch's tokens, then sample, score and pool what asks for it."""
        device_batch = DeviceBatch.from_batch(batch, self._device)
        hidden = self._model.forward(device_batch, self._kv)
        result = StepResult(sampled=[], scored=[])
        for task in batch.pooling:
            result.pooled.append(add_rows(task.total, hidden[task.rows].cpu().numpy()))
        hidden = hidden[device_batch.logits_indices]
        for first, count in logits_pieces(batch):
            logits = self._model.compute_logits(hidden[first : first + count])
            sample_and_score(batch, first, logits, result, self._vocabulary)
        return result

    def close(self) -> None:
        """Release the model's weights and the KV pool."""
        del self._model, self._kv, self.swap
