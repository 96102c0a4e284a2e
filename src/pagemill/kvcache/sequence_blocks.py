"""What one sequence has in the KV cache."""

from __future__ import annotations

from dataclasses import dataclass, field

from pagemill.kvcache.prefix_cache import CachedBlock


@dataclass(slots=True, eq=False)
class SequenceBlocks:
    """The block table of a sequence and what is known of its content.

        tokens   0 ........ 15 | 16 ....... 31 | 32 33
        table    block 4       | block 9       | block 2   (14 slots still empty)
        nodes    node of 4     | node of 9     |           whole blocks, computed and findable

    Only `KVCacheManager` changes it.
    """

    root: CachedBlock
    """Where its prefix begins: of its cache salt."""
    table: list[int] = field(default_factory=list)
    """Physical block of each logical block."""
    nodes: list[CachedBlock] = field(default_factory=list)
    """Of the leading blocks that are whole and computed; may be another block's, of equal
    content."""
    twins: list[int] = field(default_factory=list)
    """Indices of nodes that are another block's. It may be evicted while this sequence runs."""
    digests: list[bytes] = field(default_factory=list)
    """The chain of hashes of its whole blocks, as far as it was needed."""
    swap_slots: list[int] = field(default_factory=list)
    """Where its blocks are while it is swapped out, and has no table."""
    shares_tail: bool = False
    """Whether the last block of the table is half full and may be in another table, too: then it
    has to be copied before it is written to."""
