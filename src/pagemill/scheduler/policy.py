"""Who goes first.

A policy gives each request a rank; the smaller rank is served first, keeps its blocks longest and
is preempted last. The scheduler asks once for each request, on arrival, and appends the
sequence's own number, so ranks are unique and ties are first come, first served. A sequence keeps
its rank for life: that the best-ranked one always advances is what makes all of them finish.
"""

from __future__ import annotations

from collections.abc import Callable
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

    def check(self, request: Request) -> None:
        """Raise `InvalidParameterError` if the request's priority or deadline is nothing that this
        policy has a use for.
        """
        ...


class FCFSPolicy:
    """First come, first served, by arrival; a preempted request keeps its place."""

    name = "fcfs"

    def rank(self, request: Request) -> float:
        """Arrival, in seconds."""
        return request.times.arrival_seconds

    def check(self, request: Request) -> None:
        """Refuse priorities and deadlines: they would be ignored."""
        _refuse_priority(request, self.name)
        _refuse_deadline(request, self.name)


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
        _check_seconds("aging_seconds", aging_seconds)
        self.aging_seconds = aging_seconds

    def rank(self, request: Request) -> float:
        """Virtual arrival, in seconds."""
        return request.times.arrival_seconds + request.priority * self.aging_seconds

    def check(self, request: Request) -> None:
        """Bound the value, so that a rank keeps its microseconds; refuse deadlines."""
        if not -1000 <= request.priority <= 1000:
            raise InvalidParameterError("priority", request.priority, "must be in [-1000, 1000]")
        _refuse_deadline(request, self.name)


class DeadlinePolicy:
    """Earliest deadline first (Liu and Layland, JACM 1973).

    A request's deadline is so many seconds after its arrival; one without gets
    ``default_deadline_seconds``. So it waits at most for those that arrive within that time after
    it: an endless stream of urgent requests cannot starve it. A deadline that has passed is not
    given up: the request is then more urgent than all that came later.

    Args:
        default_deadline_seconds: of a request that has none.
    """

    name = "deadline"

    def __init__(self, default_deadline_seconds: float = 60.0) -> None:
        _check_seconds("default_deadline_seconds", default_deadline_seconds)
        self.default_deadline_seconds = default_deadline_seconds

    def rank(self, request: Request) -> float:
        """The deadline, in seconds of the engine's clock."""
        deadline = request.deadline_seconds
        after = self.default_deadline_seconds if deadline is None else deadline
        return request.times.arrival_seconds + after

    def check(self, request: Request) -> None:
        """Refuse priorities; the deadline was checked at the door."""
        _refuse_priority(request, self.name)


def _check_seconds(name: str, value: object) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (is_number and 0.0 < value < float("inf")):  # type: ignore[operator]
        raise ConfigError(f"{name} must be a positive and finite number, got {value!r}")


def _refuse_priority(request: Request, policy: str) -> None:
    if request.priority != 0:
        raise InvalidParameterError(
            "priority",
            request.priority,
            f"must be 0 under scheduling_policy={policy!r}; use 'priority'",
        )


def _refuse_deadline(request: Request, policy: str) -> None:
    if request.deadline_seconds is not None:
        raise InvalidParameterError(
            "deadline_seconds",
            request.deadline_seconds,
            f"must be None under scheduling_policy={policy!r}; use 'deadline'",
        )


def make_policy(policy: str | SchedulingPolicy) -> SchedulingPolicy:
    """The policy that ``EngineConfig.scheduling_policy`` names, or the object itself."""
    if isinstance(policy, str):
        return _POLICIES[policy]()
    return policy


_POLICIES: dict[str, Callable[[], SchedulingPolicy]] = {
    policy.name: policy for policy in (FCFSPolicy, PriorityPolicy, DeadlinePolicy)
}
