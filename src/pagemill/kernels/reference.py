"""The ops in plain PyTorch: the fallback where there is no compiler, and the oracle elsewhere.

Weights come in the dtype in which they are stored (float32, bfloat16, float16); every op computes
in float32 and returns float32. Each output row depends on its own input row alone, bit for bit, so
that a token's logits are the same whatever else is in the batch; ``tests/unit/kernels`` holds
every op to it. The one limit is BLAS's: a `linear` with so few outputs that a thread gets less than
a dozen of them (below 192 in all, on many threads) may move the last bit.

    T  rows of the batch      H  hidden size      I  intermediate size
    Hq query heads            Hkv key/value heads D  head dimension
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

ROW_TILE = 32
"""Rows of every product of `linear`. A BLAS has several kernels, which sum in different orders, and
chooses by the shape: products of one shape get the same one."""

ROW_MULTIPLE = 8
"""Of the rows of attention's products, whose other sizes do not change: a BLAS treats the last few
rows beyond its own row tile with other code."""

_UPCAST_ELEMENTS = 1 << 22
"""How many weights a `linear` converts to float32 at a time (16 MiB)."""


def embedding(token_ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Rows of ``weight [V, H]`` for ``token_ids [T]`` int64, as float32 ``[T, H]``."""
    return F.embedding(token_ids, weight).float()


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``x [T, K] @ weight [N, K]^T + bias [N]``, float32 ``[T, N]``."""
    num_rows = x.shape[0]
    tiles = torch.split(F.pad(x, (0, 0, 0, -num_rows % ROW_TILE)), ROW_TILE)
    if weight.dtype == torch.float32:
        out = torch.cat([F.linear(tile, weight) for tile in tiles])
    else:
        rows_at_once = max(1, _UPCAST_ELEMENTS // weight.shape[1])
        parts = []
        for part in torch.split(weight, rows_at_once):
            floats = part.float()
            parts.append(torch.cat([F.linear(tile, floats) for tile in tiles]))
        out = torch.cat(parts, dim=1)
    out = out[:num_rows]
    return out if bias is None else out + bias.float()


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``x / rms(x) * weight`` over the last dimension (arXiv:1910.07467)."""
    scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    return x * scale * weight.float()


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """``rms_norm(x + residual)`` and the sum itself, the residual of the next block."""
    total = x + residual
    return rms_norm(total, weight, eps), total


def layer_norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> torch.Tensor:
    """``(x - mean) / sqrt(var + eps) * weight + bias`` over the last dimension."""
    return F.layer_norm(x, x.shape[-1:], weight.float(), bias.float(), eps)


def silu(x: torch.Tensor) -> torch.Tensor:
    """``x * sigmoid(x)``."""
    return x / (1.0 + torch.exp(-x))


def gelu(x: torch.Tensor) -> torch.Tensor:
    """``x`` times the normal distribution function of ``x`` (arXiv:1606.08415)."""
    return 0.5 * x * (1.0 + torch.erf(x * 0.5**0.5))


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    """The tanh approximation of `gelu` (``gelu_new``, ``gelu_pytorch_tanh``)."""
    inner = (2.0 / torch.pi) ** 0.5 * (x + 0.044715 * (x * x * x))
    return 0.5 * x * (1.0 + torch.tanh(inner))


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """``silu(gate) * up`` for ``gate_up [T, 2 I]``, gate first (arXiv:2002.05202)."""
    gate, up = gate_up.chunk(2, dim=-1)
    return silu(gate.contiguous()) * up


def gelu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """``gelu(gate) * up`` for ``gate_up [T, 2 I]``, gate first."""
    gate, up = gate_up.chunk(2, dim=-1)
    return gelu(gate.contiguous()) * up


def gelu_tanh_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """``gelu_tanh(gate) * up`` for ``gate_up [T, 2 I]``, gate first."""
    gate, up = gate_up.chunk(2, dim=-1)
    return gelu_tanh(gate.contiguous()) * up


def soft_cap(x: torch.Tensor, cap: float) -> torch.Tensor:
    """``cap * tanh(x / cap)``: keeps ``x`` within ±cap."""
    return cap * torch.tanh(x / cap)


def rotary(
    x: torch.Tensor, positions: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> torch.Tensor:
    """Rotate the first ``2 R`` dimensions of each head of ``x [T, heads, D]`` (arXiv:2104.09864).

    Dimension ``i`` is paired with ``i + R``. ``cos`` and ``sin`` are ``[max_positions, R]``.
    """
    num_pairs = cos.shape[1]
    cos, sin = cos[positions].unsqueeze(1), sin[positions].unsqueeze(1)
    first, second = x[..., :num_pairs], x[..., num_pairs : 2 * num_pairs]
    rotated = [first * cos - second * sin, second * cos + first * sin]
    if 2 * num_pairs < x.shape[-1]:
        rotated.append(x[..., 2 * num_pairs :])
    return torch.cat(rotated, dim=-1)


def write_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Store ``key`` and ``value [T, Hkv, D]`` in their slots.

    Mutates ``key_cache`` and ``value_cache [num_blocks, block_size, Hkv, D]``;
    ``slot_mapping [T]`` is ``block_id * block_size + offset``.
    """
    key_cache.view(-1, *key.shape[1:]).index_copy_(0, slot_mapping, key)
    value_cache.view(-1, *value.shape[1:]).index_copy_(0, slot_mapping, value)


def rotary_write_kv(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    positions: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> torch.Tensor:
    """Rotate ``query`` and ``key``, store ``key`` and ``value``; returns the rotated query.

    Shapes and mutation as in `rotary` and `write_kv`.
    """
    write_kv(rotary(key, positions, cos, sin), value, key_cache, value_cache, slot_mapping)
    return rotary(query, positions, cos, sin)
