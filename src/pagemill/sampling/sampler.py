"""From rows of logits to tokens and log-probabilities, one row at a time.

No operation spans two rows, and numpy computes a row in one thread: its outcome is bit for bit the
same whatever rows accompany it and however many threads the model used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pagemill.batch import SampledToken, SamplingTask, ScoringTask, TokenLogprobs
from pagemill.philox import uniforms
from pagemill.sampling.adjustments import adjust_logits
from pagemill.sampling.distribution import DamagedLogitsError, RowDistribution
from pagemill.sampling.filters import draw_token, filter_tokens

if TYPE_CHECKING:
    import torch

_DAMAGED = TokenLogprobs(math.nan, rank=0, top=())


def sample(logits: torch.Tensor, tasks: Sequence[SamplingTask]) -> list[SampledToken]:
    """Choose the next token of each task from its row of ``logits`` [L, V], float32.

    The chosen token's log-probability is always reported; its rank is 0 and ``top`` is empty
    unless ``logprobs`` is set. Where masks and the model leave no token possible, the token is
    None, its log-probability -infinity and its rank 0; where a logit is NaN or +infinity, the token
    is None and its log-probability NaN. Other rows are not affected.
    """
    rows = _host_rows(logits)
    draws = _uniforms(tasks)
    with np.errstate(over="ignore"):  # an overflow to -infinity is an impossible token
        return [
            _sample_row(rows[task.logits_row], task, draw)
            for task, draw in zip(tasks, draws, strict=True)
        ]


def score(logits: torch.Tensor, tasks: Sequence[ScoringTask]) -> list[TokenLogprobs]:
    """Report the log-probability and rank of each task's token in its row of ``logits`` [L, V].

    In a row with a logit that is NaN or +infinity, the log-probability is NaN and the rank 0.
    """
    rows = _host_rows(logits)
    with np.errstate(over="ignore"):
        return [_score_row(rows[task.logits_row], task) for task in tasks]


def _score_row(logits: npt.NDArray[np.float32], task: ScoringTask) -> TokenLogprobs:
    try:
        raw = RowDistribution.of(logits)
    except DamagedLogitsError:
        return _DAMAGED
    return raw.token_logprobs(task.token_id, task.num_logprobs)


def _sample_row(
    logits: npt.NDArray[np.float32], task: SamplingTask, uniform: float
) -> SampledToken:
    params = task.params
    try:
        raw = RowDistribution.of(logits)
    except DamagedLogitsError:
        return SampledToken(None, _DAMAGED)
    adjusted = adjust_logits(logits, task)
    token_id = int(adjusted.argmax())  # the first of equal ones
    peak = float(adjusted[token_id])
    if peak == -math.inf:
        return SampledToken(None, TokenLogprobs(-math.inf, 0, raw.top(params.logprobs or 0)))
    if not params.greedy:
        is_raw = adjusted is logits and params.temperature == 1.0
        kept = filter_tokens(adjusted, peak, params, raw.weights if is_raw else None)
        token_id = draw_token(kept, uniform)
    return SampledToken(token_id, raw.token_logprobs(token_id, params.logprobs))


def _uniforms(tasks: Sequence[SamplingTask]) -> list[float]:
    """Draw each task's number from its own stream, at the position of its new token."""
    if all(task.params.greedy for task in tasks):
        return [0.0] * len(tasks)
    keys = np.array([task.seed for task in tasks], dtype=np.uint64)
    positions = np.array([len(task.output_token_ids) for task in tasks], dtype=np.uint64)
    return [float(uniform) for uniform in uniforms(keys, positions)]


def _host_rows(logits: torch.Tensor) -> npt.NDArray[np.float32]:
    rows: npt.NDArray[np.float32] = logits.detach().contiguous().cpu().numpy()
    assert rows.ndim == 2, rows.shape
    assert rows.dtype == np.float32, rows.dtype
    return rows
