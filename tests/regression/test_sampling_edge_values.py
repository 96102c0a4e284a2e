"""Edge values of each filter, and rubbish in each numeric field."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from pagemill.errors import InvalidParameterError
from pagemill.sampling_params import SamplingParams
from tests.unit.sampling.sampling_helpers import random_logits, sample, task

VOCAB_SIZE = 1000
NUM_DRAWS = 200
NUMERIC_FIELDS = [
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "n",
    "min_tokens",
    "max_tokens",
    "logprobs",
    "prompt_logprobs",
]


with_both_vocabularies = pytest.mark.usefixtures("vocabulary")


def draw_each(logits: torch.Tensor | None = None, **fields: Any) -> list[int | None]:
    row = random_logits(VOCAB_SIZE) if logits is None else logits
    tasks = [task(stream=stream, logprobs=1, **fields) for stream in range(NUM_DRAWS)]
    result = sample(row[None], tasks)
    assert not any(math.isnan(sampled.logprobs.logprob) for sampled in result)
    return [sampled.token_id for sampled in result]


def drawn(logits: torch.Tensor | None = None, **fields: Any) -> set[int | None]:
    return set(draw_each(logits, **fields))


def best(count: int) -> set[int]:
    return set(torch.argsort(random_logits(VOCAB_SIZE), descending=True)[:count].tolist())


@with_both_vocabularies
@pytest.mark.parametrize("top_k", [-1, 0, VOCAB_SIZE, VOCAB_SIZE + 1, 2**31 - 1])
def test_top_k_without_effect_gives_the_draws_of_no_filter(top_k: int) -> None:
    assert len(drawn()) > 15
    assert draw_each(top_k=top_k) == draw_each()


@with_both_vocabularies
def test_top_k_one_is_the_most_likely_token() -> None:
    assert drawn(top_k=1) == best(1)


@with_both_vocabularies
def test_top_k_one_below_the_vocabulary_leaves_out_the_least_likely() -> None:
    logits = torch.zeros(3)
    logits[1] = -0.5
    assert drawn(logits, top_k=3) == {0, 1, 2}
    assert drawn(logits, top_k=2) == {0, 2}


@with_both_vocabularies
@pytest.mark.parametrize("top_p", [0, 1e-4, 5e-324])
def test_a_tiny_top_p_is_the_most_likely_token(top_p: float) -> None:
    assert drawn(top_p=top_p) == best(1)


@with_both_vocabularies
def test_top_p_zero_on_a_flat_row_is_its_first_token() -> None:
    assert drawn(torch.zeros(VOCAB_SIZE), top_p=0) == {0}


@with_both_vocabularies
@pytest.mark.parametrize("top_p", [1, 1 - 2**-53])
def test_top_p_of_all_but_nothing_gives_the_draws_of_no_filter(top_p: float) -> None:
    assert draw_each(top_p=top_p) == draw_each()


@with_both_vocabularies
@pytest.mark.parametrize("temperature", [0, 5e-324, 1e-45, 1e-30, 1e-4])
def test_a_tiny_temperature_is_the_most_likely_token(temperature: float) -> None:
    for filters in ({}, {"top_k": 7}, {"top_p": 0.9}, {"min_p": 0.5}):
        assert drawn(temperature=temperature, **filters) == best(1)


@with_both_vocabularies
@pytest.mark.parametrize("temperature", [5e-324, 1e-4])
@pytest.mark.parametrize("scale", [1e-10, 1e10, 1e37])
def test_a_tiny_temperature_is_safe_with_logits_of_any_size(
    temperature: float, scale: float
) -> None:
    logits = torch.tensor([-3.0, 3.0, 0.0, -math.inf]) * scale
    for filters in ({}, {"top_k": 2}, {"top_p": 0.9}, {"min_p": 0.5}):
        tokens = drawn(logits, temperature=temperature, **filters)
        assert tokens == {1} or scale == 1e-10
        assert 3 not in tokens


@with_both_vocabularies
def test_a_high_temperature_flattens() -> None:
    assert len(drawn(temperature=2)) > len(drawn()) + 20
    assert len(drawn(temperature=100)) > 150


@with_both_vocabularies
def test_min_p_zero_has_no_effect_and_one_leaves_the_most_likely_tokens() -> None:
    assert draw_each(min_p=0) == draw_each()
    assert draw_each(min_p=5e-324) == draw_each()
    assert drawn(min_p=1) == best(1)
    assert drawn(torch.tensor([1.0, 2.0, 2.0]), min_p=1) == {1, 2}


def rubbish(*more: Any) -> list[Any]:
    """Values that are no number for any field, and integers too large even to print."""
    huge = [pytest.param(sign * 10**5000, id=f"{sign}e5000") for sign in (1, -1)]
    return [math.nan, math.inf, -math.inf, "1", "x", 10**30, -(10**30), [], True, 1j, *huge, *more]


@pytest.mark.parametrize("name", NUMERIC_FIELDS)
@pytest.mark.parametrize("value", rubbish(-5))
def test_rubbish_in_a_numeric_field_is_refused_with_the_fields_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidParameterError) as refusal:
        SamplingParams(**{name: value})
    assert refusal.value.field == name
    assert str(refusal.value).startswith(f"{name} must be")


@pytest.mark.parametrize("value", rubbish(101, None))
def test_rubbish_as_a_bias_is_refused_with_the_tokens_id(value: Any) -> None:
    with pytest.raises(InvalidParameterError, match=r"logit_bias\[7\] must be a number"):
        SamplingParams(logit_bias={7: value})


@pytest.mark.parametrize("token_id", rubbish(7.0, -1, None))
@pytest.mark.parametrize("name", ["allowed_token_ids", "stop_token_ids"])
def test_rubbish_as_a_token_id_is_refused_with_the_fields_name(name: str, token_id: Any) -> None:
    fields: dict[str, Any] = {name: [token_id]}
    with pytest.raises(InvalidParameterError, match=f"{name} must be an integer"):
        SamplingParams(**fields)


@pytest.mark.parametrize("key", [math.nan, "7", 7.0, -1, 10**30, None, True])
def test_rubbish_as_a_key_of_logit_bias_is_refused(key: Any) -> None:
    with pytest.raises(InvalidParameterError, match="each key of logit_bias must be an integer"):
        SamplingParams(logit_bias={key: 1.0})


@pytest.mark.parametrize("name", ["logit_bias", "allowed_token_ids", "stop_token_ids"])
def test_an_id_beyond_the_vocabulary_is_refused_with_the_fields_name(name: str) -> None:
    def with_id(token_id: int) -> SamplingParams:
        return SamplingParams.from_dict(
            {name: {token_id: 1} if name == "logit_bias" else [token_id]}
        )

    with_id(VOCAB_SIZE - 1).validate_for_vocabulary(VOCAB_SIZE)
    with pytest.raises(InvalidParameterError, match=name):
        with_id(VOCAB_SIZE).validate_for_vocabulary(VOCAB_SIZE)
