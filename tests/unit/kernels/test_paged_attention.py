"""Paged attention against the definition, with every slot that must not be read set to NaN."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from pagemill.kernels import AttentionLayout
from pagemill.kernels.reference_attention import paged_attention

BLOCK_SIZE = 16
HEAD_DIM = 12


@dataclass
class Case:
    """Sequences of ``context_lens`` tokens, of which the last ``rows`` are in the batch."""

    context_lens: list[int]
    rows: list[int]
    num_heads: int = 6
    num_kv_heads: int = 2

    def __post_init__(self) -> None:
        random = torch.Generator().manual_seed(3)
        shape = (self.num_kv_heads, HEAD_DIM)
        self.keys = [torch.randn(n, *shape, generator=random) for n in self.context_lens]
        self.values = [torch.randn(n, *shape, generator=random) for n in self.context_lens]
        self.queries = [
            torch.randn(n, self.num_heads, HEAD_DIM, generator=random) for n in self.context_lens
        ]

    def run(self, window: int | None = None, soft_cap: float | None = None) -> list[torch.Tensor]:
        """The output of each sequence's rows."""
        blocks_of = [-(-n // BLOCK_SIZE) for n in self.context_lens]
        num_blocks = sum(blocks_of) + 3
        free = list(np.random.default_rng(0).permutation(num_blocks))
        pool = (num_blocks, BLOCK_SIZE, self.num_kv_heads, HEAD_DIM)
        key_cache, value_cache = torch.full(pool, torch.nan), torch.full(pool, torch.nan)
        tables = np.zeros((len(blocks_of), max(blocks_of)), dtype=np.int64)
        starts, rows = [0], []
        for b, count in enumerate(blocks_of):
            tables[b, :count] = [free.pop() for _ in range(count)]
            position = torch.arange(self.context_lens[b])
            block = torch.from_numpy(tables[b])[position // BLOCK_SIZE]
            key_cache[block, position % BLOCK_SIZE] = self.keys[b]
            value_cache[block, position % BLOCK_SIZE] = self.values[b]
            rows.append(self.queries[b][self.context_lens[b] - self.rows[b] :])
            starts.append(starts[-1] + self.rows[b])
        layout = AttentionLayout(starts, self.context_lens, torch.from_numpy(tables))
        output = paged_attention(
            torch.cat(rows),
            key_cache,
            value_cache,
            layout,
            scale=0.4,
            window=window,
            soft_cap=soft_cap,
        )
        return [output[starts[b] : starts[b + 1]] for b in range(len(blocks_of))]

    def expected(self, b: int, window: int | None, soft_cap: float | None) -> torch.Tensor:
        """The definition, in float64, of sequence ``b``'s rows."""
        repeat = self.num_heads // self.num_kv_heads
        key = self.keys[b].double().repeat_interleave(repeat, dim=1)
        value = self.values[b].double().repeat_interleave(repeat, dim=1)
        scores = torch.einsum("qhd,khd->hqk", self.queries[b].double(), key) * 0.4
        if soft_cap is not None:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        length = self.context_lens[b]
        back = torch.arange(length)[:, None] - torch.arange(length)
        seen = (back >= 0) & (back < (length if window is None else window))
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        attended = torch.einsum("hqk,khd->qhd", weights, value)
        return attended[length - self.rows[b] :].float()


CASES = {
    "one token": Case([1], [1]),
    "a whole prompt": Case([37], [37]),
    "decodes of many lengths": Case([1, 5, 255, 256, 257, 700, 16], [1] * 7),
    "a chunk in the middle": Case([300], [60]),
    "a chunk longer than is computed at a time": Case([600], [580]),
    "chunks and decodes together": Case([40, 300, 9, 512, 2, 290], [40, 1, 3, 1, 2, 270]),
    "no grouping of heads": Case([50, 50], [50, 1], num_heads=4, num_kv_heads=4),
    "one key/value head": Case([50, 300], [2, 1], num_heads=5, num_kv_heads=1),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    ("window", "soft_cap"), [(None, None), (7, None), (300, None), (None, 1.5), (20, 1.5)]
)
def test_it_follows_the_definition(name: str, window: int | None, soft_cap: float | None) -> None:
    torch.set_num_threads(1)
    case = CASES[name]
    for b, output in enumerate(case.run(window, soft_cap)):
        torch.testing.assert_close(output, case.expected(b, window, soft_cap), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("window", [None, 1, 10, 256])
def test_every_place_of_a_tile_boundary_follows_the_definition(
    window: int | None, rows: int
) -> None:
    torch.set_num_threads(1)
    edges = {254, 512} if window is None else {254, 512, 256 + window, 512 + window}
    for length in sorted({edge + i for edge in edges for i in range(-4, 5)}):
        case = Case([length], [rows], num_heads=2, num_kv_heads=1)
        torch.testing.assert_close(
            case.run(window)[0], case.expected(0, window, None), rtol=1e-5, atol=2e-6
        )


@pytest.mark.parametrize("window", [None, 7, 300])
def test_a_row_has_the_same_bits_in_any_batch_and_any_chunk(window: int | None) -> None:
    torch.set_num_threads(1)
    lens = [40, 300, 9, 512, 270]
    whole = Case(lens, lens).run(window)
    for rows in ([40, 1, 9, 1, 270], [1, 1, 1, 1, 1], [3, 299, 2, 257, 4], [1, 17, 9, 512, 1]):
        for b, output in enumerate(Case(lens, rows).run(window)):
            assert torch.equal(output, whole[b][lens[b] - rows[b] :]), (rows, b)


def test_a_layout_serves_layers_with_and_without_a_window() -> None:
    """Plans are kept by what they depend on: the same layout must not mix the two up."""
    keys = torch.randn(4, 16, 1, 8, generator=torch.Generator().manual_seed(0))
    query = torch.randn(1, 1, 8, generator=torch.Generator().manual_seed(1))
    layout = AttentionLayout([0, 1], [40], torch.tensor([[0, 1, 2]]))
    full = paged_attention(query, keys, keys, layout, scale=1.0)
    windowed = paged_attention(query, keys, keys, layout, scale=1.0, window=1)
    torch.testing.assert_close(windowed[0, 0], keys[2, 7, 0])
    assert not torch.allclose(full, windowed)
    assert torch.equal(paged_attention(query, keys, keys, layout, scale=1.0), full)
