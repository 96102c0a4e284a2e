"""A fixed pool of blocks with reference counts and an O(1) free list."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from pagemill.errors import InvariantError


class BlockAllocator:
    """Hands out block ids 0 .. ``num_blocks - 1``.

    The free list is a queue: the block freed longest ago is reused first, so that recently freed
    contents survive the longest. Only `KVCacheManager` calls this class.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free: deque[int] = deque(range(num_blocks))
        self._ref_counts = [0] * num_blocks

    @property
    def num_free_blocks(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Take ``count`` blocks, each with one reference; the caller knows that they exist."""
        assert count <= len(self._free), "take() without asking num_free_blocks first"
        taken = [self._free.popleft() for _ in range(count)]
        for block_id in taken:
            self._ref_counts[block_id] = 1
        return taken

    def release(self, block_ids: Sequence[int]) -> None:
        """Drop one reference to each block, the last first: a table's tail is reused before its
        head, which is the part that another request is likelier to share.
        """
        for block_id in reversed(block_ids):
            self._ref_counts[block_id] -= 1
            if self._ref_counts[block_id] == 0:
                self._free.append(block_id)
            elif self._ref_counts[block_id] < 0:
                raise InvariantError(f"block {block_id} was released more often than taken")

    def audit(self, tables: Sequence[Sequence[int]]) -> None:
        """Check the pool against all block tables in use.

        Every reference count equals the number of owners, free blocks have no owner and are
        listed once, and ``free + referenced == total``. Raises `InvariantError`.
        """
        owners = [0] * self.num_blocks
        for table in tables:
            for block_id in table:
                owners[block_id] += 1
        for block_id, (count, owned) in enumerate(zip(self._ref_counts, owners, strict=True)):
            if count != owned:
                raise InvariantError(
                    f"block {block_id} has reference count {count} but {owned} owners"
                )
        free = set(self._free)
        if len(free) != len(self._free):
            raise InvariantError("a block is listed twice as free")
        referenced = sum(1 for count in owners if count)
        if any(owners[block_id] for block_id in free):
            raise InvariantError("a block is free and in a block table at once")
        if len(free) + referenced != self.num_blocks:
            raise InvariantError(
                f"{len(free)} free + {referenced} referenced blocks of {self.num_blocks}: "
                f"{self.num_blocks - len(free) - referenced} leaked"
            )
