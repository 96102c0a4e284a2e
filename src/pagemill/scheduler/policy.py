"""Who goes first.

A policy gives each request a rank; the smaller rank is served first, keeps its blocks longest and
is preempted last. The scheduler asks once for each request, on arrival, and appends the
sequence's own number, so ranks are unique and ties are first come, first served. A sequence keeps
its rank for life: that the best-ranked one always advances is what makes all of them finish.
"""

from __future__ import annotations

from typing import Protocol

from pagemill.errors import ConfigError, InvalidParameterError
from pagemill.request import Request


class SchedulingPolicy(Protocol):
    """Give a class of your own to ``EngineConfig.scheduling_policy`` to try another order."""

    name: str

    def rank(self, request: Request) -> float:
        """Smaller is served first. A finite number; may read anything of the request. Called once,
        on arrival.
        """
        ...

    def check(self, priority: int) -> None:
        """Raise `InvalidParameterError` if this policy has no use for ``priority``."""
        ...


class FCFSPolicy:
    """First come, first served, by arrival; a preempted request keeps its place."""

    name = "fcfs"

    def rank(self, request: Request) -> float:
        """Arrival, in seconds."""
        return request.times.arrival_seconds

    def check(self, priority: int) -> None:
        """Refuse priorities: they would be ignored."""
        if priority != 0:
            raise InvalidParameterError(
                "priority", priority, "must be 0 under scheduling_policy='fcfs'; use 'priority'"
            )


class PriorityPolicy:
    """Smaller ``priority`` values first, with aging.

    A step of priority is worth ``aging_seconds`` of waiting: the rank is ``arrival + priority *
    aging_seconds``. So a request of priority p waits at most for those of priority q < p that
    arrive within ``(p - q) * aging_seconds`` after it; an endless stream of urgent requests
    delays it by a bounded time and can never starve it. Ranks do not change over time, so there
    is nothing to re-sort.

    Args:
        aging_seconds: seconds of waiting that make up for one step of priority.
    """

    name = "priority"

    def __init__(self, aging_seconds: float = 10.0) -> None:
        if not 0.0 < aging_seconds < float("inf"):
            raise ConfigError(f"aging_seconds must be positive and finite, got {aging_seconds}")
        self.aging_seconds = aging_seconds

    def rank(self, request: Request) -> float:
        """Virtual arrival, in seconds."""
        return request.times.arrival_seconds + request.priority * self.aging_seconds

    def check(self, priority: int) -> None:
        """Bound the value, so that a rank keeps its microseconds."""
        if not -1000 <= priority <= 1000:
            raise InvalidParameterError("priority", priority, "must be in [-1000, 1000]")


def make_policy(policy: str | SchedulingPolicy) -> SchedulingPolicy:
    """The policy that ``EngineConfig.scheduling_policy`` names, or the object itself."""
    if policy == "fcfs":
        return FCFSPolicy()
    if policy == "priority":
        return PriorityPolicy()
    if isinstance(policy, str):
        raise ConfigError(f"scheduling_policy must be one of fcfs, priority, got {policy!r}")
    return policy
