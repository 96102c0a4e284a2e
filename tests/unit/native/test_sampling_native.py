"""The sampler on the native kernels against its numpy reference, and each row by itself."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagemill import LLM, SamplingParams
from pagemill.batch import SamplingTask, ScoringTask
from pagemill.errors import EngineError
from pagemill.kernels import native
from pagemill.philox import uniforms
from pagemill.sampling import NumpyVocabulary
from pagemill.sampling.adjustments import Adjustments
from tests.parity.tiny_models import llama
from tests.unit.native import row_ops_helpers as ops
from tests.unit.sampling.sampling_helpers import adjusted_natively, native_vocabulary, task

pytestmark = pytest.mark.skipif(native.load() is None, reason="no native library")

FloatArray = npt.NDArray[np.float32]

NUMPY = NumpyVocabulary()
# Around the ends of vectors, blocks and chunks, and as large as a vocabulary gets.
SIZES = [1, 2, 15, 16, 17, 511, 513, 1000, 8191, 8193, 50_001, 300_000]
BORDER = 1e-6
"""Of the mass: how near to the border between two tokens, or to the end of what top-p keeps,
rounding may decide."""
ENDS = [0.0, 1 - 2**-53]

# The instruction set is the same for all examples of a test.
on_each_isa = settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@pytest.fixture(params=ops.supported_isas(), autouse=True)
def isa(request: pytest.FixtureRequest) -> Iterator[None]:
    with ops.use_isa(request.param):
        yield


def random_row(size: int, kind: str, seed: int) -> FloatArray:
    """A row of logits of some kind; at least one token is possible."""
    rng = np.random.default_rng(seed)
    row = rng.standard_normal(size) * 4
    match kind:
        case "ties":
            row = np.round(row / 3)
        case "equal":
            row[:] = row[0]
        case "peaked":
            row[rng.integers(size)] += 30
        case "mostly impossible":
            row[rng.random(size) < 0.95] = -math.inf
            row[rng.integers(size)] = 1.5
        case "huge":
            row = np.clip(row * 5e37, -3.4e38, 3.4e38)
        case "tiny":
            row *= 1e-30
        case "ascending":
            row.sort()
        case "descending":
            row[::-1].sort()
    return row.astype(np.float32)


KINDS = [
    "normal", "ties", "equal", "peaked", "mostly impossible", "huge", "tiny", "ascending",
    "descending",
]  # fmt: skip
ROWS = st.builds(
    random_row,
    st.sampled_from(SIZES) | st.integers(1, 2000) | st.integers(1, 300_000),
    st.sampled_from(KINDS),
    st.integers(0, 2**32 - 1),
)
TEMPERATURES = st.sampled_from([5e-324, 1e-30, 1e-4, 0.3, 0.8, 1.0, 1.0, 2.0, 100.0])
PROBABILITIES = st.floats(0, 1) | st.sampled_from([0.0, 5e-324, 0.5, 0.95, 1 - 2**-53, 1.0])
PARAMS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": TEMPERATURES,
        "top_k": st.integers(-1, 60) | st.integers(0, 10_000),
        "top_p": PROBABILITIES,
        "min_p": PROBABILITIES,
        "logprobs": st.sampled_from([0, 1, 5, 100]),
        "logit_bias": st.dictionaries(st.integers(0, 15), st.floats(-100, 100), max_size=4),
        "repetition_penalty": st.sampled_from([0.01, 0.9, 1.2, 100.0]),
        "frequency_penalty": st.floats(-2, 2),
        "presence_penalty": st.floats(-2, 2),
        "allowed_token_ids": st.lists(st.integers(0, 15), min_size=1),
        "bad_words_token_ids": st.lists(st.lists(st.integers(0, 15), min_size=1, max_size=1)),
    },
)


def fit(fields: dict[str, Any], vocab_size: int) -> dict[str, Any]:
    """The same parameters with no id beyond the vocabulary."""
    fields = dict(fields)
    if "logit_bias" in fields:
        fields["logit_bias"] = {i % vocab_size: b for i, b in fields["logit_bias"].items()}
    if "allowed_token_ids" in fields:
        fields["allowed_token_ids"] = [i % vocab_size for i in fields["allowed_token_ids"]]
    return fields


def tokens_at_the_border(rows: FloatArray, one: SamplingTask, number: float) -> range:
    """The ids between those that numpy draws a little to either side.

    At the ends of the numbers, a token's weight may be anything down to where exp is 0.
    """
    vocab_size = rows.shape[1]
    found = [0] * (number < BORDER) + [vocab_size - 1] * (number > 1 - BORDER)
    for top_p in (one.params.top_p - BORDER, one.params.top_p + BORDER):
        params = replace(one.params, top_p=min(max(top_p, 0.0), 1.0))
        around = [max(number - BORDER, 0.0), min(number + BORDER, ENDS[1])]
        for sampled in NUMPY.sample(rows, [replace(one, params=params)] * 2, around):
            assert sampled.token_id is not None
            found.append(sampled.token_id)
    return range(min(found), max(found) + 1)


def check_against_numpy(
    rows: FloatArray, tasks: Sequence[SamplingTask], numbers: Sequence[float]
) -> int:
    """Compare all that a task reports; returns how many tokens differ, as they may at a border."""
    before = rows.copy()
    actual = native_vocabulary().sample(rows, tasks, numbers)
    assert np.array_equal(rows, before), "the logits were modified"
    expected = NUMPY.sample(rows, tasks, numbers)
    num_different = 0
    for i, (mine, reference) in enumerate(zip(actual, expected, strict=True)):
        logprobs, wanted = mine.logprobs, reference.logprobs
        if mine.token_id != reference.token_id:
            assert mine.token_id is not None
            assert mine.token_id in tokens_at_the_border(rows, tasks[i], numbers[i])
            num_different += 1
            raw = NUMPY.score(rows, [ScoringTask(tasks[i].logits_row, mine.token_id, 100)])[0]
            wanted = wanted._replace(logprob=raw.logprob)
            if tasks[i].params.logprobs is not None:
                wanted = wanted._replace(rank=raw.rank)
        assert logprobs.rank == wanted.rank
        assert [t for t, _ in logprobs.top] == [t for t, _ in wanted.top]
        both = [(logprobs.logprob, wanted.logprob)]
        both += [(a, b) for (_, a), (_, b) in zip(logprobs.top, wanted.top, strict=True)]
        for a, b in both:
            assert a == pytest.approx(b, rel=1e-6, abs=1e-5, nan_ok=True)
    return num_different


@on_each_isa
@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)), max_size=20))
def test_uniform_numbers_are_those_of_philox(pairs: list[tuple[int, int]]) -> None:
    keys, positions = (np.array([pair[i] for pair in pairs], np.uint64) for i in range(2))
    found = native_vocabulary().uniforms(keys, positions)
    assert np.array_equal(found, uniforms(keys, positions))


@settings(on_each_isa, max_examples=300)
@given(
    row=ROWS,
    fields=PARAMS,
    prompt=st.lists(st.integers(0, 2**31), max_size=30),
    output=st.lists(st.integers(0, 20), max_size=30),
    numbers=st.lists(st.floats(0, 1, exclude_max=True) | st.sampled_from(ENDS), max_size=6),
)
def test_all_that_is_reported_agrees_with_numpy(
    row: FloatArray,
    fields: dict[str, Any],
    prompt: list[int],
    output: list[int],
    numbers: list[float],
) -> None:
    size = len(row)
    history = [i % size for i in prompt], [i % size for i in output]
    fields = fit(fields, size)
    greedy = task(prompt=history[0], output=history[1], **{**fields, "temperature": 0})
    drawn = task(prompt=history[0], output=history[1], **fields)
    check_against_numpy(row[None], [greedy, *[drawn] * len(numbers)], [0.0, *numbers])


@settings(on_each_isa, max_examples=200)
@given(
    row=ROWS,
    fields=PARAMS,
    prompt=st.lists(st.integers(0, 2**31), max_size=30),
    output=st.lists(st.integers(0, 20), max_size=300),
)
def test_adjusted_logits_equal_those_of_numpy_bit_for_bit(
    row: FloatArray, fields: dict[str, Any], prompt: list[int], output: list[int]
) -> None:
    size = len(row)
    history = [i % size for i in prompt], [i % size for i in output]
    one = task(prompt=history[0], output=history[1], **fit(fields, size))
    adjustments = Adjustments.of(one, size)
    if adjustments is not None:
        with np.errstate(over="ignore"):
            expected = adjustments.apply(row)
        found = adjusted_natively(adjustments, row)
        assert found is not None
        assert np.array_equal(found.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("size", SIZES)
def test_every_kind_of_row_of_every_size_agrees_with_numpy(size: int) -> None:
    rows = np.stack([random_row(size, kind, seed=size + i) for i, kind in enumerate(KINDS)])
    every: list[dict[str, Any]] = [
        {"temperature": 0, "logprobs": 20},
        {"logprobs": 3},
        {"temperature": 0.7},
        {"temperature": 0.8, "top_p": 0.95},
        {"temperature": 3.0, "top_p": 0.99},
        {"top_k": 50, "top_p": 0.9},
        {"top_k": size // 2},
        {"min_p": 0.01},
        {"repetition_penalty": 1.3, "frequency_penalty": 0.4},
        {"logit_bias": {size - 1: 7.5}, "top_k": 3},
    ]
    history = [i * 7919 % size for i in range(50)] + [0, 0, size - 1]
    tasks = [
        task(row, prompt=history, output=history[20:], **fields)
        for row in range(len(rows))
        for fields in every
        for _ in range(3)
    ]
    numbers = np.random.default_rng(size).random(len(tasks)).tolist()
    # In fact none; but one that falls on a border would be no fault.
    assert check_against_numpy(rows, tasks, numbers) <= 2


@pytest.mark.parametrize("size", [1, 100, 8193, 50_001, 300_000])
def test_a_row_has_the_same_bits_alone_and_in_any_batch_and_on_any_number_of_threads(
    size: int,
) -> None:
    """One thread computes a row by itself; several share the rows, or the chunks of a few."""
    every: list[dict[str, Any]] = [
        {"temperature": 0, "logprobs": 5},
        {},
        {"temperature": 0.7, "top_p": 0.9, "logprobs": 2},
        {"temperature": 1.5, "frequency_penalty": 1.0},
        {"top_k": 40, "repetition_penalty": 1.2},
        {"min_p": 0.02},
    ]
    rows = np.stack([random_row(size, "normal", seed=i) for i in range(12)])
    tasks = [
        task(i, output=[7 % size, 3 % size], prompt=[5 % size], **every[i % 6]) for i in range(12)
    ]
    scores = [ScoringTask(i, i % size, i) for i in range(12)]
    numbers = np.random.default_rng(size).random(12).tolist()
    alone = native_vocabulary(1)
    expected = [alone.sample(rows, [tasks[i]], [numbers[i]])[0] for i in range(12)]
    expected_scores = [alone.score(rows, [scores[i]])[0] for i in range(12)]
    for num_threads in (1, 2, 5):
        vocabulary = native_vocabulary(num_threads)
        for batch_size in (1, 2, 3, 4, 12):
            for first in range(0, 12, batch_size):
                part = slice(first, first + batch_size)
                found = vocabulary.sample(rows, tasks[part], numbers[part])
                assert found == expected[part]
                assert vocabulary.score(rows, scores[part]) == expected_scores[part]


@pytest.mark.parametrize("size", [17, 8193, 50_001])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_damaged_logit_is_found_wherever_it_is(size: int, bad: float) -> None:
    columns = [0, size // 2, size - 1, size - size % 16, size // 512 * 512]
    rows = np.stack([random_row(size, "normal", seed=i) for i in range(len(columns) + 2)])
    rows[range(len(columns)), columns] = bad
    rows[-2] = bad
    tasks = [task(i, temperature=i % 2, logprobs=2) for i in range(len(rows))]
    results = native_vocabulary().sample(rows, tasks, [0.5] * len(rows))
    for result in results[:-1]:
        assert result.token_id is None
        assert math.isnan(result.logprobs.logprob)
        assert result.logprobs[1:] == (0, ())
    assert results[-1].token_id is not None
    assert math.isnan(native_vocabulary().score(rows, [ScoringTask(0, 1, 2)])[0].logprob)


@pytest.mark.parametrize("size", [40, 50_001])
@pytest.mark.parametrize(
    "fields", [{}, {"top_p": 0.999}, {"top_k": 30}, {"min_p": 1e-4}, {"temperature": 0.5}]
)
def test_the_ends_of_the_uniform_numbers_draw_the_first_and_the_last_token_that_weigh(
    size: int, fields: dict[str, Any]
) -> None:
    row = np.full(size, -math.inf, np.float32)
    row[[3, size // 2, size - 2]] = [1.0, 0.5, 1.5]
    results = native_vocabulary().sample(row[None], [task(**fields)] * 2, ENDS)
    assert [result.token_id for result in results] == [3, size - 2]


def test_no_row_and_no_tokens_left() -> None:
    vocabulary = native_vocabulary()
    empty = np.empty((0, 100), np.float32)
    assert vocabulary.sample(empty, [], []) == []
    assert vocabulary.score(empty, []) == []
    row = np.full((1, 100), -math.inf, np.float32)
    assert vocabulary.sample(row, [task(logprobs=3)], [0.5]) == [(None, (-math.inf, 0, ()))]
    assert vocabulary.score(row, [ScoringTask(0, 7, 3)]) == [(-math.inf, 8, ())]


def test_a_token_outside_the_vocabulary_is_an_error_and_not_a_write_beyond_the_row() -> None:
    row = np.zeros((1, 100), np.float32)
    for token_id in (-1, 100, 2**40):
        for bad in (
            task(output=[3, token_id], frequency_penalty=1.0),
            task(prompt=[token_id], repetition_penalty=1.5),
        ):
            with pytest.raises(EngineError, match="outside the vocabulary"):
                native_vocabulary().sample(row, [bad], [0.5])
    with pytest.raises(IndexError):
        native_vocabulary().score(row, [ScoringTask(0, 100, 0)])
    # What was refused has left nothing behind.
    good = task(output=[3], frequency_penalty=1.0)
    assert check_against_numpy(row, [good], [0.25]) == 0


def test_one_vocabulary_serves_rows_of_different_sizes() -> None:
    for size in (100, 50_001, 100):
        row = random_row(size, "normal", seed=1)[None]
        assert check_against_numpy(row, [task(top_p=0.5)] * 3, [0.1, 0.5, 0.9]) == 0


def test_an_engine_on_the_native_kernels_samples_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("numpy looked at the logits")

    monkeypatch.setattr(NumpyVocabulary, "sample", refuse)
    monkeypatch.setattr(NumpyVocabulary, "score", refuse)
    llama().save_pretrained(tmp_path)
    params = SamplingParams(max_tokens=5, seed=1, top_p=0.9, logprobs=1, prompt_logprobs=1)
    with LLM(str(tmp_path), num_kv_blocks=8) as llm:
        output = llm.generate([[1, 2, 3]], params, use_tqdm=False)[0]
    assert len(output.outputs[0].token_ids) == 5
    assert output.prompt_logprobs is not None
