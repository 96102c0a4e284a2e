"""From rows of logits to tokens and log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pagemill.batch import SampledToken, SamplingTask, ScoringTask, TokenLogprobs
from pagemill.sampling.reference import NumpyVocabulary
from pagemill.sampling.vocabulary import FloatArray, VocabularyOps

if TYPE_CHECKING:
    import torch

_NUMPY = NumpyVocabulary()


def sample(
    logits: torch.Tensor | FloatArray,
    tasks: Sequence[SamplingTask],
    ops: VocabularyOps = _NUMPY,
) -> list[SampledToken]:
    """Choose the next token of each task from its row of ``logits`` [L, V], float32.

    The chosen token's log-probability is always reported; its rank is 0 and ``top`` is empty
    unless ``logprobs`` is set. Where masks and the model leave no token possible, the token is
    None, its log-probability -infinity and its rank 0; where a logit is NaN or +infinity, the token
    is None and its log-probability NaN. Other rows are not affected.
    """
    return ops.sample(_host_rows(logits), tasks, _uniforms(tasks, ops))


def score(
    logits: torch.Tensor | FloatArray, tasks: Sequence[ScoringTask], ops: VocabularyOps = _NUMPY
) -> list[TokenLogprobs]:
    """Report the log-probability and rank of each task's token in its row of ``logits`` [L, V].

    In a row with a logit that is NaN or +infinity, the log-probability is NaN and the rank 0.
    """
    return ops.score(_host_rows(logits), tasks)


def _uniforms(tasks: Sequence[SamplingTask], ops: VocabularyOps) -> list[float]:
    """Draw each task's number from its own stream, at the position of its new token."""
    if all(task.params.temperature == 0.0 for task in tasks):
        return [0.0] * len(tasks)
    keys = np.array([task.seed for task in tasks], dtype=np.uint64)
    positions = np.array([len(task.output_token_ids) for task in tasks], dtype=np.uint64)
    uniforms: list[float] = ops.uniforms(keys, positions).tolist()
    return uniforms


def _host_rows(logits: torch.Tensor | FloatArray) -> FloatArray:
    if isinstance(logits, np.ndarray):
        return logits
    rows: FloatArray = logits.detach().contiguous().cpu().numpy()
    assert rows.ndim == 2, rows.shape
    assert rows.dtype == np.float32, rows.dtype
    return rows
