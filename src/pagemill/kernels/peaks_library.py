"""The loops that find what the machine allows (``cpu/peaks_api.cpp``), typed for ctypes.

They run with the instruction set in use, on the threads of a pool.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pagemill.kernels import native
from pagemill.kernels.native import ThreadPool

READ_MULTIPLE_BYTES: Final = 256
"""``kPeakReadBytes`` of ``cpu/peaks.hpp``."""

_ADDRESS: Final = ctypes.c_void_p
_COUNT: Final = ctypes.c_int64
_LOOP: Final[list[type]] = [_ADDRESS, ctypes.c_int32, _COUNT]
_BYTE_OPERANDS: Final[list[type]] = [ctypes.c_uint8, ctypes.c_int8]
_SIGNATURES: Final[dict[str, tuple[type | None, list[type]]]] = {
    "pagemill_peak_read": (ctypes.c_uint32, [_ADDRESS, _ADDRESS, _COUNT]),
    "pagemill_peak_multiply_bytes": (
        _COUNT,
        [*_LOOP, *_BYTE_OPERANDS, ctypes.POINTER(ctypes.c_uint32)],
    ),
    "pagemill_peak_multiply_floats": (
        _COUNT,
        [*_LOOP, ctypes.c_float, ctypes.c_float, ctypes.POINTER(ctypes.c_double)],
    ),
}


class Products(NamedTuple):
    """What a multiplying loop did."""

    num_macs: int
    """Multiply-adds."""
    checksum: float
    """The sum of all products; of bytes, modulo 2^32."""


def read_words(pool: ThreadPool, data: npt.NDArray[np.uint32]) -> int:
    """Sum of contiguous 32-bit words, modulo 2^32.

    Raises:
        ValueError: ``data`` is not contiguous, or no multiple of `READ_MULTIPLE_BYTES` long.
    """
    if not data.flags.c_contiguous or data.nbytes % READ_MULTIPLE_BYTES:
        raise ValueError(
            f"data must be contiguous, in multiples of {READ_MULTIPLE_BYTES} bytes; "
            f"got {data.nbytes} bytes"
        )
    return int(_library().pagemill_peak_read(pool.handle, data.ctypes.data, data.nbytes))


def multiply_bytes(
    pool: ThreadPool, num_chunks: int, rounds: int, weight: int = 3, activation: int = -5
) -> Products:
    """Multiply ``weight`` (0 to 127) by ``activation`` (-128 to 127), again and again.

    Args:
        pool: whose threads share the chunks.
        num_chunks: pieces of work.
        rounds: passes of the loop in a chunk.
        weight: the unsigned factor.
        activation: the signed one.
    """
    checksum = ctypes.c_uint32()
    num_macs = _library().pagemill_peak_multiply_bytes(
        pool.handle, num_chunks, rounds, weight, activation, checksum
    )
    return Products(num_macs, checksum.value)


def multiply_floats(
    pool: ThreadPool, num_chunks: int, rounds: int, weight: float = 3.0, activation: float = 0.5
) -> Products:
    """The same in float32; exact up to some 100,000 rounds of small factors."""
    checksum = ctypes.c_double()
    num_macs = _library().pagemill_peak_multiply_floats(
        pool.handle, num_chunks, rounds, weight, activation, checksum
    )
    return Products(num_macs, checksum.value)


@cache
def _library() -> ctypes.CDLL:
    return native.declare(native.library(), _SIGNATURES)
