"""The C interface of row ops, KV cache and attention (``cpu/row_ops_api.cpp``,
``cpu/attention_api.cpp``), typed for ctypes.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Final

from pagemill.kernels import native

_INT: Final = ctypes.c_int32
_LONG: Final = ctypes.c_int64
_FLOAT: Final = ctypes.c_float
_ADDRESS: Final = ctypes.c_void_p


class KVCacheStruct(ctypes.Structure):
    """``pagemill::KvCache`` of ``cpu/kv_cache.hpp``."""

    _fields_ = [
        ("blocks", _ADDRESS),
        ("type", _INT),
        ("num_blocks", _INT),
        ("block_size", _INT),
        ("num_kv_heads", _INT),
        ("head_dim", _INT),
        ("padded_head_dim", _INT),
        ("values_at", _LONG),
        ("key_scales_at", _LONG),
        ("value_scales_at", _LONG),
        ("head_bytes", _LONG),
        ("block_bytes", _LONG),
    ]


class StepStruct(ctypes.Structure):
    """``pagemill::Step`` of ``cpu/step.hpp``."""

    _fields_ = [
        ("num_tokens", _INT),
        ("num_sequences", _INT),
        ("num_logits", _INT),
        ("max_blocks", _INT),
        ("token_ids", _ADDRESS),
        ("positions", _ADDRESS),
        ("slot_mapping", _ADDRESS),
        ("query_start_loc", _ADDRESS),
        ("context_lens", _ADDRESS),
        ("block_tables", _ADDRESS),
        ("logits_indices", _ADDRESS),
    ]


class QuantizedRowsStruct(ctypes.Structure):
    """``pagemill::QuantizedRows`` of ``cpu/quantized_rows.hpp``; all 0: none."""

    _fields_ = [
        ("q", _ADDRESS),
        ("shifted", _ADDRESS),
        ("scales", _ADDRESS),
        ("sums", _ADDRESS),
        ("totals", _ADDRESS),
        ("padded_cols", _INT),
        ("wide", _ADDRESS),
        ("wide_scales", _ADDRESS),
        ("wide_sums", _ADDRESS),
        ("wide_cols", _INT),
    ]


class AttentionStruct(ctypes.Structure):
    """``pagemill::Attention`` of ``cpu/attention.hpp``."""

    _fields_ = [
        ("query", _ADDRESS),
        ("query_stride", _LONG),
        ("out", _ADDRESS),
        ("out_stride", _LONG),
        ("cache", KVCacheStruct),
        ("num_heads", _INT),
        ("window", _INT),
        ("scale", _FLOAT),
        ("soft_cap", _FLOAT),
        ("rounded", QuantizedRowsStruct),
    ]


class NormStruct(ctypes.Structure):
    """``pagemill::Norm``; this and the following are of ``cpu/row_ops.hpp``."""

    _fields_ = [
        ("x", _ADDRESS),
        ("x_stride", _LONG),
        ("residual", _ADDRESS),
        ("residual_stride", _LONG),
        ("weight", _ADDRESS),
        ("bias", _ADDRESS),
        ("out", _ADDRESS),
        ("out_stride", _LONG),
        ("num_cols", _INT),
        ("subtract_mean", _INT),
        ("eps", _FLOAT),
        ("rounded", QuantizedRowsStruct),
    ]


class ActivationStruct(ctypes.Structure):
    """``pagemill::Activation``."""

    _fields_ = [
        ("x", _ADDRESS),
        ("x_stride", _LONG),
        ("out", _ADDRESS),
        ("out_stride", _LONG),
        ("num_cols", _INT),
        ("kind", _INT),
        ("gated", _INT),
        ("rounded", QuantizedRowsStruct),
    ]


class AddStruct(ctypes.Structure):
    """``pagemill::Add``."""

    _fields_ = [
        ("a", _ADDRESS),
        ("a_stride", _LONG),
        ("b", _ADDRESS),
        ("b_stride", _LONG),
        ("out", _ADDRESS),
        ("out_stride", _LONG),
        ("num_cols", _INT),
    ]


class ScaleCapStruct(ctypes.Structure):
    """``pagemill::ScaleCap``."""

    _fields_ = [
        ("x", _ADDRESS),
        ("x_stride", _LONG),
        ("out", _ADDRESS),
        ("out_stride", _LONG),
        ("num_cols", _INT),
        ("scale", _FLOAT),
        ("cap", _FLOAT),
    ]


class EmbeddingStruct(ctypes.Structure):
    """``pagemill::Embedding``."""

    _fields_ = [
        ("table", _ADDRESS),
        ("type", _INT),
        ("num_cols", _INT),
        ("ids", _ADDRESS),
        ("out", _ADDRESS),
        ("out_stride", _LONG),
        ("scale", _FLOAT),
        ("accumulate", _INT),
    ]


class RotaryWriteStruct(ctypes.Structure):
    """``pagemill::RotaryWrite``."""

    _fields_ = [
        ("qkv", _ADDRESS),
        ("qkv_stride", _LONG),
        ("num_heads", _INT),
        ("query_norm", _ADDRESS),
        ("key_norm", _ADDRESS),
        ("norm_eps", _FLOAT),
        ("num_pairs", _INT),
        ("cos", _ADDRESS),
        ("sin", _ADDRESS),
        ("positions", _ADDRESS),
        ("slot_mapping", _ADDRESS),
        ("cache", KVCacheStruct),
    ]


class QuantizeRowsStruct(ctypes.Structure):
    """``pagemill::QuantizeRows``."""

    _fields_ = [
        ("x", _ADDRESS),
        ("x_stride", _LONG),
        ("num_cols", _INT),
        ("to", QuantizedRowsStruct),
    ]


_ROW_OPS: Final[dict[str, type[ctypes.Structure]]] = {
    "pagemill_norm": NormStruct,
    "pagemill_activation": ActivationStruct,
    "pagemill_add": AddStruct,
    "pagemill_scale_cap": ScaleCapStruct,
    "pagemill_embedding": EmbeddingStruct,
    "pagemill_rotary_write": RotaryWriteStruct,
    "pagemill_quantize_rows": QuantizeRowsStruct,
}
_CACHE: Final = ctypes.POINTER(KVCacheStruct)

_SIGNATURES: Final = {
    **{name: [ctypes.POINTER(struct), _LONG, _LONG] for name, struct in _ROW_OPS.items()},
    "pagemill_kv_cache": [_INT, _INT, _INT, _INT, _INT, _CACHE],
    "pagemill_move_blocks": [_ADDRESS, _CACHE, _INT, _ADDRESS, _LONG, _ADDRESS],
    "pagemill_attend": [
        ctypes.POINTER(AttentionStruct),
        ctypes.POINTER(StepStruct),
        _INT,
        _ADDRESS,
    ],
}


@cache
def row_ops_library() -> ctypes.CDLL:
    """The native library, these functions declared; only one returns something."""
    returns = {"pagemill_attend": _INT}
    signatures = {name: (returns.get(name), arguments) for name, arguments in _SIGNATURES.items()}
    return native.declare(native.library(), signatures)
