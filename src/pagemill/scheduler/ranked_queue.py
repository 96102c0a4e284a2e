"""A list of sequences kept in order of rank."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from pagemill.request import Rank, Sequence


class RankedQueue:
    """Sequences, best rank first. Ranks are unique and do not change while queued.

    Insertion and removal are a binary search and a move of pointers.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[Rank, Sequence]] = []

    def add(self, seq: Sequence) -> None:
        """Insert by ``seq.rank``."""
        insort(self._entries, (seq.rank, seq))

    def remove(self, seq: Sequence) -> None:
        """Take out a sequence that is in the queue."""
        at = bisect_left(self._entries, (seq.rank,))
        assert self._entries[at][1] is seq, "the sequence is not in this queue"
        del self._entries[at]

    def __contains__(self, seq: Sequence) -> bool:
        at = bisect_left(self._entries, (seq.rank,))
        return at < len(self._entries) and self._entries[at][1] is seq

    @property
    def first(self) -> Sequence:
        """The sequence that goes first."""
        return self._entries[0][1]

    @property
    def last(self) -> Sequence:
        """The sequence that goes last, the first to be preempted."""
        return self._entries[-1][1]

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Sequence]:
        return (seq for _, seq in self._entries)

    def __getitem__(self, index: int) -> Sequence:
        return self._entries[index][1]
