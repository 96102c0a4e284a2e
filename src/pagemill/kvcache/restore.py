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
    reached = {root.digest: root}
    left_out: set[bytes] = set()
    for record in records:
        if record is not None and record.parent in left_out:
            loaded.num_without_room += 1
            left_out.add(record.digest)
            continue
        parent = None if record is None else reached.get(record.parent)
        if (
            record is None
            or parent is None
            or cache.digest_after(parent, record.tokens) != record.digest
        ):
            loaded.num_damaged += 1
            continue
        known = cache.get(record.digest, root)
        if known is not None and known.parent is parent:
            loaded.num_known += 1
            reached[record.digest] = known
            continue
        if allocator.num_free_blocks == allocator.num_cached_blocks:
            loaded.num_without_room += 1
            left_out.add(record.digest)
            continue
        (block_id,) = allocator.take(1)
        try:
            write(block_id, record.content)
        except BaseException:
            allocator.release([block_id])
            raise
        # One that is known, but below an evicted block, is found no more: it gives way.
        node, replaced = cache.register(parent, record.tokens, record.digest, block_id)
        if replaced is not None:
            allocator.forget(replaced)
        reached[record.digest] = node
        allocator.keep(block_id)
        allocator.release([block_id])
        restored.append(block_id)
        loaded.num_loaded += 1
    for block_id in reversed(restored):  # parents are evicted after their children
        allocator.touch(block_id)
    return loaded
