"""The ops that the layers are written in, one name each.

Layers call them through this package and nowhere else. Given tensors, an op is computed by the
plain PyTorch of `reference`; given the handles of a `Recorder`, it is recorded into a program of
native kernels. So a model's code is written once.

    T  rows of the batch      H  hidden size      I  intermediate size
    Hq query heads            Hkv key/value heads D  head dimension
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, cast

import numpy as np
import numpy.typing as npt
import torch

from pagemill.kernels import native, reference, reference_attention
from pagemill.kernels.attention_plan import AttentionLayout
from pagemill.kernels.packing import PackedLinear
from pagemill.kernels.recorded import Rows, StepArray, StepLogits
from pagemill.kernels.row_ops_library import KVCacheStruct

__all__ = [
    "AttentionLayout",
    "HeadShape",
    "LayerCache",
    "LinearWeight",
    "act",
    "act_and_mul",
    "add_rms_norm",
    "description",
    "embedding",
    "layer_norm",
    "linear",
    "paged_attention",
    "rms_norm",
    "rotary_write_kv",
    "soft_cap",
]

LinearWeight = torch.Tensor | PackedLinear
"""``[N, K]`` in its stored dtype, or packed for the native kernels."""
LayerCache = tuple[torch.Tensor, torch.Tensor] | KVCacheStruct
"""Keys and values of one layer."""

_ACT = {"silu": reference.silu, "gelu": reference.gelu, "gelu_tanh": reference.gelu_tanh}
_ACT_AND_MUL = {
    "silu": reference.silu_and_mul,
    "gelu": reference.gelu_and_mul,
    "gelu_tanh": reference.gelu_tanh_and_mul,
}


class HeadShape(NamedTuple):
    """The heads of an attention layer."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


class Rotation(Protocol):
    """cos and sin of every position (`pagemill.layers.rope.RotaryTable`)."""

    def up_to(self, max_position: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Valid up to ``max_position``, ``[at least max_position + 1, R]``."""
        ...

    def compute_to(self, max_position: int) -> None:
        """Make `arrays` valid up to ``max_position``."""
        ...

    def arrays(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """The memory itself, valid as far as `up_to` or `compute_to` was asked for."""
        ...


def description() -> str:
    """Which implementation of the ops is in use, for ``pagemill info``."""
    library = native.load()
    if library is None:
        return f"pytorch reference kernels ({native.unavailable_reason()})"
    return f"native kernels for {library.isa}"


def embedding(ids: torch.Tensor, weight: LinearWeight, scale: float = 1.0) -> torch.Tensor:
    """Rows of ``weight [V, H]`` for ``ids [T]``, times ``scale``: float32 ``[T, H]``."""
    if isinstance(ids, StepArray):
        return _handle(ids.recorder.embedding(ids, _packed(weight), scale))
    rows = reference.embedding(ids, _dense(weight))
    return rows if scale == 1.0 else rows * scale


def linear(x: torch.Tensor, weight: LinearWeight, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``x [T, K] @ weight [N, K]^T + bias [N]``: float32 ``[T, N]``."""
    if isinstance(x, Rows):
        return _handle(x.recorder.linear(x, _packed(weight), bias))
    return reference.linear(x, _dense(weight), bias)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``x / rms(x) * weight`` over the last dimension (arXiv:1910.07467)."""
    if isinstance(x, Rows):
        return _handle(x.recorder.norm(x, None, weight, None, eps, subtract_mean=False)[0])
    return reference.rms_norm(x, weight, eps)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """``rms_norm(x + residual)`` and the sum itself, the residual of the next block.

    Recorded, the sum takes the place of ``residual``: do not use that any more.
    """
    if isinstance(residual, Rows):
        rows = cast("Rows", x)
        out, total = rows.recorder.norm(rows, residual, weight, None, eps, subtract_mean=False)
        return _handle(out), _handle(total)
    return reference.add_rms_norm(x, residual, weight, eps)


def layer_norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> torch.Tensor:
    """``(x - mean) / sqrt(var + eps) * weight + bias`` over the last dimension."""
    if isinstance(x, Rows):
        return _handle(x.recorder.norm(x, None, weight, bias, eps, subtract_mean=True)[0])
    return reference.layer_norm(x, weight, bias, eps)


def act(x: torch.Tensor, kind: str) -> torch.Tensor:
    """``silu``, ``gelu`` or ``gelu_tanh`` of every number."""
    if isinstance(x, Rows):
        return _handle(x.recorder.activation(x, kind, gated=False))
    return _ACT[kind](x)


def act_and_mul(gate_up: torch.Tensor, kind: str) -> torch.Tensor:
    """``act(gate) * up`` for ``gate_up [T, 2 I]``, gate first: ``[T, I]`` (arXiv:2002.05202)."""
    if isinstance(gate_up, Rows):
        return _handle(gate_up.recorder.activation(gate_up, kind, gated=True))
    return _ACT_AND_MUL[kind](gate_up)


def soft_cap(logits: torch.Tensor, cap: float) -> torch.Tensor:
    """``cap * tanh(logits / cap)``: keeps logits within ±cap."""
    if isinstance(logits, StepLogits):
        logits.recorder.cap_logits(cap, logits.vocab_size)
        return logits
    return reference.soft_cap(logits, cap)


def rotary_write_kv(
    qkv: torch.Tensor,
    heads: HeadShape,
    cache: LayerCache,
    positions: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    rotation: Rotation | None = None,
    max_position: int = 0,
    query_norm: torch.Tensor | None = None,
    key_norm: torch.Tensor | None = None,
    norm_eps: float = 0.0,
) -> torch.Tensor:
    """Split heads, normalize and rotate queries and keys, and store keys and values.

    Args:
        qkv: ``[T, (Hq + 2 Hkv) * D]``: queries, keys and values one after another.
        heads: how many of each.
        cache: of the layer; the slots of this step are written.
        positions: ``[T]``.
        slot_mapping: ``[T]``, ``block_id * block_size + offset``.
        rotation: tables of cos and sin; None: no rotation.
        max_position: the largest of ``positions``.
        query_norm: weight ``[D]`` of a root mean square norm of each query head, or None.
        key_norm: likewise.
        norm_eps: of both norms.

    Returns:
        The queries, for `paged_attention`.
    """
    if isinstance(qkv, Rows):
        cos, sin = (None, None) if rotation is None else rotation.arrays()
        native = cast("KVCacheStruct", cache)
        rotated = qkv.recorder.rotary_write(
            qkv, heads.num_heads, native, query_norm, key_norm, norm_eps, cos, sin
        )
        return _handle(rotated)
    by_head = qkv.view(qkv.shape[0], -1, heads.head_dim)
    sizes = [heads.num_heads, heads.num_kv_heads, heads.num_kv_heads]
    query, key, value = torch.split(by_head, sizes, dim=1)
    if query_norm is not None and key_norm is not None:
        query = reference.rms_norm(query, query_norm, norm_eps)
        key = reference.rms_norm(key, key_norm, norm_eps)
    keys, values = cast("tuple[torch.Tensor, torch.Tensor]", cache)
    if rotation is None:
        reference.write_kv(key, value, keys, values, slot_mapping)
        return query
    cos_table, sin_table = rotation.up_to(max_position)
    return reference.rotary_write_kv(
        query, key, value, positions, cos_table, sin_table, keys, values, slot_mapping
    )


def paged_attention(
    query: torch.Tensor,
    heads: HeadShape,
    cache: LayerCache,
    layout: AttentionLayout,
    *,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
) -> torch.Tensor:
    """Causal attention of each row over its own sequence: ``[T, Hq * D]``.

    ``query`` is what `rotary_write_kv` returned; for the rest see `reference_attention`.
    """
    if isinstance(query, Rows):
        native = cast("KVCacheStruct", cache)
        return _handle(
            query.recorder.attention(query, heads.num_heads, native, scale, window, soft_cap)
        )
    keys, values = cast("tuple[torch.Tensor, torch.Tensor]", cache)
    attended = reference_attention.paged_attention(
        query, keys, values, layout, scale=scale, window=window, soft_cap=soft_cap
    )
    return attended.view(attended.shape[0], -1)


def _handle(recorded: Rows | StepLogits) -> torch.Tensor:
    """To a model, a handle is a tensor that it passes on."""
    return cast("torch.Tensor", recorded)


def _packed(weight: LinearWeight) -> PackedLinear:
    assert isinstance(weight, PackedLinear), "a recorded step needs packed weights"
    return weight


def _dense(weight: LinearWeight) -> torch.Tensor:
    assert isinstance(weight, torch.Tensor), "the reference ops need dense weights"
    return weight
