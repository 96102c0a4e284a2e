"""The C interface of sampling (``cpu/sampling_api.cpp``), typed for ctypes."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Final

from pagemill.kernels import native

_INT: Final = ctypes.c_int32
_LONG: Final = ctypes.c_int64
_DOUBLE: Final = ctypes.c_double
_ADDRESS: Final = ctypes.c_void_p


class TokenIdsStruct(ctypes.Structure):
    """``pagemill::TokenIds`` of ``cpu/vocab_adjust.hpp``; ids are int64."""

    _fields_ = [("ids", _ADDRESS), ("count", _LONG)]


class VocabAdjustmentsStruct(ctypes.Structure):
    """``pagemill::VocabAdjustments`` of ``cpu/vocab_adjust.hpp``."""

    _fields_ = [
        ("allowed", TokenIdsStruct),
        ("forbidden", TokenIdsStruct),
        ("biased", TokenIdsStruct),
        ("biases", _ADDRESS),
        ("prompt", TokenIdsStruct),
        ("output", TokenIdsStruct),
        ("repetition_penalty", _DOUBLE),
        ("frequency_penalty", _DOUBLE),
        ("presence_penalty", _DOUBLE),
    ]


class VocabTaskStruct(ctypes.Structure):
    """``pagemill::VocabTask``; this and the following are of ``cpu/vocab_sampler.hpp``."""

    _fields_ = [
        ("logits", _ADDRESS),
        ("adjustments", _ADDRESS),
        ("token_id", _LONG),
        ("kind", _INT),
        ("num_top", _INT),
        ("temperature", _DOUBLE),
        ("top_p", _DOUBLE),
        ("min_p", _DOUBLE),
        ("uniform", _DOUBLE),
        ("top_k", _LONG),
    ]


KIND_GREEDY: Final = 0
KIND_DRAW: Final = 1
KIND_SCORE: Final = 2


class VocabOutcomeStruct(ctypes.Structure):
    """``pagemill::VocabOutcome``."""

    _fields_ = [
        ("token_id", _LONG),
        ("rank", _LONG),
        ("logprob", _DOUBLE),
        ("num_top", _INT),
        ("status", _INT),
    ]


STATUS_BAD_TOKEN: Final = 3


class VocabBatchStruct(ctypes.Structure):
    """``pagemill::VocabBatch``."""

    _fields_ = [
        ("tasks", _ADDRESS),
        ("num_tasks", _LONG),
        ("vocab_size", _LONG),
        ("outcomes", _ADDRESS),
        ("top_ids", _ADDRESS),
        ("top_logprobs", _ADDRESS),
        ("max_top", _LONG),
        ("workspaces", _ADDRESS),
        ("num_workspaces", _LONG),
    ]


_SIGNATURES: Final[dict[str, tuple[type | None, list[type]]]] = {
    "pagemill_vocab_workspace_bytes": (_LONG, [_LONG]),
    "pagemill_vocab_run": (None, [ctypes.POINTER(VocabBatchStruct), _ADDRESS]),
    "pagemill_vocab_adjust": (
        _INT,
        [ctypes.POINTER(VocabAdjustmentsStruct), _ADDRESS, _LONG, _ADDRESS, _ADDRESS],
    ),
    "pagemill_uniforms": (None, [_ADDRESS, _ADDRESS, _LONG, _ADDRESS]),
}


@cache
def sampling_library() -> ctypes.CDLL:
    """The native library, its sampling functions declared."""
    return native.declare(native.library(), _SIGNATURES)
