"""Swap or recompute: what becomes of the blocks of a preempted sequence."""

from __future__ import annotations

_WEIGHT = 0.2
"""Of a new observation in a running mean."""
_LEAST_TOKENS = 16
"""A step of fewer rows says little about what a recomputed token costs."""
_DEFAULT_SECONDS_PER_BYTE = 1 / 4e9
"""Until the first move was measured."""


class PreemptionCosts:
    """Decides between copying a victim's blocks and computing them again.

    Under ``auto`` the cheaper one by what this engine has measured so far: seconds for each byte
    swapped (out and, later, in again), and seconds for each token computed.

    Args:
        mode: ``swap`` (where there is room), ``recompute``, or ``auto``.
        block_bytes: of one block in all layers.
    """

    def __init__(self, mode: str, block_bytes: int) -> None:
        self.mode = mode
        self._block_bytes = block_bytes
        self._seconds_per_byte = _DEFAULT_SECONDS_PER_BYTE
        self._seconds_per_token: float | None = None

    def on_swapped(self, num_blocks: int, seconds: float) -> None:
        """Learn what it took to move blocks out of the pool or into it."""
        measured = seconds / (num_blocks * self._block_bytes)
        self._seconds_per_byte += _WEIGHT * (measured - self._seconds_per_byte)

    def on_computed(self, num_tokens: int, seconds: float) -> None:
        """Learn what it took to compute a step."""
        if num_tokens >= _LEAST_TOKENS:
            measured = seconds / num_tokens
            before = measured if self._seconds_per_token is None else self._seconds_per_token
            self._seconds_per_token = before + _WEIGHT * (measured - before)

    def prefers_swap(self, num_blocks: int, num_tokens: int) -> bool:
        """Whether to move a victim's ``num_blocks`` rather than compute ``num_tokens`` again."""
        if self.mode != "auto":
            return self.mode == "swap"
        if self._seconds_per_token is None:
            return False
        swap_seconds = 2 * num_blocks * self._block_bytes * self._seconds_per_byte
        return swap_seconds < num_tokens * self._seconds_per_token
