"""The filters against a direct reading of their definitions, in plain Python."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pagemill.batch import SamplingTask
from pagemill.kernels import native
from pagemill.sampling import NumpyVocabulary, VocabularyOps
from pagemill.sampling.filters import KeptTokens, draw_token, filter_tokens
from pagemill.sampling.selection import keep_largest, largest
from pagemill.sampling_params import SamplingParams
from tests.unit.sampling.sampling_helpers import native_vocabulary

# Few distinct values, so that ties are everywhere; a long row repeats the short one's values.
LOGITS = st.lists(
    st.integers(-12, 12).map(lambda x: x / 4) | st.just(-math.inf), min_size=1, max_size=40
).filter(lambda row: max(row) > -math.inf)
REPEATS = st.sampled_from([1, 1, 3, 60])
PROBABILITY = st.floats(0, 1)


def ranking(logits: list[float]) -> list[int]:
    return sorted(range(len(logits)), key=lambda token_id: (-logits[token_id], token_id))


def kept_by_definition(logits: list[float], params: SamplingParams) -> tuple[set[int], float]:
    """The kept ids, and how near the nearest decision was to falling otherwise."""
    peak = max(logits)
    weight = [math.exp((x - peak) / params.temperature) for x in logits]
    kept = [token_id for token_id in ranking(logits) if weight[token_id] > 0]
    nearest = math.inf
    if params.top_k > 0:
        kept = kept[: params.top_k]
    if params.top_p < 1:
        total = math.fsum(weight[token_id] for token_id in kept)
        mass, nucleus = 0.0, []
        for token_id in kept:
            nucleus.append(token_id)
            mass += weight[token_id] / total
            nearest = min(nearest, abs(mass - params.top_p))
            if mass >= params.top_p:
                break
        kept = nucleus
    for token_id in kept:
        if weight[token_id] != 1.0:
            nearest = min(nearest, abs(weight[token_id] - params.min_p))
    return {token_id for token_id in kept if weight[token_id] >= params.min_p}, nearest


@settings(max_examples=400, deadline=None)
@given(
    row=LOGITS,
    repeats=REPEATS,
    temperature=st.sampled_from([0.05, 0.5, 1.0, 2.0, 100.0]),
    top_k=st.integers(-1, 60),
    top_p=PROBABILITY | st.just(1.0),
    min_p=PROBABILITY | st.just(0.0),
)
def test_the_filters_keep_what_their_definitions_say(
    row: list[float], repeats: int, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    logits = row * repeats
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    expected, nearest = kept_by_definition(logits, params)
    assume(nearest > 1e-6)  # or rounding may decide
    with np.errstate(over="ignore"):
        kept = filter_tokens(np.array(logits, dtype=np.float32), max(logits), params)
    ids = np.arange(len(logits)) if kept.token_ids is None else kept.token_ids
    assert ids.tolist() == sorted(set(ids.tolist()))
    possible = {int(token_id) for token_id, w in zip(ids, kept.weights, strict=True) if w > 0}
    assert possible == expected
    for token_id, weight in zip(ids, kept.weights, strict=True):
        exact = math.exp((logits[token_id] - max(logits)) / temperature)
        assert weight == pytest.approx(exact, rel=1e-4, abs=1e-40)


@settings(max_examples=200, deadline=None)
@given(
    row=LOGITS,
    repeats=REPEATS,
    temperature=st.sampled_from([0.05, 0.5, 1.0, 2.0, 100.0]),
    top_k=st.integers(-1, 60),
    top_p=PROBABILITY | st.just(1.0),
    min_p=PROBABILITY | st.just(0.0),
)
def test_the_middle_of_each_kept_tokens_share_draws_it(
    row: list[float], repeats: int, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    logits = row * repeats
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    expected, nearest = kept_by_definition(logits, params)
    assume(nearest > 1e-6)
    kept = sorted(expected)
    weights = np.exp((np.array([logits[i] for i in kept]) - max(logits)) / temperature)
    ends = np.cumsum(weights) / weights.sum()
    middles = ends - weights / weights.sum() / 2
    large_enough = weights / weights.sum() > 1e-5  # for a draw to be sure
    numbers = middles[large_enough].tolist()
    tasks = [SamplingTask(0, params, (), (), 0, frozenset())] * len(numbers)
    vocabularies: list[VocabularyOps] = [NumpyVocabulary()]
    if native.load() is not None:
        vocabularies.append(native_vocabulary())
    for ops in vocabularies:
        sampled = ops.sample(np.array([logits], dtype=np.float32), tasks, numbers)
        assert [token_id for token_id, _ in sampled] == np.array(kept)[large_enough].tolist()


@settings(max_examples=50, deadline=None)
@given(size=st.integers(1, 60), percent=st.integers(1, 99))
def test_top_p_of_equal_tokens_keeps_exactly_the_share_with_the_lowest_ids(
    size: int, percent: int
) -> None:
    logits = np.zeros(size * 100, dtype=np.float32)
    kept = filter_tokens(logits, 0.0, SamplingParams(top_p=percent / 100))
    assert kept.token_ids is not None
    count = len(kept.token_ids)
    assert kept.token_ids.tolist() == list(range(count))
    assert count - size * percent in (0, 1)  # 1 where percent / 100 rounds up


@settings(max_examples=300, deadline=None)
@given(row=LOGITS, repeats=st.sampled_from([1, 7, 300]), k=st.integers(1, 100))
def test_the_k_largest_are_the_first_k_of_a_stable_sort(
    row: list[float], repeats: int, k: int
) -> None:
    values = np.array(row * repeats, dtype=np.float32)
    expected = sorted(ranking(row * repeats)[:k])
    assert largest(values, k).tolist() == expected
    assert np.flatnonzero(keep_largest(values, k)).tolist() == expected


def test_the_k_largest_are_found_in_rows_that_are_sorted_either_way() -> None:
    values = np.arange(50_001, dtype=np.float32)
    for k in (1, 50, 5000, 50_000):
        assert largest(values, k).tolist() == list(range(50_001 - k, 50_001))
        assert largest(-values, k).tolist() == list(range(k))


@settings(max_examples=300, deadline=None)
@given(
    weights=st.lists(st.sampled_from([0.0, 1e-30, 0.25, 1.0]), min_size=1, max_size=30),
    repeats=st.sampled_from([1, 40, 200]),
    uniform=st.floats(0, 1 - 2**-53),
)
def test_the_draw_inverts_the_cumulative_distribution(
    weights: list[float], repeats: int, uniform: float
) -> None:
    weights = weights * repeats
    assume(sum(weights) > 0)
    index = draw_token(KeptTokens(None, np.array(weights)), uniform)
    assert weights[index] > 0
    total = math.fsum(weights)
    rounding = 1e-12
    assert math.fsum(weights[:index]) / total <= uniform + rounding
    assert math.fsum(weights[: index + 1]) / total >= uniform - rounding


@settings(max_examples=200, deadline=None)
@given(weights=st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_the_largest_uniform_number_draws_the_last_token_that_weighs(weights: list[float]) -> None:
    weights = [1.0, *weights, 0.0]
    last = max(i for i, weight in enumerate(weights) if weight > 1e-9 or weight == 1.0)
    index = draw_token(KeptTokens(None, np.array(weights)), 1 - 2**-53)
    assert index >= last
    assert weights[index] > 0


def test_the_draw_reaches_the_first_and_the_last_possible_token() -> None:
    weights = np.zeros(2000)
    weights[[3, 700, 1999 - 512]] = [0.1, 0.2, 0.3]
    assert draw_token(KeptTokens(None, weights), 0.0) == 3
    assert draw_token(KeptTokens(None, weights), 1 - 2**-53) == 1999 - 512
    ids = np.arange(2000) + 5
    assert draw_token(KeptTokens(ids, weights), 0.0) == 8
