"""The C interface of packing (``cpu/packing_api.cpp``), typed for ctypes."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Final

from pagemill.kernels import native


class PackedWeightStruct(ctypes.Structure):
    """``pagemill::PackedWeight`` of ``cpu/packing.hpp``."""

    _fields_ = [
        ("bits", ctypes.c_int32),
        ("group_size", ctypes.c_int32),
        ("super_size", ctypes.c_int32),
        ("affine", ctypes.c_int32),
        ("zero", ctypes.c_int32),
        ("wide", ctypes.c_int32),
        ("num_rows", ctypes.c_int32),
        ("num_cols", ctypes.c_int32),
        ("padded_rows", ctypes.c_int32),
        ("padded_cols", ctypes.c_int32),
        ("quants", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("mins", ctypes.c_void_p),
        ("sub_scales", ctypes.c_void_p),
        ("sub_mins", ctypes.c_void_p),
    ]


class FloatWeightStruct(ctypes.Structure):
    """``pagemill::FloatWeight`` of ``cpu/packing.hpp``."""

    _fields_ = [
        ("type", ctypes.c_int32),
        ("num_rows", ctypes.c_int32),
        ("num_cols", ctypes.c_int32),
        ("padded_rows", ctypes.c_int32),
        ("values", ctypes.c_void_p),
    ]


_INT: Final = ctypes.c_int32
_LONG: Final = ctypes.c_int64
_ADDRESS: Final = ctypes.c_void_p
_PACKED: Final = ctypes.POINTER(PackedWeightStruct)
_FLOAT: Final = ctypes.POINTER(FloatWeightStruct)

_SIGNATURES: Final = {
    "pagemill_layout_packed": (_LONG, [_INT, _INT, _INT, _INT, _ADDRESS, _PACKED]),
    "pagemill_layout_float": (_LONG, [_INT, _INT, _INT, _ADDRESS, _FLOAT]),
    "pagemill_pack_blocks": (None, [_INT, _ADDRESS, _INT, _INT, _PACKED]),
    "pagemill_pack_floats": (None, [_ADDRESS, _INT, _INT, _FLOAT]),
    "pagemill_quantize": (_INT, [_INT, _ADDRESS, _INT, _INT, _PACKED]),
    "pagemill_dequantize_packed": (None, [_PACKED, _ADDRESS, _LONG, _ADDRESS]),
    "pagemill_dequantize_float": (None, [_FLOAT, _ADDRESS, _LONG, _ADDRESS]),
}


@cache
def packing_library() -> ctypes.CDLL:
    """The native library, its packing functions declared."""
    return native.declare(native.library(), _SIGNATURES)
