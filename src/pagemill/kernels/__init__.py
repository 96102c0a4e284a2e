"""The ops that the layers are written in, one name each.

Layers call them through this package, so that a faster implementation of an op takes its place
here and nowhere else. What runs is told by `description`.
"""

from __future__ import annotations

import torch

from pagemill.kernels.attention_plan import AttentionLayout
from pagemill.kernels.reference import (
    add_rms_norm,
    embedding,
    gelu,
    gelu_and_mul,
    gelu_tanh,
    gelu_tanh_and_mul,
    layer_norm,
    linear,
    rms_norm,
    rotary_write_kv,
    silu,
    silu_and_mul,
    soft_cap,
    write_kv,
)
from pagemill.kernels.reference_attention import paged_attention

__all__ = [
    "AttentionLayout",
    "add_rms_norm",
    "description",
    "embedding",
    "gelu",
    "gelu_and_mul",
    "gelu_tanh",
    "gelu_tanh_and_mul",
    "layer_norm",
    "linear",
    "paged_attention",
    "rms_norm",
    "rotary_write_kv",
    "silu",
    "silu_and_mul",
    "soft_cap",
    "write_kv",
]


def description() -> str:
    """Which implementation of the ops is in use, for ``pagemill info``."""
    return f"pytorch reference kernels, {torch.get_num_threads()} threads"
