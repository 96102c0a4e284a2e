"""Sequences with keys and values, written into a native cache and attended to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from pagemill.kernels import native
from tests.unit.native.row_ops_helpers import (
    FLOATS,
    Cache,
    Output,
    Rows,
    attend,
    rotary_write,
)

SCALE = 0.4


def as_stored(x: torch.Tensor, kv_type: str) -> torch.Tensor:
    """``x [..., D]`` as the cache gives it back."""
    if kv_type == "bfloat16":
        return x.bfloat16().float()
    if kv_type == "int8":
        scale = x.abs().amax(-1, keepdim=True) / 127
        return (x * (1 / scale)).round() * scale
    return x


@dataclass
class Case:
    """Sequences of ``context_lens`` tokens with random queries, keys and values."""

    context_lens: Sequence[int]
    num_heads: int = 6
    num_kv_heads: int = 2
    head_dim: int = 16
    kv_type: str = "float32"
    window: int | None = None
    soft_cap: float | None = None
    seed: int = 3
    common: Sequence[tuple[int, int]] = ()
    """Sequences that begin with tokens of another one: its number, and how many. Where these fill
    blocks, they are in one block."""
    qkv: list[torch.Tensor] = field(init=False)
    """Of each sequence ``[context_len, Hq + 2 Hkv, D]``."""
    num_items: int = field(init=False, default=0)
    """Of the last run, for each key/value head."""

    def __post_init__(self) -> None:
        random = torch.Generator().manual_seed(self.seed)
        shape = (self.num_heads + 2 * self.num_kv_heads, self.head_dim)
        self.qkv = [torch.randn(n, *shape, generator=random) for n in self.context_lens]
        for b, (source, count) in enumerate(self.common):
            self.qkv[b][:count] = self.qkv[source][:count]

    def run(
        self,
        rows: Sequence[int],
        *,
        lens: Sequence[int] | None = None,
        block_size: int = 16,
        shuffle_seed: int = 0,
        num_threads: int = 1,
        pool: native.ThreadPool | None = None,
        output: Output = FLOATS,
    ) -> list[torch.Tensor]:
        """What one step computes for the last ``rows[b]`` rows of each sequence (of its first
        ``lens[b]`` tokens), ``[rows[b], Hq, D]``.
        """
        lens = list(lens or self.context_lens)
        blocks_of = [-(-n // block_size) for n in lens]
        num_blocks = sum(blocks_of) + 3
        free = list(np.random.default_rng(shuffle_seed).permutation(num_blocks))
        cache = Cache(self.kv_type, num_blocks, block_size, self.num_kv_heads, self.head_dim)
        tables = np.zeros((len(lens), max(blocks_of)), dtype=np.int64)
        starts, queries = [0], []
        none = torch.empty(1, 0)
        for b, count in enumerate(blocks_of):
            tables[b, :count] = [free.pop() for _ in range(count)]
            if b < len(self.common):
                source, num_common = self.common[b]
                shared = min(num_common, lens[b], lens[source]) // block_size
                tables[b, :shared] = tables[source, :shared]
            position = np.arange(lens[b])
            slots = tables[b][position // block_size] * block_size + position % block_size
            qkv = self.qkv[b][: lens[b]].reshape(lens[b], -1).clone()
            slot_tensor = torch.from_numpy(slots)
            rotary_write(cache, qkv, self.num_heads, slot_tensor, slot_tensor, none, none)
            queries.append(self.qkv[b][lens[b] - rows[b] : lens[b], : self.num_heads])
            starts.append(starts[-1] + rows[b])
        attended = attend(
            torch.cat(queries).contiguous(),
            cache,
            Rows(starts, lens, tables),
            scale=SCALE,
            window=self.window,
            soft_cap=self.soft_cap,
            num_threads=num_threads,
            pool=pool,
            output=output,
        )
        assert cache.is_intact()
        self.num_items = cache.num_items
        return [attended[starts[b] : starts[b + 1]] for b in range(len(lens))]

    def all_rows(self) -> list[torch.Tensor]:
        """Every row of every sequence, in one step."""
        return self.run(self.context_lens)

    def expected(self, b: int) -> torch.Tensor:
        """All rows of sequence ``b`` by the definition, computed in float64."""
        parts = [self.num_heads, self.num_kv_heads, self.num_kv_heads]
        query, key, value = torch.split(self.qkv[b], parts, dim=1)
        repeat = self.num_heads // self.num_kv_heads
        key = as_stored(key, self.kv_type).double().repeat_interleave(repeat, dim=1)
        value = as_stored(value, self.kv_type).double().repeat_interleave(repeat, dim=1)
        scores = torch.einsum("qhd,khd->hqk", query.double(), key) * SCALE
        if self.soft_cap is not None:
            scores = self.soft_cap * torch.tanh(scores / self.soft_cap)
        length = self.context_lens[b]
        back = torch.arange(length)[:, None] - torch.arange(length)
        seen = (back >= 0) & (back < (self.window or length))
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, value).float()
