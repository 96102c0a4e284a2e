"""What a recording consists of: handles of rows, the memory behind them, and ops that wait for it.

An op is recorded before it is known who reads its rows, as floats or in 8 bits, and how long they
are needed. `lay_out` finds that out once all are there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pagemill.kernels.row_ops_library import QuantizedRowsStruct

if TYPE_CHECKING:
    from pagemill.kernels.recorder import Recorder

QUANTIZED_COLUMNS = 32
"""Columns that share a scale in 8 bits."""
WIDE_BLOCK = 2048
"""Columns that share a scale in 14 bits."""
_WIDE_MULTIPLE = 64


class RowCount(IntEnum):
    """How many rows an op has in a step; the library's numbers."""

    TOKENS = 0
    LOGITS = 1


class StepArray(NamedTuple):
    """Stands for an array of the step, in the recording: its token ids or its positions."""

    recorder: Recorder
    is_positions: bool


class StepLogits(NamedTuple):
    """Stands for the logits of the step, ``[L, vocab_size]``."""

    recorder: Recorder
    vocab_size: int


class Buffer:
    """Memory that an op writes: an array ``[max_rows, width]`` for each of its parts.

    Args:
        parts: width and dtype of each.
    """

    def __init__(self, *parts: tuple[int, npt.DTypeLike]) -> None:
        self.parts = [(width, np.dtype(dtype)) for width, dtype in parts]
        self.arrays: list[npt.NDArray[Any]] = []
        """Empty until it is laid out, and where nobody reads it."""

    @property
    def addresses(self) -> list[int | None]:
        """Of the first row of each array; None where there is none."""
        return [array.ctypes.data for array in self.arrays] or [None] * len(self.parts)


class Rows:
    """A batch of rows to be computed, ``[T or L, width]``.

    Args:
        recorder: of the op that computes them.
        width: columns.
        count: how many rows.
        floats: where they are in float32, if an op updates rows in place.
    """

    def __init__(
        self, recorder: Recorder, width: int, count: RowCount, floats: Buffer | None = None
    ) -> None:
        self.recorder = recorder
        self.width = width
        self.count = count
        self.floats = Buffer((width, np.float32)) if floats is None else floats
        groups = -(-width // QUANTIZED_COLUMNS)
        self.padded_width = groups * QUANTIZED_COLUMNS
        blocks = -(-width // WIDE_BLOCK)
        self.wide_width = -(-width // _WIDE_MULTIPLE) * _WIDE_MULTIPLE
        self.in_bits = {
            8: Buffer(
                (self.padded_width, np.int8),
                (self.padded_width, np.uint8),
                (groups, np.float32),
                (2 * groups, np.int32),
                (groups, np.float32),
            ),
            14: Buffer((2 * self.wide_width, np.uint8), (blocks, np.float32), (blocks, np.int32)),
        }
        """As integers of so many bits."""
        self.bits_written: set[int] = set()
        """Which of them an op, the rows' own or another, writes if somebody reads them."""

    @property
    def address(self) -> int | None:
        """Of the first row in float32."""
        return self.floats.addresses[0]

    @property
    def array(self) -> npt.NDArray[np.float32]:
        """The rows in float32; laid out, and not shared where they are an input or an output."""
        return self.floats.arrays[0]

    def quantized_struct(self, bits: Collection[int] = (8, 14)) -> QuantizedRowsStruct:
        """Where the rows are in ``bits``; null pointers where nobody reads them so."""
        in_8, in_14 = (
            buffer.addresses if each in bits else [None] * len(buffer.parts)
            for each, buffer in self.in_bits.items()
        )
        return QuantizedRowsStruct(*in_8, self.padded_width, *in_14, self.wide_width)

    def __add__(self, other: Rows) -> Rows:
        return self.recorder.add(self, other)


class RecordedOp(NamedTuple):
    """One op of the program to be."""

    emit: Callable[[], None]
    """Adds it to the program; called when its buffers are laid out."""
    reads: Sequence[Buffer]
    writes: Sequence[Buffer]
    """What it can write; of these, those that are read, or the first if none is."""


def lay_out(ops: Sequence[RecordedOp], kept: Collection[Buffer], max_rows: int) -> None:
    """Give memory to what ``ops``, one after another, write and read.

    Buffers whose lives do not overlap share it.

    Args:
        ops: in the order of the program. Buffers that have memory already keep it for themselves.
        kept: what is still read after the last op.
        max_rows: rows of every buffer.
    """
    last_use = {buffer: i for i, op in enumerate(ops) for buffer in op.reads}
    last_use.update((buffer, len(ops)) for buffer in kept)
    free: dict[tuple[int, np.dtype[Any]], list[npt.NDArray[Any]]] = defaultdict(list)
    ending: dict[int, list[Buffer]] = defaultdict(list)
    for i, op in enumerate(ops):
        for buffer in [b for b in op.writes if b in last_use] or op.writes[:1]:
            if not buffer.arrays:
                # Zero pages on demand: rows that no step has cost no memory.
                buffer.arrays = [
                    free[part].pop() if free[part] else np.zeros((max_rows, part[0]), part[1])
                    for part in buffer.parts
                ]
                ending[last_use.get(buffer, i)].append(buffer)
        for buffer in ending[i]:
            for part, array in zip(buffer.parts, buffer.arrays, strict=True):
                free[part].append(array)
