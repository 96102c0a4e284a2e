"""The model's own distribution over one row of logits: peak, normalizer, log-probabilities."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pagemill.batch import TokenLogprobs
from pagemill.sampling.selection import largest
from pagemill.sampling.vocabulary import FloatArray

_MAX_INVERSE_TEMPERATURE = 1e30
"""Keeps (logit - peak) / temperature from being 0 * infinity. At this factor, and so for every
temperature below 1e-30, all but the tokens equal to the peak have weight 0."""


def softmax_weights(logits: FloatArray, peak: float, temperature: float) -> FloatArray:
    """Softmax before its division: ``exp((logits - peak) / temperature)``, float32 [V].

    ``peak`` is the largest logit, so that its weight is 1 and none can overflow.
    """
    weights = logits - np.float32(peak)
    if temperature != 1.0:
        # The peak is subtracted first: what may overflow here is negative, and -inf weighs 0.
        weights *= np.float32(inverse_temperature(temperature))
    np.exp(weights, out=weights)
    return weights


def inverse_temperature(temperature: float) -> float:
    """``1 / temperature``, bounded so that it stays finite in float32."""
    return min(1.0 / temperature, _MAX_INVERSE_TEMPERATURE)


class DamagedLogitsError(ValueError):
    """A row holds NaN or +infinity."""


@dataclass(slots=True)
class RowDistribution:
    """Softmax of one row of raw logits: no penalty, temperature or filter has touched it."""

    logits: FloatArray  # [V] not modified
    weights: FloatArray  # [V] exp(logits - peak)
    peak: float
    log_normalizer: float  # log(sum(exp(logits))); -inf if every logit is

    @classmethod
    def of(cls, logits: FloatArray) -> RowDistribution:
        """Normalize a row. A logit of -infinity is an impossible token.

        Raises `DamagedLogitsError` if a logit is NaN or +infinity, which no healthy model computes.
        """
        peak = float(logits.max())  # NaN if there is one
        if math.isnan(peak) or peak == math.inf:
            raise DamagedLogitsError
        if peak == -math.inf:
            return cls(logits, np.zeros_like(logits), peak, -math.inf)
        weights = softmax_weights(logits, peak, 1.0)
        return cls(logits, weights, peak, peak + math.log(weights.sum(dtype=np.float64)))

    def token_logprobs(self, token_id: int, num_top: int | None) -> TokenLogprobs:
        """Report a token and the ``num_top`` most likely ones.

        With ``num_top`` None only the log-probability is wanted: the rank, which costs another
        pass over the vocabulary, is 0.
        """
        logit = float(self.logits[token_id])
        if num_top is None:
            return TokenLogprobs(self._logprob(logit), rank=0, top=())
        return TokenLogprobs(self._logprob(logit), self._rank(token_id), self.top(num_top))

    def top(self, count: int) -> tuple[tuple[int, float], ...]:
        """The ``count`` most likely tokens as (id, logprob), best first, ties by lower id.

        Impossible tokens (logit -infinity) are left out.
        """
        if count == 0:
            return ()
        ids = largest(self.logits, count)
        ids = ids[np.argsort(-self.logits[ids], kind="stable")]
        best = ((int(token_id), float(self.logits[token_id])) for token_id in ids)
        return tuple((token_id, self._logprob(x)) for token_id, x in best if x != -math.inf)

    def _logprob(self, logit: float) -> float:
        return -math.inf if logit == -math.inf else logit - self.log_normalizer

    def _rank(self, token_id: int) -> int:
        logit = self.logits[token_id]
        more_likely = np.count_nonzero(self.logits > logit)
        ties_before = np.count_nonzero(self.logits[:token_id] == logit)
        return int(more_likely + ties_before) + 1
