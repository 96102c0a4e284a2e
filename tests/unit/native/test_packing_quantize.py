"""Float weights to 8 and 4 bits: within bounds, better than the plain range, and row by row."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from pagemill.kernels.packing import (
    GROUP_SIZES,
    PER_CHANNEL,
    FloatArray,
    NotFiniteError,
    Quantization,
    StoredRows,
    StoredType,
    pack_rows,
)
from tests.unit.native.packing_helpers import (
    assert_same_bits,
    float_rows,
    needs_library,
    rows_of,
)
from tests.unit.native.packing_helpers import expected as value_of
from tests.unit.native.row_ops_helpers import supported_isas, use_isa

pytestmark = needs_library

QUANTIZATIONS: list[Quantization] = ["int8", "int4"]
HALF_STEP = 2.0**-24  # of the smallest float16


def weights(num_rows: int, num_cols: int, seed: int = 0) -> torch.Tensor:
    """Like a language model's: normal, with a few outliers."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(num_rows, num_cols, generator=generator) * 0.03
    outliers = torch.rand(num_rows, num_cols, generator=generator) < 0.005
    return torch.where(outliers, values * 6, values)


def quantized(
    values: torch.Tensor, quantization: Quantization, group_size: int | None = None
) -> FloatArray:
    return pack_rows([float_rows(values)], quantization, group_size).dequantize()


def groups_of(values: FloatArray, group_size: int) -> list[FloatArray]:
    size = group_size or values.shape[1]
    return [values[:, at : at + size] for at in range(0, values.shape[1], size)]


def plain_range(values: FloatArray, group_size: int) -> FloatArray:
    """4 bits between the smallest and the largest weight, float16 scale and minimum."""
    result = []
    for group in groups_of(values, group_size):
        low, high = group.min(axis=1, keepdims=True), group.max(axis=1, keepdims=True)
        scale = ((high - low) / np.float32(15)).astype(np.float16).astype(np.float32)
        start = low.astype(np.float16).astype(np.float32)
        safe = np.where(scale == 0, 1, scale)
        level = np.clip(np.rint((group - start) / safe), 0, 15).astype(np.float32)
        result.append(level * scale + start)
    return np.concatenate(result, axis=1)


def squared_error(a: FloatArray, b: FloatArray) -> float:
    return float(np.square(a.astype(np.float64) - b).sum())


@pytest.mark.parametrize("group_size", GROUP_SIZES)
@pytest.mark.parametrize("num_cols", [31, 32, 160, 300])
def test_8_bits_are_off_by_at_most_half_a_step(group_size: int, num_cols: int) -> None:
    values = weights(21, num_cols)
    result = quantized(values, "int8", group_size)
    for group, back in zip(
        groups_of(values.numpy(), group_size), groups_of(result, group_size), strict=True
    ):
        largest = np.abs(group).max(axis=1, keepdims=True)
        assert (np.abs(group - back) <= largest / 127 * 0.505 + HALF_STEP).all()


@pytest.mark.parametrize("group_size", GROUP_SIZES)
@pytest.mark.parametrize("num_cols", [31, 32, 160, 300])
def test_4_bits_are_better_than_the_plain_range_in_every_group(
    group_size: int, num_cols: int
) -> None:
    values = weights(21, num_cols)
    result = quantized(values, "int4", group_size)
    plain = plain_range(values.numpy(), group_size)
    for group, ours, theirs in zip(
        groups_of(values.numpy(), group_size),
        groups_of(result, group_size),
        groups_of(plain, group_size),
        strict=True,
    ):
        for row in range(21):
            our_error = squared_error(ours[row], group[row])
            assert our_error <= squared_error(theirs[row], group[row]) * 1.0001 + 1e-12


@pytest.mark.parametrize("group_size", [16, 32, 64, 128])
def test_the_search_takes_a_sixth_off_the_squared_error(group_size: int) -> None:
    values = weights(256, 768)
    ours = squared_error(quantized(values, "int4", group_size), values.numpy())
    theirs = squared_error(plain_range(values.numpy(), group_size), values.numpy())
    assert ours <= 5 / 6 * theirs


@pytest.mark.parametrize(
    ("quantization", "group_size", "at_most"),
    [("int8", 32, 0.006), ("int8", 64, 0.008), ("int4", 32, 0.08), ("int4", 64, 0.10)],
)
def test_relative_error_of_normal_weights(
    quantization: Quantization, group_size: int, at_most: float
) -> None:
    values = torch.randn(128, 640, generator=torch.Generator().manual_seed(3)) * 0.02
    error = squared_error(quantized(values, quantization, group_size), values.numpy())
    assert (error / float(values.square().sum())) ** 0.5 <= at_most


def test_weights_that_4_bits_can_hold_are_kept_exactly() -> None:
    level = torch.randint(0, 16, (16, 64), generator=torch.Generator().manual_seed(1))
    level[:, ::32], level[:, 1::32] = 0, 15
    values = level * 0.125 - 1.0
    assert_same_bits(quantized(values, "int4"), values.numpy())


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_every_float_type_is_quantized_by_its_values(
    quantization: Quantization, dtype: torch.dtype
) -> None:
    values = weights(18, 70).to(dtype)
    assert_same_bits(quantized(values, quantization), quantized(values.float(), quantization))


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
@pytest.mark.parametrize("group_size", [16, 64, PER_CHANNEL])
def test_a_row_does_not_depend_on_its_neighbours(
    quantization: Quantization, group_size: int
) -> None:
    values = weights(35, 96)
    together = quantized(values, quantization, group_size)
    for row in (0, 15, 16, 34):
        alone = quantized(values[row : row + 1], quantization, group_size)
        assert_same_bits(alone, together[row : row + 1])


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
@pytest.mark.parametrize("group_size", GROUP_SIZES)
@pytest.mark.parametrize("scale", [1.0, 1e-7, 1e6])
def test_every_instruction_set_quantizes_to_the_same_bits(
    quantization: Quantization, group_size: int, scale: float
) -> None:
    values = weights(35, 150) * scale
    results = []
    for isa in supported_isas():
        with use_isa(isa):
            results.append(quantized(values, quantization, group_size))
    for result in results[1:]:
        assert_same_bits(result, results[0])


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
@pytest.mark.parametrize("value", [0.0, -0.75, 1e-8, 6e4])
def test_constant_rows(quantization: Quantization, value: float) -> None:
    values = torch.full((3, 64), value)
    result = quantized(values, quantization)
    np.testing.assert_allclose(result, values.numpy(), rtol=2.0**-10, atol=2 * HALF_STEP)


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1e6, 1e19, 3e38])
def test_weights_beyond_float16_saturate(quantization: Quantization, scale: float) -> None:
    values = torch.linspace(-1, 1, 64).repeat(2, 1) * scale
    result = quantized(values, quantization)
    assert np.isfinite(result).all()
    assert (np.abs(result) <= np.abs(values.numpy()).max() * 1.01 + 2 * HALF_STEP).all()
    if scale == 1e6 and quantization == "int8":
        np.testing.assert_allclose(result, values.numpy(), atol=scale / 250)


@settings(max_examples=100, deadline=None)
@given(
    values=arrays(
        np.float32,
        array_shapes(min_dims=2, max_dims=2, max_side=70),
        elements=st.floats(-(2.0**40), 2.0**40, width=32),
    ),
    quantization=st.sampled_from(QUANTIZATIONS),
    group_size=st.sampled_from(GROUP_SIZES),
)
def test_any_finite_weights_give_finite_ones(
    values: FloatArray, quantization: Quantization, group_size: int
) -> None:
    result = quantized(torch.from_numpy(values), quantization, group_size)
    assert result.shape == values.shape
    assert np.isfinite(result).all()


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_weights_that_are_not_finite_are_refused(
    quantization: Quantization, bad: float, num_threads: int
) -> None:
    values = weights(40, 33)
    values[38, 32] = bad
    with pytest.raises(NotFiniteError, match="infinite or not a number"):
        pack_rows([float_rows(values)], quantization, num_threads=num_threads)


def test_what_is_quantized_already_stays() -> None:
    blocks = rows_of(StoredType.Q5_1, 20)
    floats = float_rows(weights(5, blocks.num_cols))
    linear = pack_rows([blocks, floats], "int8", 64)
    assert linear.format == "Q5_1+int8-64"
    assert_same_bits(linear.dequantize()[:20], value_of(blocks))


@pytest.mark.parametrize(
    ("quantization", "group_size", "bits"),
    [("int8", 32, 8.5), ("int8", PER_CHANNEL, 8.0), ("int4", 32, 5.0), ("int4", 128, 4.25)],
)
def test_memory_of_quantized_weights(
    quantization: Quantization, group_size: int, bits: float
) -> None:
    linear = pack_rows([float_rows(weights(1024, 1536))], quantization, group_size)
    assert linear.num_bytes == pytest.approx(1024 * 1536 * bits / 8, rel=0.01)


def test_an_unknown_group_size_is_refused() -> None:
    with pytest.raises(ValueError, match=r"group_size must be one of \(16, .*\), got 48"):
        pack_rows([float_rows(weights(1, 96))], "int8", 48)


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_rows_are_quantized_in_the_order_asked_for(quantization: Quantization) -> None:
    rows = float_rows(weights(4, 96))
    reordered = StoredRows(rows.type, rows.data, 96, np.array([3, 1], dtype=np.int64))
    straight = pack_rows([rows], quantization).dequantize()
    assert_same_bits(pack_rows([reordered], quantization).dequantize(), straight[[3, 1]])
