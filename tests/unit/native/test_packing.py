"""What is stored comes back bit for bit, whatever was joined, reordered or padded."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagemill.kernels.packing import Quantization, StoredRows, StoredType, pack_rows
from tests.unit.native.packing_helpers import (
    BLOCK_TYPES,
    assert_same_bits,
    expected,
    float_rows,
    needs_library,
    random_blocks,
    rows_of,
)

pytestmark = needs_library

FLOAT_DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def name(value: object) -> str:
    return getattr(value, "name", str(value))


@pytest.mark.parametrize("stored", BLOCK_TYPES, ids=name)
@pytest.mark.parametrize("num_rows", [1, 15, 16, 17, 37, 64])
def test_blocks_are_worth_what_the_gguf_library_says(stored: StoredType, num_rows: int) -> None:
    rows = rows_of(stored, num_rows)
    linear = pack_rows([rows])
    assert linear.format == stored.name
    assert_same_bits(linear.dequantize(), expected(rows))


@pytest.mark.parametrize("stored", BLOCK_TYPES, ids=name)
def test_infinite_scales_of_a_damaged_file_come_back(stored: StoredType) -> None:
    rows = rows_of(stored, 2)
    rows.data[:] = 0xFF  # scales that are NaN, too
    with np.errstate(invalid="ignore"):
        wanted = expected(rows)
    np.testing.assert_array_equal(pack_rows([rows]).dequantize(), wanted)


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize(("num_rows", "num_cols"), [(1, 1), (16, 16), (33, 19), (50, 100)])
def test_floats_come_back(dtype: torch.dtype, num_rows: int, num_cols: int) -> None:
    torch.manual_seed(0)
    values = (torch.randn(num_rows, num_cols) * 10.0 ** torch.randint(-9, 4, (num_rows, 1))).to(
        dtype
    )
    linear = pack_rows([float_rows(values)])
    assert linear.segments[0].weight.is_float
    assert_same_bits(linear.dequantize(), values.float().numpy())


def test_every_float16_comes_back() -> None:
    patterns = np.arange(1 << 16, dtype=np.uint16)
    rows = StoredRows(StoredType.F16, patterns.view(np.uint8), 256)
    np.testing.assert_array_equal(pack_rows([rows]).dequantize(), expected(rows))


@pytest.mark.parametrize("stored", [StoredType.Q4_1, StoredType.Q5_0, StoredType.Q6_K], ids=name)
def test_rows_in_another_order_and_rows_of_zeros(stored: StoredType) -> None:
    order = np.array([*np.random.default_rng(1).permutation(29), -1, 3, -1], dtype=np.int64)
    rows = rows_of(stored, 29, order=order)
    values = pack_rows([rows]).dequantize()
    assert_same_bits(values + 0.0, expected(rows) + 0.0)  # a zero may be negative
    assert not values[29].any()


def test_float_rows_in_another_order() -> None:
    values = torch.randn(20, 7)
    order = np.array([4, -1, 19, 0], dtype=np.int64)
    stored = float_rows(values)
    linear = pack_rows([StoredRows(stored.type, stored.data, 7, order)])
    wanted = values[[4, 0, 19, 0]].clone()
    wanted[1] = 0.0
    assert_same_bits(linear.dequantize(), wanted.numpy())


def test_parts_of_one_type_become_one_segment_across_panels() -> None:
    parts = [rows_of(StoredType.Q4_0, n, seed=n) for n in (9, 3, 21)]
    linear = pack_rows(parts)
    assert [segment.weight.num_rows for segment in linear.segments] == [33]
    assert_same_bits(linear.dequantize(), np.concatenate([expected(part) for part in parts]))


def test_parts_of_several_types_become_segments_that_name_their_rows() -> None:
    parts = [
        StoredRows(stored, random_blocks(stored, count, 256), 256)
        for stored, count in [
            (StoredType.Q4_K, 17),
            (StoredType.Q6_K, 5),
            (StoredType.Q6_K, 4),
            (StoredType.Q8_0, 30),
        ]
    ]
    parts.append(float_rows(torch.randn(3, 256)))
    linear = pack_rows(parts)
    assert linear.format == "Q4_K+Q6_K+Q8_0+F32"
    spans = [(segment.first_row, segment.weight.num_rows) for segment in linear.segments]
    assert spans == [(0, 17), (17, 9), (26, 30), (56, 3)]
    assert (linear.num_rows, linear.num_cols) == (59, 256)
    assert_same_bits(linear.dequantize(), np.concatenate([expected(part) for part in parts]))


@pytest.mark.parametrize("stored", [*BLOCK_TYPES, StoredType.BF16], ids=name)
def test_single_rows_can_be_read(stored: StoredType) -> None:
    if stored.is_float:
        rows = float_rows(torch.randn(40, 33, dtype=torch.bfloat16))
    else:
        rows = rows_of(stored, 40)
    weight = pack_rows([rows]).segments[0].weight
    assert_same_bits(weight.dequantize([39, 0, 17, 17]), expected(rows)[[39, 0, 17, 17]])
    with pytest.raises(IndexError, match="rows 0 to 40 of 40"):
        weight.dequantize([0, 40])
    with pytest.raises(IndexError):
        weight.dequantize([-1])


@settings(max_examples=40, deadline=None)
@given(
    stored=st.sampled_from(BLOCK_TYPES),
    num_rows=st.integers(1, 100),
    num_threads=st.integers(1, 5),
    quantization=st.sampled_from([None, "int8", "int4"]),
)
def test_threads_do_not_change_a_bit(
    stored: StoredType, num_rows: int, num_threads: int, quantization: Quantization | None
) -> None:
    rows = rows_of(stored, num_rows)
    if quantization is not None:
        values = np.random.default_rng(0).standard_normal((num_rows, 96)).astype(np.float32)
        rows = float_rows(torch.from_numpy(values))
    one = pack_rows([rows], quantization)
    many = pack_rows([rows], quantization, num_threads=num_threads)
    assert_same_bits(many.dequantize(), one.dequantize())


@pytest.mark.parametrize("stored", BLOCK_TYPES, ids=name)
def test_memory_is_that_of_the_file(stored: StoredType) -> None:
    linear = pack_rows([StoredRows(stored, random_blocks(stored, 1000, 1536), 1536)])
    # 6-bit scales of the K-quants take 8 bits here; 1,000 rows are padded to 1,008.
    unpacked_scales = 1.03 if stored in (StoredType.Q4_K, StoredType.Q5_K) else 1.0
    assert linear.num_bytes <= unpacked_scales * 1.01 * 1000 * stored.row_bytes(1536)


def test_arrays_begin_at_cache_lines() -> None:
    struct = pack_rows([rows_of(StoredType.Q4_K, 3)]).segments[0].weight.struct
    for array in ("quants", "scales", "mins", "sub_scales", "sub_mins"):
        assert getattr(struct, array) % 64 == 0, array


def test_the_panel_of_a_4_bit_weight_is_laid_out_as_documented() -> None:
    """Line l: step 2 l low, step 2 l + 1 high; byte 4 r + j is row r, column j of the step."""
    block = np.zeros((20, 18), np.uint8)
    values = np.random.default_rng(0).integers(0, 16, (20, 32), dtype=np.uint8)
    block[:, 2:] = values[:, :16] | values[:, 16:] << 4
    packed = pack_rows([StoredRows(StoredType.Q4_0, block.ravel(), 32)])
    struct = packed.segments[0].weight.struct
    unit = np.frombuffer(ctypes.string_at(struct.quants, 512), np.uint8).reshape(2, 4, 16, 4)
    for row in range(20):
        lines = unit[row // 16, :, row % 16]
        steps = np.stack([lines & 15, lines >> 4], axis=1)
        np.testing.assert_array_equal(steps.ravel(), values[row])
    padding = unit[1, :, 4:]
    assert (padding == 0x88).all(), "rows that do not exist hold the zero point"


def test_rows_that_cannot_be_are_refused() -> None:
    raw = random_blocks(StoredType.Q4_0, 2, 64)
    with pytest.raises(ValueError, match="Q4_0 has no rows of 48 columns"):
        StoredRows(StoredType.Q4_0, raw, 48)
    with pytest.raises(ValueError, match="whole rows of 36 bytes"):
        StoredRows(StoredType.Q4_0, raw[:-1], 64)
    with pytest.raises(ValueError, match="order names rows 0 to 2 of 2"):
        StoredRows(StoredType.Q4_0, raw, 64, np.array([0, 2], dtype=np.int64))
    with pytest.raises(ValueError, match="order names rows -2 to 0 of 2"):
        StoredRows(StoredType.Q4_0, raw, 64, np.array([0, -2], dtype=np.int64))
    with pytest.raises(ValueError, match="share their number of columns"):
        pack_rows([rows_of(StoredType.Q4_0, 2), float_rows(torch.ones(2, 3))])
