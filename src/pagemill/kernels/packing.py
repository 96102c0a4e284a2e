"""Linear weights in the layout of the native kernels (``cpu/packing.hpp`` describes it).

What a GGUF file has quantized is moved bit by bit and runs as stored; float weights stay float, or
are quantized here to 8 or 4 bits. A matrix is given as rows wherever they lie in memory, so joining
tensors and reordering their rows copies nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import IntEnum
from itertools import groupby
from typing import Any, Final, Literal, Self

import numpy as np
import numpy.typing as npt
import torch

from pagemill.kernels import huge_pages, native
from pagemill.kernels.huge_pages import ByteArray
from pagemill.kernels.packing_library import (
    FloatWeightStruct,
    PackedWeightStruct,
    packing_library,
)

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
Quantization = Literal["int8", "int4"]

PANEL_ROWS: Final = 16
_ZERO_ROW: Final = -1

PER_CHANNEL: Final = 0
"""As a group size: one scale for each output row."""
GROUP_SIZES: Final = (16, 32, 64, 128, PER_CHANNEL)


class StoredType(IntEnum):
    """How a row's numbers are stored; GGUF's numbering."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    BF16 = 30

    @property
    def is_float(self) -> bool:
        """Whether nothing was quantized."""
        return self in _FLOATS

    def row_bytes(self, num_cols: int) -> int:
        """Bytes of a row of ``num_cols`` values, which must be whole blocks."""
        block_values, block_bytes = _BLOCKS[self]
        return num_cols // block_values * block_bytes


_BLOCKS: Final = {  # values and bytes of a block
    StoredType.F32: (1, 4),
    StoredType.F16: (1, 2),
    StoredType.BF16: (1, 2),
    StoredType.Q4_0: (32, 18),
    StoredType.Q4_1: (32, 20),
    StoredType.Q5_0: (32, 22),
    StoredType.Q5_1: (32, 24),
    StoredType.Q8_0: (32, 34),
    StoredType.Q4_K: (256, 144),
    StoredType.Q5_K: (256, 176),
    StoredType.Q6_K: (256, 210),
}
_FLOATS: Final = {StoredType.F32: 0, StoredType.BF16: 1, StoredType.F16: 2}  # the library's numbers
_OF_DTYPE: Final = {
    torch.float32: StoredType.F32,
    torch.bfloat16: StoredType.BF16,
    torch.float16: StoredType.F16,
}
_QUANTIZED: Final[dict[Quantization, int]] = {"int8": 1008, "int4": 1004}


@dataclass(frozen=True, slots=True)
class StoredRows:
    """The rows of a matrix ``[N, K]``, as bytes that somebody else owns."""

    type: StoredType
    data: ByteArray
    """One-dimensional: stored row after stored row."""
    num_cols: int
    order: IntArray | None = None
    """Row i of the matrix is the stored row ``order[i]``, or zeros where it is -1."""

    def __post_init__(self) -> None:
        row_bytes = self.type.row_bytes(self.num_cols)
        if self.num_cols <= 0 or self.num_cols % _BLOCKS[self.type][0]:
            raise ValueError(f"{self.type.name} has no rows of {self.num_cols} columns")
        if self.data.ndim != 1 or not self.data.flags.c_contiguous or len(self.data) % row_bytes:
            raise ValueError(f"data must be whole rows of {row_bytes} bytes, one after another")
        if self.order is not None and len(self.order):
            lowest, highest = int(self.order.min()), int(self.order.max())
            if lowest < _ZERO_ROW or highest >= len(self.data) // row_bytes:
                raise ValueError(f"order names rows {lowest} to {highest} of {self.num_stored}")

    @classmethod
    def of_tensor(cls, tensor: torch.Tensor) -> Self:
        """The rows of a contiguous ``[N, K]`` tensor of float32, bfloat16 or float16."""
        raw = tensor.detach().view(torch.uint8).numpy().reshape(-1)
        return cls(_OF_DTYPE[tensor.dtype], raw, tensor.shape[1])

    @property
    def num_stored(self) -> int:
        """How many rows ``data`` holds."""
        return len(self.data) // self.type.row_bytes(self.num_cols)

    @property
    def num_rows(self) -> int:
        """N."""
        return self.num_stored if self.order is None else len(self.order)

    def addresses(self) -> npt.NDArray[np.uintp]:
        """Where each row of the matrix begins; 0 for a row of zeros."""
        order = np.arange(self.num_stored) if self.order is None else self.order
        row_bytes = self.type.row_bytes(self.num_cols)
        addresses = self.data.ctypes.data + order.astype(np.int64) * row_bytes
        return np.where(order == _ZERO_ROW, 0, addresses).astype(np.uintp)


class PackedWeight:
    """A packed matrix ``[N, K]`` of one format, in a buffer of its own.

    Attributes:
        format: ``Q4_1``, ``F32``, ``int4-32`` (in groups of 32), ``int8-row`` …
        num_rows: N.
        num_cols: K.
        num_bytes: what it takes in memory, padding included.
        data: that memory.
        struct: what kernels read: `PackedWeightStruct`, or `FloatWeightStruct` if `is_float`.
    """

    def __init__(
        self,
        name: str,
        struct: PackedWeightStruct | FloatWeightStruct,
        lay_out: Callable[[int | None], int],
    ) -> None:
        self.num_bytes = lay_out(None)
        if self.num_bytes < 0:
            raise ValueError(f"no packed layout for {name}")
        self.data = huge_pages.weights.take(self.num_bytes)
        lay_out(self.data.ctypes.data)
        self.format = name
        self.struct = struct
        self.num_rows: int = struct.num_rows
        self.num_cols: int = struct.num_cols

    @classmethod
    def empty_float(cls, stored: StoredType, num_rows: int, num_cols: int) -> Self:
        """Panels of float32, bfloat16 or float16, not filled yet."""
        struct, lay_out = FloatWeightStruct(), packing_library().pagemill_layout_float
        args = (_FLOATS[stored], num_rows, num_cols)
        return cls(stored.name, struct, lambda at: int(lay_out(*args, at, struct)))

    @classmethod
    def empty_packed(
        cls, name: str, type_number: int, group_size: int, num_rows: int, num_cols: int
    ) -> Self:
        """Panels of a quantized type, not filled yet."""
        struct, lay_out = PackedWeightStruct(), packing_library().pagemill_layout_packed
        args = (type_number, group_size, num_rows, num_cols)
        return cls(name, struct, lambda at: int(lay_out(*args, at, struct)))

    @property
    def is_float(self) -> bool:
        """Whether nothing was quantized."""
        return isinstance(self.struct, FloatWeightStruct)

    @property
    def reads_rows_in(self) -> int:
        """Bits of the integers that it is multiplied with: 8 or 14; 0: floats."""
        if isinstance(self.struct, FloatWeightStruct):
            return 0
        return 14 if self.struct.wide else 8

    def dequantize(self, rows: Sequence[int] | IntArray | None = None) -> FloatArray:
        """All rows, or those named, as float32."""
        ids = np.arange(self.num_rows) if rows is None else np.asarray(rows)
        ids = np.ascontiguousarray(ids, dtype=np.int64)
        if len(ids) and not 0 <= ids.min() <= ids.max() < self.num_rows:
            raise IndexError(f"rows {ids.min()} to {ids.max()} of {self.num_rows}")
        out = np.empty((len(ids), self.num_cols), np.float32)
        library = packing_library()
        is_float = self.is_float
        read = library.pagemill_dequantize_float if is_float else library.pagemill_dequantize_packed
        read(self.struct, ids.ctypes.data, len(ids), out.ctypes.data)
        return out


def empty_weight(name: str, num_rows: int, num_cols: int) -> PackedWeight:
    """Panels of a format by its name (`PackedWeight.format`), not filled yet.

    Raises ValueError where there is no such format, or it has no rows of ``num_cols`` columns.
    """
    base, _, group = name.partition("-")
    size = (num_rows, num_cols)
    for quantization, number in _QUANTIZED.items():
        if base == quantization:
            group_size = PER_CHANNEL if group == "row" else int(group)
            return PackedWeight.empty_packed(name, number, group_size, *size)
    if name not in StoredType.__members__:
        raise ValueError(f"there is no format {name}")
    stored = StoredType[name]
    if stored.is_float:
        return PackedWeight.empty_float(stored, *size)
    return PackedWeight.empty_packed(name, stored, PER_CHANNEL, *size)


@dataclass(frozen=True, slots=True)
class Segment:
    """Output rows ``first_row`` to ``first_row + weight.num_rows`` of a linear map."""

    first_row: int
    weight: PackedWeight


class PackedLinear:
    """A matrix ``[N, K]`` in segments, each of one format, rows one after another."""

    def __init__(self, weights: Sequence[PackedWeight]) -> None:
        self.segments: list[Segment] = []
        self.num_rows = 0
        for weight in weights:
            self.segments.append(Segment(self.num_rows, weight))
            self.num_rows += weight.num_rows
        self.num_cols = weights[0].num_cols

    @property
    def num_bytes(self) -> int:
        """What it takes in memory, padding included."""
        return sum(segment.weight.num_bytes for segment in self.segments)

    @property
    def format(self) -> str:
        """The formats of its segments: ``Q4_K``, ``Q4_K+Q6_K``."""
        return "+".join(segment.weight.format for segment in self.segments)

    def dequantize(self) -> FloatArray:
        """All rows as float32."""
        return np.concatenate([segment.weight.dequantize() for segment in self.segments])


class NotFiniteError(ValueError):
    """A weight to be quantized is infinite or not a number."""


def default_group_size(quantization: Quantization) -> int:
    """The group size of the fastest kernels that this machine can run.

    Tiles of AMX multiply int8 weights at a rate that scales within a sum would spoil, fast enough
    for rows of 14 bits. Vectors need twice as long for those as for 8 bits in groups of 32.
    """
    library = native.load()
    has_tiles = library is not None and library.isa == "amx"
    return PER_CHANNEL if quantization == "int8" and has_tiles else 32


def pack_rows(
    parts: Sequence[StoredRows],
    quantization: Quantization | None = None,
    group_size: int | None = None,
    *,
    num_threads: int = 1,
) -> PackedLinear:
    """Join ``parts``; neighbours of the same type become one segment.

    Reads the parts' memory and keeps none of it.

    Args:
        parts: rows of one K, in the order of the outputs.
        quantization: what becomes of float rows; those quantized already stay as they are. None:
            floats stay, too. ``int8`` is symmetric and rounds to nearest; ``int4`` is affine, its
            scale and minimum searched for the least squared error.
        group_size: columns that share a scale, one of `GROUP_SIZES`; None: that of
            `default_group_size`.
        num_threads: how many work on it.

    Raises `NotFiniteError`, and ValueError for a group size that kernels do not know.
    """
    if len({part.num_cols for part in parts}) != 1:
        raise ValueError("the parts of a linear map must share their number of columns")
    size = group_size
    if quantization is not None and size is None:
        size = default_group_size(quantization)
    if size is not None and size not in GROUP_SIZES:
        raise ValueError(f"group_size must be one of {GROUP_SIZES}, got {size}")
    weights = []
    for stored, group in groupby(parts, key=lambda part: part.type):
        rows = _Rows(np.concatenate([part.addresses() for part in group]), parts[0].num_cols)
        if not stored.is_float:
            weights.append(_pack_blocks(stored, rows, num_threads))
        elif quantization is None:
            weights.append(_pack_floats(stored, rows, num_threads))
        else:
            assert size is not None
            weights.append(_quantize(stored, rows, quantization, size, num_threads))
    return PackedLinear(weights)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of one type, ready for the library."""

    addresses: npt.NDArray[np.uintp]
    num_cols: int

    @property
    def num_rows(self) -> int:
        return len(self.addresses)

    def fill(
        self, weight: PackedWeight, num_threads: int, function: Callable[..., Any], *first: int
    ) -> list[Any]:
        """Call ``function`` for ranges of panels that make up the whole; return its answers."""
        num_panels = -(-self.num_rows // PANEL_ROWS)
        cuts = np.linspace(0, num_panels, min(num_threads, num_panels) + 1).astype(int).tolist()

        def fill_range(begin: int, end: int) -> Any:
            return function(*first, self.addresses.ctypes.data, begin, end, weight.struct)

        if len(cuts) == 2:
            return [fill_range(*cuts)]
        with ThreadPoolExecutor(len(cuts) - 1) as pool:  # the library runs without the GIL
            return list(pool.map(fill_range, cuts[:-1], cuts[1:]))


def _pack_blocks(stored: StoredType, rows: _Rows, num_threads: int) -> PackedWeight:
    size = (rows.num_rows, rows.num_cols)
    weight = PackedWeight.empty_packed(stored.name, stored, PER_CHANNEL, *size)
    rows.fill(weight, num_threads, packing_library().pagemill_pack_blocks, stored)
    return weight


def _pack_floats(stored: StoredType, rows: _Rows, num_threads: int) -> PackedWeight:
    weight = PackedWeight.empty_float(stored, rows.num_rows, rows.num_cols)
    rows.fill(weight, num_threads, packing_library().pagemill_pack_floats)
    return weight


def _quantize(
    stored: StoredType, rows: _Rows, quantization: Quantization, group_size: int, num_threads: int
) -> PackedWeight:
    name = f"{quantization}-{'row' if group_size == PER_CHANNEL else group_size}"
    size = (rows.num_rows, rows.num_cols)
    weight = PackedWeight.empty_packed(name, _QUANTIZED[quantization], group_size, *size)
    quantize = packing_library().pagemill_quantize
    if not all(rows.fill(weight, num_threads, quantize, _FLOATS[stored])):
        raise NotFiniteError("a weight is infinite or not a number")
    return weight
