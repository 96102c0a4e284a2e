"""The C interface of recorded programs (``cpu/program_api.cpp``), typed for ctypes."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Final

from pagemill.kernels import native
from pagemill.kernels.row_ops_library import (
    ActivationStruct,
    AddStruct,
    AttentionStruct,
    NormStruct,
    QuantizedRowsStruct,
    QuantizeRowsStruct,
    RotaryWriteStruct,
    StepStruct,
)

_INT: Final = ctypes.c_int32
_LONG: Final = ctypes.c_int64
_FLOAT: Final = ctypes.c_float
_ADDRESS: Final = ctypes.c_void_p


class LinearSegmentStruct(ctypes.Structure):
    """``pagemill::LinearSegment`` of ``cpu/program.hpp``."""

    _fields_ = [("packed", _ADDRESS), ("floats", _ADDRESS), ("first_column", _INT)]


def _pointer(struct: type[ctypes.Structure]) -> type:
    return ctypes.POINTER(struct)


_SIGNATURES: Final[dict[str, tuple[type | None, list[type]]]] = {
    "pagemill_program_create": (_ADDRESS, [_ADDRESS]),
    "pagemill_program_destroy": (None, [_ADDRESS]),
    "pagemill_program_run": (None, [_ADDRESS, _pointer(StepStruct), _ADDRESS]),
    "pagemill_record_norm": (None, [_ADDRESS, _pointer(NormStruct), _INT]),
    "pagemill_record_activation": (None, [_ADDRESS, _pointer(ActivationStruct), _INT]),
    "pagemill_record_add": (None, [_ADDRESS, _pointer(AddStruct), _INT]),
    "pagemill_record_quantize_rows": (None, [_ADDRESS, _pointer(QuantizeRowsStruct), _INT]),
    "pagemill_record_embedding": (
        None,
        [_ADDRESS, _pointer(LinearSegmentStruct), _INT, _FLOAT, _ADDRESS, _LONG],
    ),
    "pagemill_record_rotary_write": (None, [_ADDRESS, _pointer(RotaryWriteStruct)]),
    "pagemill_record_attention": (None, [_ADDRESS, _pointer(AttentionStruct)]),
    "pagemill_record_linear": (
        None,
        [
            _ADDRESS,
            _pointer(LinearSegmentStruct),
            _INT,
            _ADDRESS,
            _LONG,
            _pointer(QuantizedRowsStruct),
            _ADDRESS,
            _ADDRESS,
            _LONG,
            _INT,
        ],
    ),
    "pagemill_record_gather_logits_rows": (
        None,
        [_ADDRESS, _ADDRESS, _LONG, _INT, _ADDRESS, _LONG],
    ),
    "pagemill_record_cap_logits": (None, [_ADDRESS, _FLOAT, _INT]),
}


@cache
def program_library() -> ctypes.CDLL:
    """The native library, its program functions declared."""
    return native.declare(native.library(), _SIGNATURES)
