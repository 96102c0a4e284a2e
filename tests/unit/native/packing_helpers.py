"""Rows to pack, and what they are worth by the gguf library's own arithmetic."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize

from pagemill.kernels import native
from pagemill.kernels.huge_pages import ByteArray
from pagemill.kernels.packing import FloatArray, StoredRows, StoredType

needs_library = pytest.mark.skipif(native.load() is None, reason="no native library")

BLOCK_TYPES = [stored for stored in StoredType if not stored.is_float]
_HALVES_AT = {  # the bytes of a block where float16 scales lie
    StoredType.Q4_1: (0, 2),
    StoredType.Q5_1: (0, 2),
    StoredType.Q4_K: (0, 2),
    StoredType.Q5_K: (0, 2),
    StoredType.Q6_K: (208,),
}


def num_cols_of(stored: StoredType) -> int:
    """Not a multiple of 64, where the type allows it."""
    return 768 if stored.name.endswith("_K") else 32 * 5


def random_blocks(stored: StoredType, num_rows: int, num_cols: int, seed: int = 0) -> ByteArray:
    """Rows of every bit pattern, with scales that are numbers: negative, large and subnormal."""
    rng = np.random.default_rng(seed)
    raw = rng.integers(0, 256, num_rows * stored.row_bytes(num_cols), dtype=np.uint8)
    block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(stored)][1]
    blocks = raw.reshape(-1, block_bytes)
    for at in _HALVES_AT.get(stored, (0,)):
        scales = rng.standard_normal(len(blocks)) * 10.0 ** rng.integers(-7, 4, len(blocks))
        blocks[:, at : at + 2] = scales.astype(np.float16).view(np.uint8).reshape(-1, 2)
    return raw


def rows_of(stored: StoredType, num_rows: int, seed: int = 0, order: Any = None) -> StoredRows:
    num_cols = num_cols_of(stored)
    return StoredRows(stored, random_blocks(stored, num_rows, num_cols, seed), num_cols, order)


def expected(rows: StoredRows) -> FloatArray:
    """The matrix that the rows are, by the gguf library; NumPy for floats."""
    values: FloatArray
    if rows.type is StoredType.BF16:
        values = (rows.data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    elif rows.type.is_float:
        dtype = np.float32 if rows.type is StoredType.F32 else np.float16
        values = rows.data.view(dtype).astype(np.float32)
    else:
        wide = rows.data.reshape(1, -1)
        values = dequantize(wide.copy(), gguf.GGMLQuantizationType(rows.type))[0]
    values = values.reshape(-1, rows.num_cols)
    if rows.order is None:
        return values
    with_zeros = np.concatenate([values, np.zeros((1, rows.num_cols), np.float32)])
    return with_zeros[rows.order]


def assert_same_bits(actual: FloatArray, wanted: FloatArray) -> None:
    assert actual.shape == wanted.shape
    np.testing.assert_array_equal(actual.view(np.uint32), wanted.view(np.uint32))


def float_rows(values: torch.Tensor) -> StoredRows:
    return StoredRows.of_tensor(values.contiguous())
