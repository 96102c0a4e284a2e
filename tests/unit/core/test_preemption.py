from __future__ import annotations

import pytest

from pagemill.scheduler.preemption import PreemptionCosts

BLOCK_BYTES = 1000


def test_a_mode_that_is_asked_for_is_kept_whatever_it_costs() -> None:
    for mode, swaps in [("swap", True), ("recompute", False)]:
        costs = PreemptionCosts(mode, BLOCK_BYTES)
        for seconds in (1e-9, 1e9):
            costs.on_swapped(1, seconds)
            costs.on_computed(100, 1.0)
            assert costs.prefers_swap(3, 48) == swaps


def test_auto_recomputes_until_it_knows_what_that_costs() -> None:
    costs = PreemptionCosts("auto", BLOCK_BYTES)
    assert not costs.prefers_swap(1, 10_000)
    costs.on_computed(15, 1000.0)  # too few rows to say anything
    assert not costs.prefers_swap(1, 10_000)
    costs.on_computed(16, 16.0)
    assert costs.prefers_swap(1, 10_000)


def with_costs(seconds_per_block: float, seconds_per_token: float) -> PreemptionCosts:
    costs = PreemptionCosts("auto", BLOCK_BYTES)
    for _ in range(100):
        costs.on_swapped(5, 5 * seconds_per_block)
        costs.on_computed(100, 100 * seconds_per_token)
    return costs


@pytest.mark.parametrize(
    ("seconds_per_block", "seconds_per_token", "num_blocks", "num_tokens", "swaps"),
    [
        # Out and in again: two moves a block.
        (1.0, 0.13, 4, 64, True),
        (1.0, 0.12, 4, 64, False),
        (1.0, 0.13, 4, 61, False),  # a last block that is nearly empty is moved whole
        (0.001, 0.13, 1, 1, True),
        (8.0, 0.13, 1, 16, False),
    ],
)
def test_auto_takes_what_was_cheaper_so_far(
    seconds_per_block: float,
    seconds_per_token: float,
    num_blocks: int,
    num_tokens: int,
    swaps: bool,
) -> None:
    costs = with_costs(seconds_per_block, seconds_per_token)
    assert costs.prefers_swap(num_blocks, num_tokens) == swaps


def test_auto_follows_costs_that_change_and_one_slow_step_alone_does_not_turn_it() -> None:
    costs = with_costs(seconds_per_block=1.0, seconds_per_token=0.2)
    assert costs.prefers_swap(4, 64)
    costs.on_swapped(1, 2.0)
    assert costs.prefers_swap(4, 64)
    for _ in range(30):
        costs.on_swapped(1, 2.0)
    assert not costs.prefers_swap(4, 64)
    for _ in range(30):
        costs.on_computed(16, 16 * 0.5)
    assert costs.prefers_swap(4, 64)
