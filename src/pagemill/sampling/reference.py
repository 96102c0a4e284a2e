"""The vocabulary ops in numpy, row by row: the reference of the native ones, and what computes
where there is no native library.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pagemill.batch import SampledToken, SamplingTask, ScoringTask, TokenLogprobs
from pagemill.philox import uniforms as philox_uniforms
from pagemill.sampling.adjustments import Adjustments
from pagemill.sampling.distribution import DamagedLogitsError, RowDistribution
from pagemill.sampling.filters import draw_token, filter_tokens
from pagemill.sampling.vocabulary import DoubleArray, FloatArray, UInt64Array

_DAMAGED = TokenLogprobs(math.nan, rank=0, top=())


class NumpyVocabulary:
    """A `VocabularyOps`; numpy computes a row in one thread."""

    def uniforms(self, keys: UInt64Array, positions: UInt64Array) -> DoubleArray:
        """See `VocabularyOps`."""
        return philox_uniforms(keys, positions)

    def sample(
        self, rows: FloatArray, tasks: Sequence[SamplingTask], uniforms: Sequence[float]
    ) -> list[SampledToken]:
        """See `VocabularyOps`."""
        with np.errstate(over="ignore"):  # an overflow to -infinity is an impossible token
            return [
                _sample_row(rows[task.logits_row], task, uniform)
                for task, uniform in zip(tasks, uniforms, strict=True)
            ]

    def score(self, rows: FloatArray, tasks: Sequence[ScoringTask]) -> list[TokenLogprobs]:
        """See `VocabularyOps`."""
        with np.errstate(over="ignore"):
            return [_score_row(rows[task.logits_row], task) for task in tasks]


def _score_row(logits: FloatArray, task: ScoringTask) -> TokenLogprobs:
    try:
        raw = RowDistribution.of(logits)
    except DamagedLogitsError:
        return _DAMAGED
    return raw.token_logprobs(task.token_id, task.num_logprobs)


def _sample_row(logits: FloatArray, task: SamplingTask, uniform: float) -> SampledToken:
    params = task.params
    try:
        raw = RowDistribution.of(logits)
    except DamagedLogitsError:
        return SampledToken(None, _DAMAGED)
    adjustments = Adjustments.of(task, len(logits))
    adjusted = logits if adjustments is None else adjustments.apply(logits)
    token_id = int(adjusted.argmax())  # the first of equal ones
    peak = float(adjusted[token_id])
    if peak == -math.inf:
        return SampledToken(None, TokenLogprobs(-math.inf, 0, raw.top(params.logprobs or 0)))
    if not params.greedy:
        is_raw = adjustments is None and params.temperature == 1.0
        kept = filter_tokens(adjusted, peak, params, raw.weights if is_raw else None)
        token_id = draw_token(kept, uniform)
    return SampledToken(token_id, raw.token_logprobs(token_id, params.logprobs))
