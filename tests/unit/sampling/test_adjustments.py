"""Masks, bias and penalties against their definitions, seen through the greedy choice and the
adjusted logits themselves."""

import math
from typing import Any

import numpy as np
import pytest

from pagemill.errors import EngineError
from pagemill.kernels import native
from pagemill.sampling.adjustments import Adjustments
from tests.unit.sampling.sampling_helpers import adjusted_natively, sample_one, task

LOGITS = np.array([2.0, -1.0, 0.5, 0.0, -3.0], dtype=np.float32)


def adjusted(logits: np.ndarray[Any, Any] = LOGITS, **fields: Any) -> list[float]:
    """The adjusted row, in numpy and, bit for bit, on the native kernels."""
    before = logits.copy()
    adjustments = Adjustments.of(task(**fields), len(logits))
    if adjustments is None:
        return [float(x) for x in logits]
    with np.errstate(over="ignore"):
        result = adjustments.apply(logits)
    assert np.array_equal(before, logits), "the raw logits were modified"
    if native.load() is not None:
        natively = adjusted_natively(adjustments, logits)
        assert natively is not None
        assert np.array_equal(natively, result)
    return [float(x) for x in result]


def test_a_request_without_adjustments_needs_no_copy_of_the_row() -> None:
    assert Adjustments.of(task(prompt=[0], output=[1], end=[2]), 5) is None
    assert Adjustments.of(task(min_tokens=1, output=[1], end=[2]), 5) is None
    assert Adjustments.of(task(bad_words_token_ids=[[3, 4]], output=[4]), 5) is None


def test_only_allowed_tokens_stay_possible() -> None:
    assert adjusted(allowed_token_ids=[4, 2]) == [-math.inf, -math.inf, 0.5, -math.inf, -3.0]


def test_every_end_token_is_impossible_until_min_tokens() -> None:
    ends = [0, 2, 7]  # 7 is beyond this model's logits: it cannot come up anyway
    assert adjusted(min_tokens=2, output=[3], end=ends) == [-math.inf, -1.0, -math.inf, 0.0, -3.0]
    assert adjusted(min_tokens=2, output=[3, 3], end=ends) == LOGITS.tolist()


def test_a_bad_word_of_one_token_is_never_possible() -> None:
    result = adjusted(bad_words_token_ids=[[0], [99]])  # 99 is beyond this model's logits
    assert result == [-math.inf, *LOGITS.tolist()[1:]]


@pytest.mark.parametrize(
    ("prompt", "output", "forbidden"),
    [
        ([], [9, 1, 2], True),
        ([], [1, 2], True),
        ([], [1, 2, 3], False),
        ([], [2], False),
        ([], [], False),
        ([1], [2], False),  # what the prompt ends with does not count
    ],
)
def test_a_longer_bad_word_forbids_its_last_token_after_the_others(
    prompt: list[int], output: list[int], forbidden: bool
) -> None:
    result = adjusted(bad_words_token_ids=[[1, 2, 0]], prompt=prompt, output=output)
    assert result == [-math.inf if forbidden else 2.0, *LOGITS.tolist()[1:]]


def test_bad_words_that_nobody_encoded_are_not_ignored() -> None:
    with pytest.raises(EngineError, match="with_bad_words"):
        adjusted(bad_words=["x"])


def test_bias_is_added_and_does_not_revive_a_forbidden_token() -> None:
    assert adjusted(logit_bias={1: 4.5, 4: -1})[1::3] == [3.5, -4.0]
    assert adjusted(logit_bias={0: 100}, bad_words_token_ids=[[0]])[0] == -math.inf


def test_repetition_penalty_divides_positive_and_multiplies_negative_logits_once() -> None:
    result = adjusted(repetition_penalty=2.0, prompt=[2, 2, 0, 3], output=[1, 0])
    assert result == [1.0, -2.0, 0.25, 0.0, -3.0]


def test_a_repetition_penalty_below_one_encourages() -> None:
    assert adjusted(repetition_penalty=0.5, output=[0, 4]) == [4.0, -1.0, 0.5, 0.0, -1.5]


def test_frequency_counts_and_presence_does_not_and_neither_sees_the_prompt() -> None:
    fields: dict[str, Any] = {"prompt": [2, 2, 4], "output": [0, 0, 0, 1]}
    assert adjusted(frequency_penalty=0.5, **fields) == [0.5, -1.5, 0.5, 0.0, -3.0]
    assert adjusted(presence_penalty=-1.5, **fields) == [3.5, 0.5, 0.5, 0.0, -3.0]


def test_bias_comes_before_repetition_and_repetition_before_frequency() -> None:
    result = adjusted(
        logit_bias={0: 2.0}, repetition_penalty=2.0, frequency_penalty=1.0, output=[0]
    )
    assert result[0] == (2.0 + 2.0) / 2.0 - 1.0


def test_a_penalty_on_an_extreme_logit_stays_finite() -> None:
    extreme = np.array([3e38, -3e38], dtype=np.float32)
    result = adjusted(extreme, repetition_penalty=0.01, output=[0, 1])
    assert result[0] == np.finfo(np.float32).max
    result = adjusted(extreme, repetition_penalty=100, output=[0, 1])
    assert result[1] == -np.inf


@pytest.mark.usefixtures("vocabulary")
def test_where_no_token_is_left_the_token_is_none_and_the_best_are_still_reported() -> None:
    contradictions: list[dict[str, Any]] = [
        {"allowed_token_ids": [3], "bad_words_token_ids": [[3]]},
        {"allowed_token_ids": [3], "min_tokens": 1},
    ]
    for fields in contradictions:
        sampled = sample_one([0.0, 5.0, 1.0, 2.0], task(end=[3], logprobs=2, **fields))
        assert sampled.token_id is None
        assert (sampled.logprobs.logprob, sampled.logprobs.rank) == (-math.inf, 0)
        assert [token_id for token_id, _ in sampled.logprobs.top] == [1, 3]
