"""Masks, bias and penalties: what a request's own wishes and history do to its logits."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from pagemill.batch import SamplingTask
from pagemill.errors import EngineError
from pagemill.sampling.vocabulary import FloatArray

_IMPOSSIBLE = np.float32(-np.inf)
_LARGEST_LOGIT = float(np.finfo(np.float32).max)


def _ids(token_ids: Iterable[int] = ()) -> array[int]:
    return array("q", token_ids)


def _floats(numbers: Iterable[float] = ()) -> array[float]:
    return array("f", numbers)


@dataclass(slots=True)
class Adjustments:
    """What changes a task's logits, in the order in which it acts.

    The arrays are not numpy's, whose address takes ten times as long to learn.
    """

    allowed: array[int] = field(default_factory=_ids)
    """All others become impossible; none: every token is allowed."""
    forbidden: array[int] = field(default_factory=_ids)
    """These become impossible."""
    biased: array[int] = field(default_factory=_ids)
    """Each at most once."""
    biases: array[float] = field(default_factory=_floats)
    """For each of ``biased``."""
    prompt: array[int] = field(default_factory=_ids)
    """Only if a penalty asks for it, as is the output."""
    output: array[int] = field(default_factory=_ids)
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0

    @classmethod
    def of(cls, task: SamplingTask, vocab_size: int) -> Adjustments | None:
        """What ``task`` asks for on a row of ``vocab_size`` logits; None if nothing.

        Raises:
            EngineError: its bad words are still text.
        """
        params = task.params
        forbidden = _forbidden_ids(task, vocab_size)
        has_bias, has_mask = bool(params.logit_bias), params.allowed_token_ids is not None
        if not (forbidden or has_bias or has_mask or params.needs_penalties):
            return None
        adjustments = cls(forbidden=_ids(forbidden))
        if params.allowed_token_ids is not None:
            adjustments.allowed = _ids(params.allowed_token_ids)
        if has_bias:
            adjustments.biased = _ids(params.logit_bias)
            adjustments.biases = _floats(params.logit_bias.values())
        if params.needs_penalties:
            adjustments.output = _ids(task.output_token_ids)
            adjustments.repetition_penalty = params.repetition_penalty
            adjustments.frequency_penalty = params.frequency_penalty
            adjustments.presence_penalty = params.presence_penalty
        if params.repetition_penalty != 1.0:
            adjustments.prompt = _ids(task.prompt_token_ids)
        return adjustments

    def apply(self, logits: FloatArray) -> FloatArray:
        """Return a changed copy of ``logits`` [V]."""
        adjusted = logits.copy()
        if len(self.allowed):
            adjusted.fill(_IMPOSSIBLE)
            adjusted[self.allowed] = logits[self.allowed]
        adjusted[self.forbidden] = _IMPOSSIBLE
        adjusted[self.biased] += self.biases
        if self.repetition_penalty != 1.0:
            self._penalize_repetition(adjusted)
        if self.frequency_penalty != 0.0 or self.presence_penalty != 0.0:
            self._penalize_output(adjusted)
        return adjusted

    def _penalize_repetition(self, adjusted: FloatArray) -> None:
        """Move the logits of all tokens seen so far away from (or towards) likely, in place.

        Keskar et al., "CTRL" (2019), as amended for negative logits: x / penalty if x > 0, else
        x * penalty.
        """
        penalty = self.repetition_penalty
        seen = np.union1d(self.prompt, self.output)
        logits = adjusted[seen].astype(np.float64)
        logits = np.where(logits > 0.0, logits / penalty, logits * penalty)
        adjusted[seen] = np.minimum(logits, _LARGEST_LOGIT)

    def _penalize_output(self, adjusted: FloatArray) -> None:
        """Subtract count * frequency_penalty + (count > 0) * presence_penalty, in place."""
        seen, counts = np.unique(self.output, return_counts=True)
        penalties = counts * self.frequency_penalty + self.presence_penalty
        adjusted[seen] -= penalties.astype(np.float32)


def _forbidden_ids(task: SamplingTask, vocab_size: int) -> set[int]:
    """Ids that would end the output before ``min_tokens`` or complete a bad word."""
    params = task.params
    forbidden: set[int] = set()
    if len(task.output_token_ids) < params.min_tokens:
        forbidden |= task.end_token_ids
    if params.bad_words or params.bad_words_token_ids:
        forbidden |= _bad_word_ends(task)
    # A tokenizer may have ids that the model has no logit for; they cannot come up anyway.
    return {token_id for token_id in forbidden if token_id < vocab_size}


def _bad_word_ends(task: SamplingTask) -> set[int]:
    """Last tokens of the bad words whose other tokens the output ends with."""
    params = task.params
    if params.bad_words and not params.bad_words_token_ids:
        raise EngineError("bad_words reached the sampler without with_bad_words() resolving them")
    output = task.output_token_ids
    ends = set()
    for *head, last in params.bad_words_token_ids:
        start = len(output) - len(head)
        if start >= 0 and all(output[start + i] == head[i] for i in range(len(head))):
            ends.add(last)
    return ends
