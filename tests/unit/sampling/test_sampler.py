import math
from typing import Any

import numpy as np
import pytest
import torch

from pagemill.batch import ScoringTask
from tests.unit.sampling.sampling_helpers import (
    draws,
    random_logits,
    sample,
    sample_one,
    score,
    task,
)

pytestmark = pytest.mark.usefixtures("vocabulary")


def chi_square(tokens: list[int | None], probabilities: np.ndarray[Any, Any]) -> tuple[float, int]:
    """Statistic and degrees of freedom over the cells that expect at least five draws."""
    observed = np.bincount(np.array(tokens), minlength=len(probabilities)).astype(float)
    expected = probabilities * len(tokens)
    common = expected >= 5
    assert not observed[probabilities == 0].any(), "an impossible token was drawn"
    cells = [*zip(observed[common], expected[common], strict=True)]
    if expected[~common].sum() >= 5:
        cells.append((observed[~common].sum(), expected[~common].sum()))
    return sum((o - e) ** 2 / e for o, e in cells), len(cells) - 1


def softmax(logits: torch.Tensor, temperature: float = 1.0) -> np.ndarray[Any, Any]:
    return np.asarray(torch.softmax(logits.double() / temperature, dim=0))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("vocab_size", [7, 1000, 1500])
def test_draws_follow_the_softmax(vocab_size: int, temperature: float) -> None:
    logits = random_logits(vocab_size, seed=1, scale=2.0)
    tokens = draws(logits, 10_000, temperature=temperature)
    statistic, freedom = chi_square(tokens, softmax(logits, temperature))
    # Within four standard deviations of the mean of a chi-square distribution.
    assert abs(statistic - freedom) < 4 * math.sqrt(2 * freedom)


@pytest.mark.parametrize(
    "filters",
    [
        {"top_k": 5},
        {"top_p": 0.7},
        {"min_p": 0.2},
        {"top_k": 20, "top_p": 0.8, "min_p": 0.05, "temperature": 1.5},
    ],
)
def test_draws_follow_the_filtered_and_renormalized_distribution(filters: dict[str, Any]) -> None:
    logits = random_logits(200, seed=2, scale=2.0)
    probabilities = softmax(logits, filters.get("temperature", 1.0))
    order = np.argsort(-probabilities)
    ranked = probabilities[order]
    if "top_k" in filters:
        ranked[filters["top_k"] :] = 0
    if "top_p" in filters:
        ranked[1:][np.cumsum(ranked / ranked.sum())[:-1] >= filters["top_p"]] = 0
    ranked[ranked < filters.get("min_p", 0) * ranked[0]] = 0
    expected = np.zeros_like(probabilities)
    expected[order] = ranked / ranked.sum()
    assert 2 <= np.count_nonzero(expected) < 200, "the filter must have something to do"

    statistic, freedom = chi_square(draws(logits, 10_000, **filters), expected)
    assert abs(statistic - freedom) < 4 * math.sqrt(2 * freedom)


def test_successive_positions_of_one_stream_are_independent_draws() -> None:
    logits = torch.tensor([0.0, 0.0, 1.0])
    tasks = [task(output=[0] * position, stream=42) for position in range(3000)]
    tokens = [sampled.token_id for sampled in sample(logits[None], tasks)]
    drawn = np.array(tokens, dtype=np.int64)
    pairs: list[int | None] = [*(drawn[:-1] * 3 + drawn[1:])]
    p = softmax(logits)
    statistic, freedom = chi_square(pairs, np.outer(p, p).ravel())
    assert abs(statistic - freedom) < 4 * math.sqrt(2 * freedom)


def test_greedy_takes_the_lowest_id_among_equals() -> None:
    assert sample_one([1.0, 3.0, 2.0, 3.0], task(temperature=0)).token_id == 1


def test_one_sampled_token_may_be_drawn_by_many_tasks_of_one_row() -> None:
    logits = torch.stack([random_logits(50), random_logits(50, seed=9)])
    tasks = [task(1, stream=1), task(0, stream=2), task(1, stream=1)]
    first, other, again = sample(logits, tasks)
    assert first == again
    assert first.token_id == sample_one(logits[1], task(stream=1)).token_id
    assert other.token_id == sample_one(logits[0], task(stream=2)).token_id


def test_logprobs_are_those_of_the_raw_distribution_whatever_the_parameters() -> None:
    logits = random_logits(1000, seed=3)
    reference = torch.log_softmax(logits.double(), dim=0)
    best = torch.argsort(logits, descending=True)[:4].tolist()
    for fields in (
        {},
        {"temperature": 0},
        {"temperature": 0.3, "top_k": 3, "min_p": 0.1},
        {"logit_bias": {5: 100}, "repetition_penalty": 1.5, "presence_penalty": 1.0},
        {"allowed_token_ids": [8, 9]},
    ):
        sampled = sample_one(logits, task(output=[1, 2], logprobs=4, **fields))
        assert sampled.token_id is not None
        assert sampled.logprobs.logprob == pytest.approx(
            float(reference[sampled.token_id]), abs=1e-5
        )
        assert sampled.logprobs.rank == 1 + int((logits > logits[sampled.token_id]).sum())
        assert [token_id for token_id, _ in sampled.logprobs.top] == best
        for token_id, logprob in sampled.logprobs.top:
            assert logprob == pytest.approx(float(reference[token_id]), abs=1e-5)


def test_the_logprob_is_always_there_and_rank_and_top_on_request() -> None:
    logits = [0.0, 0.0, math.log(2)]
    without = sample_one(logits, task(temperature=0)).logprobs
    assert without.logprob == pytest.approx(math.log(0.5))
    assert without[1:] == (0, ())
    with_rank = sample_one(logits, task(temperature=0, logprobs=0)).logprobs
    assert with_rank == (without.logprob, 1, ())


def test_top_tokens_are_best_first_with_ties_by_lower_id_and_without_impossible_ones() -> None:
    logits = torch.full((5000,), -math.inf)
    logits[[4000, 17, 600, 3]] = torch.tensor([1.0, 2.0, 1.0, 1.0])
    top = sample_one(logits, task(temperature=0, logprobs=100)).logprobs.top
    assert [token_id for token_id, _ in top] == [17, 3, 600, 4000]
    assert sum(math.exp(logprob) for _, logprob in top) == pytest.approx(1.0)


def test_scoring_reports_a_known_token_with_its_rank_in_the_order_of_the_top() -> None:
    logits = torch.tensor([[9.0, 9.0, 9.0], [1.0, 2.0, 1.0]])
    first, tie, impossible = score(
        torch.cat([logits, torch.tensor([[0.0, -math.inf, 0.0]])]),
        [ScoringTask(1, 0, 3), ScoringTask(1, 2, 0), ScoringTask(2, 1, 1)],
    )
    reference = torch.log_softmax(logits[1], dim=0).tolist()
    assert first.logprob == pytest.approx(reference[0])
    assert first.rank == 2
    assert [token_id for token_id, _ in first.top] == [1, 0, 2]
    assert (tie.rank, tie.top) == (3, ())
    assert (impossible.logprob, impossible.rank) == (-math.inf, 3)


def test_score_and_sample_agree_to_the_last_bit() -> None:
    logits = random_logits(50_001)
    sampled = sample_one(logits, task(stream=5, logprobs=7))
    assert sampled.token_id is not None
    assert score(logits[None], [ScoringTask(0, sampled.token_id, 7)]) == [sampled.logprobs]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_logit_that_no_model_computes_damages_its_own_row_only(
    bad: float, temperature: float
) -> None:
    logits = torch.stack([random_logits(100), random_logits(100)])
    expected = sample(logits, [task(0, temperature=temperature)])[0]
    logits[1, 37] = bad
    whole, damaged = sample(
        logits, [task(0, temperature=temperature), task(1, temperature=temperature)]
    )
    assert whole == expected
    assert damaged.token_id is None
    assert math.isnan(damaged.logprobs.logprob)
    assert math.isnan(score(logits, [ScoringTask(1, 0, 0)])[0].logprob)


def test_impossible_tokens_of_the_model_are_legal_and_never_drawn() -> None:
    logits = torch.full((2000,), -math.inf)
    logits[[5, 1999]] = 0.0
    for fields in ({}, {"top_k": 10}, {"top_p": 0.999}, {"min_p": 0.001}, {"top_k": 1000}):
        assert set(draws(logits, 50, **fields)) == {5, 1999}
    nothing = sample_one(torch.full((9,), -math.inf), task(logprobs=3))
    assert nothing == (None, (-math.inf, 0, ()))


def test_the_same_seed_and_position_give_the_same_token_and_others_differ() -> None:
    logits = torch.zeros(50_000)
    first = sample_one(logits, task(stream=42, output=[1, 2, 3]))
    assert first == sample_one(logits, task(stream=42, output=[7, 8, 9]))
    assert first != sample_one(logits, task(stream=42, output=[1, 2]))
    assert first != sample_one(logits, task(stream=43, output=[1, 2, 3]))


def test_an_empty_batch_gives_nothing() -> None:
    logits = torch.empty(0, 100)
    assert sample(logits, []) == []
    assert score(logits, []) == []
