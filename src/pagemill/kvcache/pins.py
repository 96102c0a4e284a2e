"""Blocks that stay in the pool until they are let go of."""

from __future__ import annotations

from collections.abc import Iterable

from pagemill.kvcache.allocator import BlockAllocator


class Pins:
    """Owns a reference to each block of every pin."""

    def __init__(self, allocator: BlockAllocator) -> None:
        self._allocator = allocator
        self._tables: dict[int, list[int]] = {}
        self._num_made = 0

    @property
    def tables(self) -> Iterable[list[int]]:
        """The blocks of each pin."""
        return self._tables.values()

    def blocks(self) -> set[int]:
        """Every block that is pinned."""
        return {block_id for table in self._tables.values() for block_id in table}

    def add(self, table: list[int]) -> int:
        """Pin the blocks of ``table``; returns the pin's number."""
        self._allocator.share(table)
        self._num_made += 1
        self._tables[self._num_made] = table
        return self._num_made

    def remove(self, number: int) -> None:
        """Let go of a pin; harmless if that was done."""
        self._allocator.release(self._tables.pop(number, []))
