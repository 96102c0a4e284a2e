"""The native linear maps, recorded as a program of one op, against the plain arithmetic."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
import torch

from pagemill.kernels import native
from pagemill.kernels.native import NativeLibrary, ThreadPool
from pagemill.kernels.packing import PER_CHANNEL, PackedLinear, StoredRows, StoredType, pack_rows
from pagemill.kernels.recorded import Rows
from pagemill.kernels.recorder import Recorder
from pagemill.kernels.row_ops_library import StepStruct
from tests.unit.native.packing_helpers import random_blocks

FloatArray = npt.NDArray[np.float32]
QUANTIZED = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]
MAX_ROWS = 300


@pytest.fixture(scope="module")
def library() -> NativeLibrary:
    loaded = native.load()
    assert loaded is not None, native.unavailable_reason()
    return loaded


@pytest.fixture(params=["amx", "avx512", "avx2", "portable"], autouse=True)
def isa(request: pytest.FixtureRequest, library: NativeLibrary) -> Iterator[str]:
    if request.param not in library.supported_isas:
        pytest.skip(f"this machine cannot run {request.param}")
    library.select_isa(request.param)
    yield request.param
    library.select_isa("")


class OneLinear:
    """A program that computes one linear map of the rows that are put into its input."""

    def __init__(
        self, library: NativeLibrary, weight: PackedLinear, bias: torch.Tensor | None, threads: int
    ) -> None:
        self._pool = ThreadPool(library, threads)
        self._recorder = Recorder(self._pool, MAX_ROWS)
        self._x = self._recorder.input(weight.num_cols)
        out = self._recorder.linear(self._x, weight, bias)
        assert isinstance(out, Rows)
        self._recorder.finish(out)
        self._out = out

    def __call__(self, x: FloatArray) -> FloatArray:
        self._x.array[: len(x)] = x
        self._out.array[:] = np.nan
        self._recorder.run(StepStruct(num_tokens=len(x)), None)
        assert np.isnan(self._out.array[len(x) :]).all(), "rows beyond the batch were written"
        result: FloatArray = self._out.array[: len(x)].copy()
        return result

    def close(self) -> None:
        self._recorder.close()
        self._pool.close()


def quantize_like_the_kernel(x: FloatArray) -> FloatArray:
    """Rows after rounding to 8 bits in groups of 32 columns."""
    padded = np.pad(x, ((0, 0), (0, -x.shape[1] % 32)))
    groups = padded.reshape(len(x), -1, 32)
    scale = np.abs(groups).max(-1, keepdims=True) / np.float32(127)
    q = np.rint(groups * np.where(scale > 0, 1 / np.maximum(scale, 1e-30), 0))
    rounded: FloatArray = (q * scale).reshape(padded.shape)[:, : x.shape[1]]
    return rounded


def in_14_bits_like_the_kernel(x: FloatArray) -> FloatArray:
    """Rows after rounding to 14 bits in blocks of 2048 columns."""
    padded = np.pad(x, ((0, 0), (0, -x.shape[1] % 2048)))
    wide_blocks = padded.reshape(len(x), -1, 2048)
    scale = np.abs(wide_blocks).max(-1, keepdims=True) / np.float32(8191)
    q = np.rint(wide_blocks * np.where(scale > 0, 1 / np.maximum(scale, 1e-30), 0))
    rounded: FloatArray = (q * scale).reshape(padded.shape)[:, : x.shape[1]]
    return rounded


def blocks(name: str, num_rows: int, num_cols: int, seed: int) -> StoredRows:
    stored = StoredType[name]
    return StoredRows(stored, random_blocks(stored, num_rows, num_cols, seed), num_cols)


@pytest.mark.parametrize("name", QUANTIZED)
@pytest.mark.parametrize(("num_rows", "num_cols"), [(1, 256), (16, 512), (33, 768), (100, 256)])
def test_a_quantized_map_is_the_product_with_its_dequantized_weights(
    library: NativeLibrary, name: str, num_rows: int, num_cols: int
) -> None:
    weight = pack_rows([blocks(name, num_rows, num_cols, 1)])
    bias = torch.linspace(-1, 1, num_rows)
    x = np.random.default_rng(2).standard_normal((70, num_cols), np.float32)
    expected = quantize_like_the_kernel(x).astype(np.float64) @ weight.dequantize().T.astype(
        np.float64
    )
    scale = np.abs(expected).max()
    linear = OneLinear(library, weight, bias, threads=2)
    for count in (1, 2, 3, 4, 5, 7, 31, 70):
        error = np.abs(linear(x[:count]) - expected[:count] - bias.numpy())
        assert error.max() < 1e-5 * (scale + 1)
    linear.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("num_rows", "num_cols"), [(1, 1), (17, 33), (48, 64), (100, 57)])
def test_a_float_map_is_the_product_in_float32(
    library: NativeLibrary, dtype: torch.dtype, num_rows: int, num_cols: int
) -> None:
    dense = torch.randn(num_rows, num_cols, generator=torch.Generator().manual_seed(1)).to(dtype)
    x = np.random.default_rng(2).standard_normal((70, num_cols), np.float32)
    expected = x.astype(np.float64) @ dense.double().numpy().T
    linear = OneLinear(library, pack_rows([StoredRows.of_tensor(dense)]), None, threads=2)
    for count in (1, 2, 3, 8, 9, 15, 70):
        assert np.abs(linear(x[:count]) - expected[:count]).max() < 1e-4
    linear.close()


def weights() -> Iterator[tuple[str, PackedLinear]]:
    for name in QUANTIZED:
        yield name, pack_rows([blocks(name, 50, 512, 3)])
    dense = torch.randn(50, 512, generator=torch.Generator().manual_seed(3))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        yield str(dtype), pack_rows([StoredRows.of_tensor(dense.to(dtype))])
    for quantization in ("int8", "int4"):
        for group_size in (16, 32, 64, 128, 0):
            rows = [StoredRows.of_tensor(dense)]
            yield f"{quantization}-{group_size}", pack_rows(rows, quantization, group_size)
    yield "mixed", pack_rows([blocks("Q4_K", 32, 512, 4), blocks("Q6_K", 18, 512, 5)])


def test_a_row_has_the_same_bits_in_every_batch_and_on_any_number_of_threads(
    library: NativeLibrary,
) -> None:
    x = np.random.default_rng(6).standard_normal((MAX_ROWS, 512), np.float32)
    for name, weight in weights():
        single, double = (OneLinear(library, weight, None, threads) for threads in (1, 2))
        whole = double(x)
        for count in range(1, 71):
            assert np.array_equal(double(x[:count]), whole[:count]), (name, count)
        for row in (0, 1, 69, 255, 256, MAX_ROWS - 1):
            assert np.array_equal(single(x[row : row + 1])[0], whole[row]), (name, row)
        single.close()
        double.close()


@pytest.mark.parametrize("quantization", ["int8", "int4"])
@pytest.mark.parametrize("group_size", [16, 32, 64, 128, 0])
def test_weights_quantized_from_floats_multiply_as_they_dequantize(
    library: NativeLibrary, quantization: str, group_size: int
) -> None:
    dense = torch.randn(40, 384, generator=torch.Generator().manual_seed(8))
    rows = [StoredRows.of_tensor(dense)]
    weight = pack_rows(rows, "int8" if quantization == "int8" else "int4", group_size)
    x = np.random.default_rng(9).standard_normal((5, 384), np.float32)
    is_wide = quantization == "int8" and group_size == 0
    rounded = in_14_bits_like_the_kernel(x) if is_wide else quantize_like_the_kernel(x)
    expected = rounded.astype(np.float64) @ weight.dequantize().T
    linear = OneLinear(library, weight, None, threads=1)
    assert np.abs(linear(x) - expected).max() < 1e-4
    linear.close()


def test_columns_that_fill_no_whole_unit_are_padded_with_nothing(library: NativeLibrary) -> None:
    dense = torch.randn(20, 50, generator=torch.Generator().manual_seed(8))
    x = np.random.default_rng(9).standard_normal((3, 50), np.float32)
    for quantization in ("int8", "int4"):
        rows = [StoredRows.of_tensor(dense)]
        weight = pack_rows(rows, "int8" if quantization == "int8" else "int4", 32)
        expected = quantize_like_the_kernel(x).astype(np.float64) @ weight.dequantize().T
        linear = OneLinear(library, weight, None, threads=1)
        assert np.abs(linear(x) - expected).max() < 1e-4
        linear.close()


@pytest.mark.parametrize(
    ("num_rows", "num_cols"), [(1, 1), (32, 33), (20, 50), (40, 576), (33, 4190), (64, 4190)]
)
def test_weights_with_one_scale_a_row_multiply_rows_of_14_bits(
    library: NativeLibrary, num_rows: int, num_cols: int
) -> None:
    dense = torch.randn(num_rows, num_cols, generator=torch.Generator().manual_seed(8))
    dense[0] *= 100
    weight = pack_rows([StoredRows.of_tensor(dense)], "int8", PER_CHANNEL)
    bias = torch.linspace(-1, 1, num_rows)
    x = np.random.default_rng(9).standard_normal((70, num_cols), np.float32)
    x[:, 0] *= 50
    x[3] = 0
    expected = in_14_bits_like_the_kernel(x).astype(np.float64) @ weight.dequantize().T
    linear = OneLinear(library, weight, bias, threads=2)
    whole = linear(x)
    error = np.abs(whole - expected - bias.numpy()) / (np.abs(expected).max(0) + 1)
    assert error.max() < 1e-6
    for count in range(1, 70):
        assert np.array_equal(linear(x[:count]), whole[:count])
    library.select_isa("portable")
    assert np.abs(linear(x) - whole).max() < 1e-6 * np.abs(whole).max()
    linear.close()


def test_the_largest_numbers_of_8_and_14_bits_overflow_no_sum(library: NativeLibrary) -> None:
    """2048 products of 127 and 8191, and then as many again."""
    num_cols = 4096
    for sign in (1.0, -1.0):
        weight = pack_rows([StoredRows.of_tensor(torch.full((32, num_cols), 2.0))], "int8", 0)
        x = np.full((20, num_cols), sign, np.float32)
        linear = OneLinear(library, weight, None, threads=1)
        for count in (1, 3, 6, 20):
            assert np.allclose(linear(x[:count]), sign * 2 * num_cols, rtol=1e-3)
        linear.close()


@pytest.mark.parametrize("wrong", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_stays_so(library: NativeLibrary, wrong: float) -> None:
    x = np.ones((20, 512), np.float32)
    x[7, 100] = wrong
    for name, weight in weights():
        linear = OneLinear(library, weight, None, threads=1)
        for count in (8, 20):
            finite = np.isfinite(linear(x[:count])).all(1)
            assert np.flatnonzero(~finite).tolist() == [7], name
        linear.close()
