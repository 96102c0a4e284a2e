"""A fixed pool of blocks: reference counts, and two ways of being free."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from pagemill.errors import InvariantError


class BlockAllocator:
    """Hands out block ids 0 .. ``num_blocks - 1``. Only `KVCacheManager` and its
    parts (`Pins`, `restore_blocks`) call this class.

        referenced   in at least one block table, or pinned
        cached       neither, but its content may be hit; the one released longest ago goes first
        empty        neither, and nobody wants its content; the last one released is reused first,
                     so that memory that was never touched stays so

    Cached and empty blocks are free: `take` gives out empty ones first, then evicts cached ones.
    All operations on one block are O(1).

    Args:
        num_blocks: blocks in the pool.
        on_evict: told of a cached block whose content is about to be lost.
    """

    def __init__(self, num_blocks: int, on_evict: Callable[[int], None]) -> None:
        self.num_blocks = num_blocks
        self._on_evict = on_evict
        self._ref_counts = [0] * num_blocks
        self._is_kept = bytearray(num_blocks)
        self._empty = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def num_free_blocks(self) -> int:
        """Blocks that `take` could give out now."""
        return len(self._empty) + len(self._cached)

    @property
    def num_cached_blocks(self) -> int:
        """Free blocks whose content may still be hit."""
        return len(self._cached)

    def ref_count(self, block_id: int) -> int:
        """How many owners the block has: tables that it is in, and pins."""
        return self._ref_counts[block_id]

    def take(self, count: int) -> list[int]:
        """Take ``count`` blocks, each with one reference; the caller knows that they exist."""
        assert count <= self.num_free_blocks, "take() without asking num_free_blocks first"
        taken = []
        for _ in range(count):
            if self._empty:
                block_id = self._empty.pop()
            else:
                block_id, _ = self._cached.popitem(last=False)
                self._is_kept[block_id] = False
                self._on_evict(block_id)
            self._ref_counts[block_id] = 1
            taken.append(block_id)
        return taken

    def share(self, block_ids: Iterable[int]) -> None:
        """Add a reference to blocks that are referenced or cached."""
        for block_id in block_ids:
            if self._ref_counts[block_id] == 0:
                del self._cached[block_id]
            self._ref_counts[block_id] += 1

    def release(self, block_ids: Sequence[int]) -> None:
        """Drop one reference to each block, the last first: a table's tail is evicted before its
        head, which is the part that another request is likelier to share.
        """
        for block_id in reversed(block_ids):
            count = self._ref_counts[block_id] = self._ref_counts[block_id] - 1
            if count > 0:
                continue
            if count < 0:
                raise InvariantError(f"block {block_id} was released more often than taken")
            if self._is_kept[block_id]:
                self._cached[block_id] = None
            else:
                self._empty.append(block_id)

    def keep(self, block_id: int) -> None:
        """Keep the content of a referenced block when nobody references it any more."""
        self._is_kept[block_id] = True

    def forget(self, block_id: int) -> None:
        """Keep it no longer; the block is empty now if it is free."""
        self._is_kept[block_id] = False
        if self._ref_counts[block_id] == 0:
            del self._cached[block_id]
            self._empty.append(block_id)

    def touch(self, block_id: int) -> None:
        """Note that the content was of use: if the block is cached, it is evicted last."""
        if self._ref_counts[block_id] == 0:
            self._cached.move_to_end(block_id)

    def audit(self, tables: Iterable[Sequence[int]]) -> None:
        """Check the pool against all block tables in use.

        Every reference count equals the number of owners, a free block has no owner and is listed
        once, and ``empty + cached + referenced == total``. Raises `InvariantError`.
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
        free = set(self._empty) | self._cached.keys()
        if len(free) != self.num_free_blocks:
            raise InvariantError("a block is listed twice as free")
        if any(owners[block_id] for block_id in free):
            raise InvariantError("a block is free and in a block table at once")
        referenced = sum(1 for count in owners if count)
        if len(free) + referenced != self.num_blocks:
            raise InvariantError(
                f"{len(free)} free + {referenced} referenced blocks of {self.num_blocks}: "
                f"{self.num_blocks - len(free) - referenced} leaked"
            )
        for block_id in self._cached:
            if not self._is_kept[block_id]:
                raise InvariantError(f"block {block_id} is cached though its content is not kept")
