"""Logits a piece at a time: a prompt that is scored wants a row for each of its tokens, and a row
of a large vocabulary takes a megabyte.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from pagemill.batch import Batch, SamplingTask, ScoringTask, StepResult
from pagemill.sampling import VocabularyOps, sample, score
from pagemill.sampling.vocabulary import FloatArray

if TYPE_CHECKING:
    import torch

LOGITS_ROWS = 256
"""Rows of logits in memory at a time. A multiple of the row tile of the reference `linear`."""

Task = TypeVar("Task", SamplingTask, ScoringTask)


def logits_pieces(batch: Batch) -> Iterator[tuple[int, int]]:
    """First row and number of rows of each piece of the step's logits."""
    num_rows = len(batch.logits_indices)
    for first in range(0, num_rows, LOGITS_ROWS):
        yield first, min(LOGITS_ROWS, num_rows - first)


def sample_and_score(
    batch: Batch,
    first: int,
    logits: torch.Tensor | FloatArray,
    result: StepResult,
    ops: VocabularyOps,
) -> None:
    """Do the tasks of ``batch`` that are on a piece of the logits, and add to ``result``.

    ``logits`` are the rows from ``first`` on, float32 ``[rows, vocab_size]``; pieces come in order.
    """
    rows = range(first, first + len(logits))
    if batch.sampling:
        result.sampled += sample(logits, _tasks_in(rows, batch.sampling), ops)
    if batch.scoring:
        result.scored += score(logits, _tasks_in(rows, batch.scoring), ops)


def _tasks_in(rows: range, tasks: list[Task]) -> list[Task]:
    """The tasks on these ``rows`` of all logits, which are rows 0 and on of a piece."""
    if rows.start == 0 and tasks[-1].logits_row in rows:  # they ascend
        return tasks
    return [
        replace(task, logits_row=task.logits_row - rows.start)
        for task in tasks
        if task.logits_row in rows
    ]
