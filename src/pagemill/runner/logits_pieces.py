"""Logits a piece at a time: a prompt that is scored wants a row for each of its tokens, and a row of
a large vocabulary takes a megabyte.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import torch

from pagemill.batch import Batch, SamplingTask, ScoringTask, StepResult
from pagemill.sampling import sample, score

LOGITS_ROWS = 256
"""Rows of logits in memory at a time. A multiple of the row tile of the reference `linear`."""

Task = TypeVar("Task", SamplingTask, ScoringTask)


def sample_and_score(
    batch: Batch, make_logits: Callable[[int, int], torch.Tensor]
) -> StepResult:
    """Do all tasks of ``batch``.

    Args:
        batch: its tasks count rows among all of the step's logits.
        make_logits: given a first row and a count, returns these rows, float32
            ``[count, vocab_size]``, valid until the next call.
    """
    result = StepResult(sampled=[], scored=[])
    num_rows = len(batch.logits_indices)
    for first in range(0, num_rows, LOGITS_ROWS):
        count = min(LOGITS_ROWS, num_rows - first)
        logits = make_logits(first, count)
        rows = range(first, first + count)
        result.sampled += sample(logits, _tasks_in(rows, batch.sampling))
        result.scored += score(logits, _tasks_in(rows, batch.scoring))
    return result


def _tasks_in(rows: range, tasks: list[Task]) -> list[Task]:
    """The tasks on these ``rows`` of all logits, which are rows 0 and on of a piece."""
    if rows.start == 0 and all(task.logits_row in rows for task in tasks):
        return tasks
    return [
        replace(task, logits_row=task.logits_row - rows.start)
        for task in tasks
        if task.logits_row in rows
    ]
