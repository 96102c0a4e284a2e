"""`TokenBucket`: so much a minute, of requests or of tokens."""

from __future__ import annotations

import time
from collections.abc import Callable

MINUTE_SECONDS = 60.0


class TokenBucket:
    """Holds what may be used at once, at most a minute's worth, and fills evenly.

    Args:
        per_minute: what it holds when it is full, and what flows in within a minute.
        clock: monotonic seconds.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_minute = per_minute
        self._clock = clock
        self._level = float(per_minute)
        self._at_seconds = clock()

    def take(self, amount: int = 1) -> float:
        """Take ``amount``, or a full bucket if it is more than that.

        Returns:
            0 if it was taken; otherwise nothing was, and it is the seconds to wait.
        """
        amount = min(amount, self.per_minute)
        self._fill()
        missing = amount - self._level
        if missing > 0:
            return missing / self.per_minute * MINUTE_SECONDS
        self._level -= amount
        return 0.0

    def settle(self, reserved: int, used: int) -> None:
        """Correct what `take` took by what was used in the end; it may leave a debt."""
        self._fill()
        self._level = min(self._level + min(reserved, self.per_minute) - used, self.per_minute)

    def _fill(self) -> None:
        now = self._clock()
        flown = (now - self._at_seconds) / MINUTE_SECONDS * self.per_minute
        self._level = min(self._level + flown, self.per_minute)
        self._at_seconds = now
