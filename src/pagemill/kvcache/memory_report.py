"""Where the blocks of the pool are, and how full."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """The pool at one moment, in blocks unless it says tokens.

    ``empty + cached + referenced == total``.
    """

    total: int
    empty: int
    """In no block table, and of no use to anybody."""
    cached: int
    """In no block table, but their content may be hit; evicted when needed."""
    referenced: int
    """In at least one block table, or pinned."""
    shared: int
    """Of those, with several owners: tables and pins."""
    pinned: int
    """Of those, kept by a pin."""
    swapped: int
    """Outside the pool, of sequences that were preempted."""
    evicted: int
    """Cached blocks that were given to somebody else, since the start."""
    table_entries: int
    """Blocks that the running sequences would hold if none were shared."""
    used_tokens: int
    """Slots of the running sequences' blocks that hold a computed token, shared ones once."""
    fragmented_tokens: int
    """Slots of those blocks that hold nothing: internal fragmentation."""

    @property
    def utilization(self) -> float:
        """Share of the slots in the running sequences' blocks that hold something, 0 to 1."""
        slots = self.used_tokens + self.fragmented_tokens
        return self.used_tokens / slots if slots else 1.0
