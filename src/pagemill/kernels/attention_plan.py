"""What the attention of one step reads, worked out once and used by every layer.

The rows of a batch fall into groups that are computed together: all sequences with a single row
(decodes), and each piece of a longer chunk by itself. A group walks its context in tiles of
`TILE_TOKENS` at absolute positions:

    positions   0        256       512       768
    tile        |---0----|----1----|----2----|
    row at 700   seen      seen      seen up to 700, the rest is masked
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F

from pagemill.kernels.reference import ROW_MULTIPLE

TILE_TOKENS = 256
_CHUNK_ROWS = 256
"""Query rows of one sequence that are computed at a time; bounds the memory for scores."""


class CacheShape(NamedTuple):
    """How an op sees the cache: the shape of the pool and its own view of the past."""

    block_size: int
    num_kv_heads: int
    heads_per_kv: int
    window: int | None


@dataclass(frozen=True)
class Tile:
    """`TILE_TOKENS` positions of the ``live`` first sequences of a group."""

    live: int
    lines: torch.Tensor
    """``[live * Hkv * TILE_TOKENS]`` rows of the cache seen as ``[slots * Hkv, D]``. Positions past
    the context repeat its last one: a weight of 0 times an unwritten slot need not be 0."""
    hidden: torch.Tensor | None
    """``[live, 1, M, TILE_TOKENS]`` bool: what each row must not see; None: it sees all."""


@dataclass(frozen=True)
class Group:
    """``S`` sequences with ``R`` rows each, computed together."""

    rows: torch.Tensor  # [S, R] into the T rows of the batch
    tiles: list[Tile]


@dataclass(frozen=True)
class AttentionLayout:
    """Which rows attend to which slots; the same for every layer of a step."""

    query_start_loc: Sequence[int]  # [B + 1] rows of sequence b: query_start_loc[b] to [b + 1]
    context_lens: Sequence[int]  # [B] tokens in the cache, those of this step included
    block_tables: torch.Tensor  # [B, max_blocks] int64
    _plans: dict[CacheShape, list[Group]] = field(default_factory=dict, repr=False, compare=False)

    def groups(self, shape: CacheShape) -> list[Group]:
        """The groups and their tiles; computed at the first layer of this ``shape``."""
        if shape not in self._plans:
            self._plans[shape] = list(_groups(self, shape))
        return self._plans[shape]


def _groups(layout: AttentionLayout, shape: CacheShape) -> Iterator[Group]:
    starts, lens = layout.query_start_loc, layout.context_lens
    device = layout.block_tables.device
    num_rows = [end - start for start, end in pairwise(starts)]
    # Longest first, so that the sequences that reach a tile are the first ones.
    single = sorted((b for b, n in enumerate(num_rows) if n == 1), key=lambda b: -lens[b])
    if single:
        rows = torch.tensor([[starts[b]] for b in single], device=device)
        context_lens = [lens[b] for b in single]
        positions = torch.tensor(context_lens, device=device)[:, None] - 1
        tables = layout.block_tables[single]
        yield Group(rows, list(_tiles(positions, context_lens, tables, shape)))
    for b, count in enumerate(num_rows):
        if count == 1:
            continue
        first_position, table = lens[b] - count, layout.block_tables[b : b + 1]
        for begin in range(0, count, _CHUNK_ROWS):
            end = min(begin + _CHUNK_ROWS, count)
            rows = torch.arange(begin, end, device=device)[None]
            # What later rows of the sequence wrote is not this group's context.
            context_lens = [first_position + end]
            tiles = _tiles(rows + first_position, context_lens, table, shape)
            yield Group(rows + starts[b], list(tiles))


def _tiles(
    positions: torch.Tensor,  # [S, R]
    context_lens: list[int],  # [S] not ascending
    block_tables: torch.Tensor,  # [S, max_blocks]
    shape: CacheShape,
) -> Iterator[Tile]:
    """The tiles that any row of the group sees, in order."""
    device, window = positions.device, shape.window
    lowest, highest = int(positions.min()), int(positions.max())
    first_seen = 0 if window is None else max(0, lowest - window + 1)
    last_positions = torch.tensor(context_lens, device=device)[:, None] - 1
    heads = torch.arange(shape.num_kv_heads, device=device)[:, None]
    # Query heads of one key/value head are rows of one product.
    row_positions = positions.repeat_interleave(shape.heads_per_kv, dim=1)
    padding = -row_positions.shape[1] % ROW_MULTIPLE
    row_positions = F.pad(row_positions, (0, padding), value=-1)[:, None, :, None]
    for first in range(first_seen - first_seen % TILE_TOKENS, context_lens[0], TILE_TOKENS):
        end = first + TILE_TOKENS
        live = sum(length > first for length in context_lens)
        offsets = torch.arange(first, end, device=device)
        hidden = None
        if lowest < end - 1 or (window is not None and highest - window >= first):
            hidden = offsets > row_positions[:live]
            if window is not None:
                hidden |= offsets <= row_positions[:live] - window
        offsets = torch.minimum(offsets, last_positions[:live])
        blocks = torch.gather(block_tables[:live], 1, offsets // shape.block_size)
        slots = blocks * shape.block_size + offsets % shape.block_size
        lines = slots[:, None, :] * shape.num_kv_heads + heads
        yield Tile(live, lines.flatten(), hidden)
