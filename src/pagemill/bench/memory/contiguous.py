"""The baseline: keys and values of a request in one piece, reserved when it is admitted.

That is how a cache has to be without block tables. A request can grow only within its own piece, so
the piece must be as long as the request can ever become: as long as the model's context, or, where
one believes what the request says, its prompt plus ``max_tokens``.

Scheduler, batches, kernels and pool are the same as for the paged cache. A piece is a run of
neighbouring blocks, so the kernels find it through a block table like any other.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from pagemill.kvcache.allocator import BlockAllocator
from pagemill.kvcache.manager import KVCacheManager, blocks_for_tokens, slots_at_most


class ContiguousAllocator(BlockAllocator):
    """Gives out neighbouring blocks: the first run that is long enough.

    Args:
        num_blocks: blocks in the pool.
    """

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks, on_evict=lambda _: None)
        self._runs: list[range] | None = None

    @property
    def longest_run(self) -> int:
        """The most blocks that `take` could give out now."""
        return max(map(len, self._free_runs()), default=0)

    def take(self, count: int) -> list[int]:
        """Take ``count`` neighbours; the caller knows that they exist."""
        if count == 0:
            return []
        run = next((run for run in self._free_runs() if len(run) >= count), None)
        assert run is not None, "take() without asking longest_run first"
        taken = list(run[:count])
        self._empty = sorted(set(self._empty).difference(taken))
        for block_id in taken:
            self._ref_counts[block_id] = 1
        self._runs = None
        return taken

    def release(self, block_ids: list[int]) -> None:  # type: ignore[override]
        """Give them back."""
        super().release(block_ids)
        self._runs = None

    def _free_runs(self) -> list[range]:
        """All free blocks, as runs in ascending order; kept until something changes."""
        if self._runs is None:
            free = sorted(self._empty)
            ends = [a for a, b in pairwise(free) if b != a + 1] + free[-1:]
            starts = free[:1] + [b for a, b in pairwise(free) if b != a + 1]
            self._runs = [range(s, e + 1) for s, e in zip(starts, ends, strict=True)]
        return self._runs


class ContiguousKVCacheManager(KVCacheManager):
    """Reserves one piece for each sequence. No prefix caching, no preemption.

    Args:
        num_blocks: blocks in the pool.
        block_size: token slots in a block.
        reserved_tokens: slots of a piece; None: those of prompt + ``max_tokens``.
    """

    def __init__(self, num_blocks: int, block_size: int, reserved_tokens: int | None) -> None:
        self._pieces = ContiguousAllocator(num_blocks)
        super().__init__(num_blocks, block_size, prefix_caching=False, allocator=self._pieces)
        self._reserved_tokens = reserved_tokens

    def num_slots_at_admission(self, num_tokens: int, num_tokens_at_most: int) -> int:
        """All that the sequence will ever have."""
        return max(self._reserved_tokens or num_tokens_at_most, num_tokens)

    def num_free_after(self, leaving: Counter[int]) -> int:
        """Blocks that could be had in one piece."""
        assert not leaving, "under fcfs nobody is preempted to admit somebody else"
        return self._pieces.longest_run

    def fits_ever(self, num_prompt_tokens: int, max_tokens: int) -> bool:
        """Whether the piece fits into the pool, and the sequence into the piece."""
        at_most = slots_at_most(num_prompt_tokens, max_tokens)
        reserved = self.num_slots_at_admission(num_prompt_tokens, at_most)
        return (
            at_most <= reserved and blocks_for_tokens(reserved, self.block_size) <= self.num_blocks
        )
