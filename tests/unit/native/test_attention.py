"""Native attention against its definition, and the same bits whatever else is computed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from pagemill.kernels import native
from tests.unit.native.attention_cases import Case
from tests.unit.native.row_ops_helpers import KV_TYPES, supported_isas, use_isa

pytestmark = pytest.mark.skipif(native.load() is None, reason="no native library")


@pytest.fixture(params=supported_isas(), autouse=True)
def isa(request: pytest.FixtureRequest) -> Iterator[None]:
    with use_isa(request.param):
        yield


def check(case: Case, block_size: int = 16, tolerance: float = 2e-5) -> None:
    for b, rows in enumerate(case.run(case.context_lens, block_size=block_size)):
        torch.testing.assert_close(rows, case.expected(b), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("head_dim", [1, 12, 16, 40, 64, 80, 100, 128, 256])
def test_every_head_size_equals_the_definition(head_dim: int, kv_type: str) -> None:
    check(Case([19, 1, 33], 4, 2, head_dim, kv_type))


@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("block_size", [1, 3, 8, 16, 17, 24, 32, 100, 1024])
def test_every_block_size_equals_the_definition(block_size: int, kv_type: str) -> None:
    check(Case([270, 40], 2, 1, 20, kv_type), block_size)


@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(1, 1), (7, 7), (9, 3), (64, 1), (10, 2)])
def test_any_grouping_of_heads_equals_the_definition(num_heads: int, num_kv_heads: int) -> None:
    check(Case([37, 300], num_heads, num_kv_heads))


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 255, 256, 257, 511, 512, 513, 800])
def test_every_length_equals_the_definition(length: int) -> None:
    check(Case([length]))


@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("window", [1, 2, 16, 100, 256, 300, 5000])
def test_a_window_hides_what_lies_before_it(window: int, kv_type: str) -> None:
    check(Case([600, 3], 2, 2, window=window, kv_type=kv_type))


@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_a_soft_cap_bounds_the_scores(kv_type: str) -> None:
    check(Case([300, 3], 2, 2, soft_cap=1.5, window=70, kv_type=kv_type))


def test_scores_far_apart_neither_overflow_nor_vanish() -> None:
    case = Case([530])
    case.qkv[0][:, : case.num_heads] *= 200.0
    check(case, tolerance=1e-3)  # a rounding of scores of hundreds is a factor of weights
    case.qkv[0][:, : case.num_heads] *= 1e-30
    check(case)


CASES = {
    "grouped heads": Case([331, 70, 1, 18], head_dim=24),
    "one head each": Case([300, 17, 16], 2, 2, head_dim=40, seed=4),
    "window and cap": Case([331, 70, 1], window=50, soft_cap=2.0),
    "8 bits": Case([331, 70, 1], kv_type="int8", window=270),
    "16 bits": Case([331, 70, 1], 9, 3, kv_type="bfloat16"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_sequence_has_the_same_bits_in_any_company_and_blocks(case: Case) -> None:
    together = case.all_rows()
    for b, length in enumerate(case.context_lens):
        alone = replace(case, context_lens=[length])
        alone.qkv = [case.qkv[b]]
        for block_size in (1, 7, 16, 48, 512):
            (rows,) = alone.run([length], block_size=block_size, shuffle_seed=block_size)
            assert torch.equal(rows, together[b])


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 7, 15, 16, 17, 18, 31, 48, 63, 64, 65, 70])
def test_a_prompt_has_the_same_bits_in_chunks_of_any_size(case: Case, chunk: int) -> None:
    (length, *others) = case.context_lens
    whole = case.all_rows()[0]
    stops = [*range(0, length, chunk), length]
    # Single rows take long one by one: some from everywhere.
    steps = [(a, b) for a, b in pairwise(stops) if chunk > 4 or a % 23 < 2 * chunk or b == length]
    for start, stop in steps:
        rows = case.run([stop - start, *(1 for _ in others)], lens=[stop, *others])[0]
        assert torch.equal(rows, whole[start:stop])


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_decode_has_the_bits_of_the_same_row_in_prefill(case: Case) -> None:
    prefill = case.all_rows()
    decode = case.run([1] * len(case.context_lens))
    for row, rows in zip(decode, prefill, strict=True):
        assert torch.equal(row[0], rows[-1])


@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_parts_that_threads_share_have_the_same_bits(kv_type: str) -> None:
    library = native.load()
    assert library is not None
    case = Case([1500, 2100, 20], 4, 2, kv_type=kv_type)
    rows = [1, 50, 20]
    one = torch.cat(case.run(rows))
    for num_threads in (2, 3, 16, 1000):
        assert torch.equal(torch.cat(case.run(rows, num_threads=num_threads)), one)
    pool = native.ThreadPool(library, 3)
    try:
        for _ in range(5):
            assert torch.equal(torch.cat(case.run(rows, num_threads=3, pool=pool)), one)
    finally:
        pool.close()


COMMON = {
    "two groups": Case(
        [700, 600, 830, 520, 300, 810, 530],
        common=[(0, 0), (0, 512), (0, 600), (0, 300), (4, 0), (2, 800), (0, 512)],
    ),
    "more than an item holds": Case([1040 + n for n in range(40)], 9, 3, common=[(0, 1040)] * 40),
    "16 bits": Case([540] * 6, 9, 3, kv_type="bfloat16", common=[(0, 512)] * 6),
    "8 bits": Case([790] * 3, kv_type="int8", common=[(0, 770)] * 3, soft_cap=2.0),
    "some see it through a window": Case([290, 520, 280], window=300, common=[(0, 256)] * 3),
}


@pytest.mark.parametrize("name", COMMON)
def test_sequences_that_read_a_prefix_together_have_the_bits_of_each_alone(name: str) -> None:
    case = COMMON[name]
    rows = [1 + b % 2 for b in range(len(case.context_lens))]
    together = case.run(rows)
    # Items with several tiles come on top of one for each, so that this was a shared read.
    assert case.num_items > len(rows)
    for b, length in enumerate(case.context_lens):
        alone = replace(case, context_lens=[length], common=())
        alone.qkv = [case.qkv[b]]
        assert torch.equal(alone.run([rows[b]])[0], together[b])
        assert alone.num_items == 1
    for num_threads in (2, 7):
        for one, other in zip(case.run(rows, num_threads=num_threads), together, strict=True):
            assert torch.equal(one, other)


def test_a_shared_prefix_is_read_once_by_as_many_as_an_item_holds() -> None:
    """32 decodes of 3 query heads a key/value head are one item of 96 products."""
    case = Case([520] * 32, 9, 3, common=[(0, 512)] * 32)
    case.run([1] * 32)
    assert case.num_items == 2 + 32
    case = Case([520] * 33, 9, 3, common=[(0, 512)] * 33)
    case.run([1] * 33)
    assert case.num_items == 4 + 33


@pytest.mark.parametrize("block_size", [1, 8, 32, 128, 256])
def test_a_prefix_is_shared_by_its_blocks_whatever_their_size(block_size: int) -> None:
    case = Case([520, 700], common=[(0, 512)] * 2)
    case.run([1, 1], block_size=block_size)
    assert case.num_items == 2 + 2
    # Equal values in blocks of their own are read by each for itself.
    apart = Case([520, 700])
    apart.qkv = case.qkv
    apart.run([1, 1], block_size=block_size)
    assert apart.num_items == 2


def test_equal_tokens_of_different_values_are_averaged() -> None:
    """A sum that is known without a computation: equal keys weigh all values alike."""
    case = Case([400], 1, 1)
    case.qkv[0][:, 1] = 1.0
    case.qkv[0][:, 2] = torch.from_numpy(np.arange(400.0)).float()[:, None]
    (rows,) = case.all_rows()
    torch.testing.assert_close(rows[:, 0, 0], torch.arange(400) / 2)
