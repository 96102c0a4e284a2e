"""A bucket lets through so much a minute, and says how long to wait."""

from __future__ import annotations

from pagemill.runner.simulated import VirtualClock
from pagemill.server.rate_limits import TokenBucket


def test_a_full_bucket_is_used_at_once_and_then_fills_evenly() -> None:
    clock = VirtualClock()
    bucket = TokenBucket(60, clock)
    assert [bucket.take() for _ in range(60)] == [0.0] * 60
    assert bucket.take() == 1.0
    clock.advance(0.5)
    assert bucket.take() == 0.5
    clock.advance(0.5)
    assert bucket.take() == 0.0
    assert bucket.take() == 1.0


def test_a_refused_request_costs_nothing() -> None:
    clock = VirtualClock()
    bucket = TokenBucket(2, clock)
    assert bucket.take(2) == 0.0
    for _ in range(100):
        assert bucket.take() == 30.0
    clock.advance(30)
    assert bucket.take() == 0.0


def test_it_never_holds_more_than_a_minutes_worth() -> None:
    clock = VirtualClock()
    bucket = TokenBucket(5, clock)
    clock.advance(3600)
    assert [bucket.take() for _ in range(6)] == [0.0] * 5 + [12.0]


def test_what_was_reserved_and_not_used_comes_back() -> None:
    clock = VirtualClock()
    bucket = TokenBucket(100, clock)
    assert bucket.take(90) == 0.0
    assert bucket.take(50) == 24.0
    bucket.settle(90, used=10)
    assert bucket.take(90) == 0.0


def test_a_request_larger_than_the_bucket_takes_all_of_it_and_leaves_a_debt() -> None:
    clock = VirtualClock()
    bucket = TokenBucket(100, clock)
    assert bucket.take(1000) == 0.0
    bucket.settle(1000, used=200)
    assert bucket.take(1) == 60.6
    clock.advance(60.6)
    assert bucket.take(1) == 0.0
