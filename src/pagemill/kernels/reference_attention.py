"""Attention over a paged KV cache in plain PyTorch, for prefill and decode rows alike.

A row walks the tiles of its context (see `attention_plan`) from the first to the last with a
running maximum and sum (arXiv:2205.14135). It therefore adds the same numbers in the same order
whether it is computed in a prefill chunk, in a decode step or next to whatever other sequences:
its result is the same bit for bit. A tile that a row does not see changes nothing: the factors are
exactly 0 and 1.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from pagemill.kernels.attention_plan import TILE_TOKENS, AttentionLayout, CacheShape, Group
from pagemill.kernels.reference import ROW_MULTIPLE
from pagemill.kernels.reference import soft_cap as cap_scores

_COLUMN_MULTIPLE = 16
"""A product with few columns is computed in another order by BLAS."""
_LOWEST = -1e30
"""Below every score, yet finite: minus infinity minus itself would not be a number."""


def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    layout: AttentionLayout,
    *,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
) -> torch.Tensor:
    """Causal attention of each row over its own sequence's cache.

    Args:
        query: ``[T, Hq, D]`` float32; head ``h`` reads key/value head ``h // (Hq / Hkv)``.
        key_cache: ``[num_blocks, block_size, Hkv, D]`` float32, this step's tokens written.
        value_cache: likewise.
        layout: the sequences.
        scale: multiplies the query.
        window: a row sees this many positions, its own included; None: all before it.
        soft_cap: bounds the scores, see `reference.soft_cap`.

    Returns:
        ``[T, Hq, D]`` float32. Slots that no position of a context maps to are never read.
    """
    _, block_size, num_kv_heads, head_dim = key_cache.shape
    heads_per_kv = query.shape[1] // num_kv_heads
    shape = CacheShape(block_size, num_kv_heads, heads_per_kv, window)
    query = query * scale
    keys, values = key_cache.view(-1, head_dim), value_cache.view(-1, head_dim)
    output = torch.empty_like(query)
    for group in layout.groups(shape):
        num_seqs, num_rows = group.rows.shape
        rows = query[group.rows].view(num_seqs, num_rows, num_kv_heads, heads_per_kv, head_dim)
        rows = rows.transpose(1, 2).reshape(num_seqs, num_kv_heads, -1, head_dim)
        attended = _attend(rows, keys, values, group, soft_cap)
        attended = attended.view(num_seqs, num_kv_heads, num_rows, heads_per_kv, head_dim)
        output[group.rows] = attended.transpose(1, 2).reshape(num_seqs, num_rows, -1, head_dim)
    return output


def _attend(
    query: torch.Tensor,  # [S, Hkv, M, D], scaled
    keys: torch.Tensor,  # [slots * Hkv, D]
    values: torch.Tensor,  # [slots * Hkv, D]
    group: Group,
    soft_cap: float | None,
) -> torch.Tensor:
    """The group's output ``[S, Hkv, M, D]``."""
    num_products, head_dim = query.shape[2:]
    query = F.pad(query, (0, 0, 0, -num_products % ROW_MULTIPLE))
    peak = query.new_full((*query.shape[:3], 1), _LOWEST)
    total = torch.zeros_like(peak)
    output = _pad_columns(torch.zeros_like(query))
    for tile in group.tiles:
        seen, shape = slice(0, tile.live), (tile.live, query.shape[1], TILE_TOKENS, head_dim)
        key = keys.index_select(0, tile.lines).view(shape)
        value = _pad_columns(values.index_select(0, tile.lines).view(shape))
        scores = torch.matmul(query[seen], key.transpose(-1, -2))
        if soft_cap is not None:
            scores = cap_scores(scores, soft_cap)
        if tile.hidden is not None:
            scores.masked_fill_(tile.hidden, -torch.inf)
        new_peak = torch.maximum(peak[seen], scores.amax(-1, keepdim=True))
        weights = scores.sub_(new_peak).exp_()
        decay = torch.exp(peak[seen] - new_peak)
        total[seen] = total[seen] * decay + weights.sum(-1, keepdim=True)
        output[seen] = output[seen] * decay + torch.matmul(weights, value)
        peak[seen] = new_peak
    return output[:, :, :num_products, :head_dim] / total[:, :, :num_products]


def _pad_columns(x: torch.Tensor) -> torch.Tensor:
    """``x`` itself where nothing is missing (`F.pad` would copy it)."""
    missing = -x.shape[-1] % _COLUMN_MULTIPLE
    return F.pad(x, (0, missing)) if missing else x
