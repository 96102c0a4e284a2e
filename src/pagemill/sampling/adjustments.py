"""Masks, bias and penalties: what a request's own wishes and history do to its logits."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from pagemill.batch import SamplingTask
from pagemill.errors import EngineError
from pagemill.sampling.distribution import FloatArray

IdArray = npt.NDArray[np.int64]

_IMPOSSIBLE = np.float32(-np.inf)
_LARGEST_LOGIT = float(np.finfo(np.float32).max)


def adjust_logits(logits: FloatArray, task: SamplingTask) -> FloatArray:
    """Apply masks, then bias, then penalties, in the order documented in `pagemill.sampling`.

    Returns ``logits`` [V] itself if the task asks for none of them, otherwise a changed copy.
    """
    params = task.params
    # A tokenizer may have ids that the model has no logit for; they cannot come up anyway.
    forbidden = {
        token_id
        for token_id in _premature_end_ids(task) | _bad_word_ends(task)
        if token_id < len(logits)
    }
    is_masked = params.allowed_token_ids is not None or bool(forbidden)
    if not (is_masked or params.logit_bias or params.needs_penalties):
        return logits

    adjusted = logits.copy()
    if params.allowed_token_ids is not None:
        allowed = _id_array(params.allowed_token_ids)
        adjusted.fill(_IMPOSSIBLE)
        adjusted[allowed] = logits[allowed]
    adjusted[_id_array(forbidden)] = _IMPOSSIBLE
    if params.logit_bias:
        biases = np.fromiter(params.logit_bias.values(), dtype=np.float32)
        adjusted[_id_array(params.logit_bias)] += biases
    if params.repetition_penalty != 1.0:
        _penalize_repetition(adjusted, task)
    if params.needs_output_penalties:
        _penalize_output(adjusted, task)
    return adjusted


def _premature_end_ids(task: SamplingTask) -> frozenset[int]:
    """Ids that would end the output before ``min_tokens``."""
    too_short = len(task.output_token_ids) < task.params.min_tokens
    return task.end_token_ids if too_short else frozenset()


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


def _penalize_repetition(adjusted: FloatArray, task: SamplingTask) -> None:
    """Move the logits of all tokens seen so far away from (or towards) likely, in place.

    Keskar et al., "CTRL" (2019), as amended for negative logits: x / penalty if x > 0, else
    x * penalty.
    """
    penalty = task.params.repetition_penalty
    seen = np.union1d(_id_array(task.prompt_token_ids), _id_array(task.output_token_ids))
    logits = adjusted[seen].astype(np.float64)
    logits = np.where(logits > 0.0, logits / penalty, logits * penalty)
    adjusted[seen] = np.minimum(logits, _LARGEST_LOGIT)


def _penalize_output(adjusted: FloatArray, task: SamplingTask) -> None:
    """Subtract count * frequency_penalty + (count > 0) * presence_penalty, in place."""
    params = task.params
    seen, counts = np.unique(_id_array(task.output_token_ids), return_counts=True)
    penalties = counts * params.frequency_penalty + params.presence_penalty
    adjusted[seen] -= penalties.astype(np.float32)


def _id_array(token_ids: Iterable[int]) -> IdArray:
    return np.fromiter(token_ids, dtype=np.int64)
