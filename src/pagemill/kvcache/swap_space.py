"""Room outside the pool for the blocks of preempted sequences: which slot holds whose."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pagemill.errors import InvariantError


class SwapSpace:
    """Hands out swap slots 0 .. ``num_slots - 1``, each as large as a block.

    The bytes live in a runner: in memory of its own, or in a file.
    """

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._free = list(range(num_slots - 1, -1, -1))

    @property
    def num_used_slots(self) -> int:
        """Slots that hold a block."""
        return self.num_slots - len(self._free)

    def take(self, count: int) -> list[int] | None:
        """Take ``count`` slots; None, with nothing changed, if there are not as many."""
        if count > len(self._free):
            return None
        return [self._free.pop() for _ in range(count)]

    def release(self, slots: Sequence[int]) -> None:
        """Give slots back."""
        self._free.extend(slots)

    def audit(self, held: Iterable[Sequence[int]]) -> None:
        """Raise `InvariantError` unless every slot is free, or held by one sequence."""
        everything = sorted([*self._free, *(slot for slots in held for slot in slots)])
        if everything != list(range(self.num_slots)):
            raise InvariantError(
                f"{len(everything)} swap slots are free or held, of {self.num_slots}; or one is "
                f"held twice"
            )
