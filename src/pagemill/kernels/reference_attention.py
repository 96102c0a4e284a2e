"""Attention over a paged KV cache in plain PyTorch, for prefill and decode rows alike.

The context of a sequence is cut into tiles of `TILE_TOKENS` at absolute positions, and a row walks
them from the first to the last with a running maximum and sum (arXiv:2205.14135). A row therefore
adds the same numbers in the same order whether it is computed in a prefill chunk, in a decode step
or next to whatever other sequences: its result is the same bit for bit. A tile that a row does not
see (beyond its position, or before its window) changes nothing: the factors are exactly 0 and 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F

from pagemill.kernels.reference import soft_cap as cap_scores

TILE_TOKENS = 256
_CHUNK_ROWS = 256
"""Query rows of one sequence that are computed at a time; bounds the memory for scores."""
_ROW_MULTIPLE = 8  # as in reference.linear; a narrow product (few columns) is a case of its own too
_COLUMN_MULTIPLE = 16
_LOWEST = -1e30
"""Below every score, yet finite: minus infinity minus itself would not be a number."""


@dataclass(frozen=True)
class AttentionLayout:
    """Which rows attend to which slots; the same for every layer of a step."""

    query_start_loc: Sequence[int]  # [B + 1] rows of sequence b: query_start_loc[b] to [b + 1]
    context_lens: Sequence[int]  # [B] tokens in the cache, those of this step included
    block_tables: torch.Tensor  # [B, max_blocks] int64


@dataclass(frozen=True)
class _Group:
    """``S`` sequences with ``R`` rows each, computed together."""

    rows: torch.Tensor  # [S, R] into the T rows of the batch
    positions: torch.Tensor  # [S, R] of those rows
    block_tables: torch.Tensor  # [S, max_blocks]
    context_lens: list[int]  # [S] not ascending, and no longer than the last row sees


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
        ``[T, Hq, D]`` float32. Slots that a row does not see may hold anything, even NaN.
    """
    output = torch.empty_like(query)
    for group in _groups(layout, query.device):
        output[group.rows] = _attend(
            query[group.rows] * scale, key_cache, value_cache, group, window, soft_cap
        )
    return output


def _groups(layout: AttentionLayout, device: torch.device) -> Iterator[_Group]:
    """The single-row sequences as one group, then each piece of a longer chunk by itself."""
    starts, lens = layout.query_start_loc, layout.context_lens
    num_rows = [end - start for start, end in pairwise(starts)]
    # Longest first, so that the sequences that reach a tile are the first ones.
    single = sorted((b for b, n in enumerate(num_rows) if n == 1), key=lambda b: -lens[b])
    if single:
        yield _Group(
            rows=torch.tensor([[starts[b]] for b in single], device=device),
            positions=torch.tensor([[lens[b] - 1] for b in single], device=device),
            block_tables=layout.block_tables[single],
            context_lens=[lens[b] for b in single],
        )
    for b, count in enumerate(num_rows):
        if count == 1:
            continue
        first_position = lens[b] - count
        for begin in range(0, count, _CHUNK_ROWS):
            end = min(begin + _CHUNK_ROWS, count)
            rows = torch.arange(begin, end, device=device)[None]
            yield _Group(
                rows=rows + starts[b],
                positions=rows + first_position,
                block_tables=layout.block_tables[b : b + 1],
                context_lens=[first_position + end],
            )


def _attend(
    query: torch.Tensor,  # [S, R, Hq, D], scaled
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    group: _Group,
    window: int | None,
    soft_cap: float | None,
) -> torch.Tensor:
    """The group's output ``[S, R, Hq, D]``."""
    num_seqs, num_rows, num_heads, head_dim = query.shape
    num_kv_heads = key_cache.shape[2]
    heads_per_kv = num_heads // num_kv_heads
    # Query heads of one key/value head are rows of one product: M = R * heads_per_kv.
    shape = (num_seqs, num_rows, num_kv_heads, heads_per_kv, head_dim)
    query = query.view(shape).transpose(1, 2).reshape(num_seqs, num_kv_heads, -1, head_dim)
    num_products = query.shape[2]
    query = F.pad(query, (0, 0, 0, -num_products % _ROW_MULTIPLE))
    positions = group.positions.repeat_interleave(heads_per_kv, dim=1)
    positions = F.pad(positions, (0, query.shape[2] - num_products), value=-1)[:, None, :, None]

    peak = query.new_full((*query.shape[:3], 1), _LOWEST)
    total = torch.zeros_like(peak)
    output = F.pad(torch.zeros_like(query), (0, -head_dim % _COLUMN_MULTIPLE))
    for first in range(_first_tile(group, window), group.context_lens[0], TILE_TOKENS):
        live = sum(length > first for length in group.context_lens)
        seen = slice(0, live)
        key, value = _gather_tile(key_cache, value_cache, group, first, live)
        scores = torch.matmul(query[seen], key.transpose(-1, -2))
        if soft_cap is not None:
            scores = cap_scores(scores, soft_cap)
        offsets = torch.arange(first, first + TILE_TOKENS, device=query.device)
        hidden = offsets > positions[seen]
        if window is not None:
            hidden |= offsets <= positions[seen] - window
        scores.masked_fill_(hidden, -torch.inf)
        new_peak = torch.maximum(peak[seen], scores.amax(-1, keepdim=True))
        weights = torch.exp(scores - new_peak)
        decay = torch.exp(peak[seen] - new_peak)
        total[seen] = total[seen] * decay + weights.sum(-1, keepdim=True)
        output[seen] = output[seen] * decay + torch.matmul(weights, value)
        peak[seen] = new_peak
    output = output[:, :, :num_products, :head_dim] / total[:, :, :num_products]
    shape = (num_seqs, num_kv_heads, num_rows, heads_per_kv, head_dim)
    return output.view(shape).transpose(1, 2).reshape(num_seqs, num_rows, num_heads, head_dim)


def _first_tile(group: _Group, window: int | None) -> int:
    """Position at which the first tile starts that any row of the group sees."""
    if window is None:
        return 0
    first_seen = max(0, int(group.positions.min()) - window + 1)
    return first_seen - first_seen % TILE_TOKENS


def _gather_tile(
    key_cache: torch.Tensor, value_cache: torch.Tensor, group: _Group, first: int, live: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys ``[live, Hkv, TILE_TOKENS, D]`` and values (likewise, D padded) from ``first`` on.

    Positions beyond a sequence's context read slot 0 of its first block, and their values are
    zeroed: a weight of 0 times whatever lies there must be 0.
    """
    _, block_size, num_kv_heads, head_dim = key_cache.shape
    device = key_cache.device
    offsets = torch.arange(first, first + TILE_TOKENS, device=device)
    lens = torch.tensor(group.context_lens[:live], device=device)[:, None]
    valid = offsets < lens
    offsets = torch.where(valid, offsets, 0)
    blocks = torch.gather(group.block_tables[:live], 1, offsets // block_size)
    slots = blocks * block_size + offsets % block_size
    heads = torch.arange(num_kv_heads, device=device)[:, None]
    lines = slots[:, None, :] * num_kv_heads + heads
    key = key_cache.view(-1, head_dim)[lines]
    value = value_cache.view(-1, head_dim)[lines]
    value.masked_fill_(~valid[:, None, :, None], 0.0)
    return key, F.pad(value, (0, -head_dim % _COLUMN_MULTIPLE))
