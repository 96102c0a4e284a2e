"""`Histogram`: observations counted into buckets, as Prometheus wants them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

LATENCY_BOUNDS_SECONDS = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 320.0, 640.0),
)
"""Of a whole request, or of the wait for its beginning."""
TOKEN_BOUNDS_SECONDS = (
    *(0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15),
    *(0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 40.0),
)
"""Of one token."""
BATCH_BOUNDS_TOKENS = (1.0, *(2.0**i for i in range(1, 15)))


class Histogram:
    """Cheap enough for every token. One thread observes, any may read.

    Args:
        bounds: upper bounds of the buckets, ascending and inclusive; a last one without bound
            is added.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Add one observation."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Bounds as Prometheus writes them, each with the observations up to there."""
        names = [*map(repr, self.bounds), "+Inf"]
        return list(zip(names, map(float, accumulate(self._counts.copy())), strict=True))
