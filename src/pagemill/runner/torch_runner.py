"""Runs a model's steps with torch."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import torch

from pagemill.batch import Batch, SamplingTask, ScoringTask, StepResult
from pagemill.model_config import ModelConfig
from pagemill.models.protocol import Model
from pagemill.runner.device_batch import DeviceBatch
from pagemill.runner.kv_pool import KVPool
from pagemill.sampling import sample, score

LOGITS_ROWS = 256
"""Rows of logits in memory at a time. A row of Gemma's vocabulary takes 1 MiB, and a prompt that is
scored wants one for each of its tokens. A multiple of the row tile of `kernels.linear`."""

Task = TypeVar("Task", SamplingTask, ScoringTask)


class TorchRunner:
    """A `pagemill.batch.ModelRunner` over a model with real weights; owns the KV pool."""

    def __init__(
        self,
        model: Model,
        config: ModelConfig,
        *,
        num_kv_blocks: int,
        block_size: int,
        device: torch.device | None = None,
    ) -> None:
        self.vocab_size = config.vocab_size
        self._model = model
        self._device = device or torch.device("cpu")
        self._kv = KVPool(config, num_kv_blocks, block_size, self._device)

    @torch.inference_mode()
    def execute(self, batch: Batch) -> StepResult:
        """Write the KV of the batch's tokens, then sample and score the rows that ask for it."""
        device_batch = DeviceBatch.from_batch(batch, self._device)
        hidden = self._model.forward(device_batch, self._kv)
        hidden = hidden[device_batch.logits_indices]
        result = StepResult(sampled=[], scored=[])
        for first in range(0, len(hidden), LOGITS_ROWS):
            logits = self._model.compute_logits(hidden[first : first + LOGITS_ROWS])
            rows = range(first, first + len(logits))
            result.sampled += sample(logits, _tasks_in(rows, batch.sampling))
            result.scored += score(logits, _tasks_in(rows, batch.scoring))
        return result

    def close(self) -> None:
        """Release the model's weights and the KV pool."""
        del self._model, self._kv


def _tasks_in(rows: range, tasks: list[Task]) -> list[Task]:
    """The tasks on these ``rows`` of all logits, which are rows 0 and on of a piece."""
    return [
        replace(task, logits_row=task.logits_row - rows.start)
        for task in tasks
        if task.logits_row in rows
    ]
