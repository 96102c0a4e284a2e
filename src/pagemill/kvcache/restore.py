"""Saved blocks, back into the pool."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pagemill.kvcache.allocator import BlockAllocator
from pagemill.kvcache.prefix_cache import CachedBlock, PrefixCache
from pagemill.kvcache.prefix_file import LoadedPrefixes, Record


def restore_blocks(
    cache: PrefixCache,
    allocator: BlockAllocator,
    root: CachedBlock,
    records: Iterable[Record | None],
    write: Callable[[int, bytes], None],
) -> LoadedPrefixes:
    """Put saved blocks into empty blocks of the pool, findable and free to be taken.

    Args:
        cache: gets to know them.
        allocator: of the pool.
        root: that their prefixes begin at.
        records: parents before their children; None for one that could not be read.
        write: writes a block's content.
    """
    loaded = LoadedPrefixes()
    restored: list[int] = []
    for record in records:
        parent = None if record is None else cache.get(record.parent, root)
        if (
            record is None
            or parent is None
            or cache.digest_after(parent, record.tokens) != record.digest
        ):
            loaded.num_damaged += 1
        elif cache.get(record.digest, root) is not None:
            loaded.num_known += 1
        elif allocator.num_free_blocks == allocator.num_cached_blocks:
            loaded.num_without_room += 1
        else:
            (block_id,) = allocator.take(1)
            write(block_id, record.content)
            cache.register(parent, record.tokens, record.digest, block_id)
            allocator.keep(block_id)
            allocator.release([block_id])
            restored.append(block_id)
            loaded.num_loaded += 1
    for block_id in reversed(restored):  # parents are evicted after their children
        allocator.touch(block_id)
    return loaded
