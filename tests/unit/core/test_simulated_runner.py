"""The simulated runner is the instrument of many tests: it must notice what they look for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from pagemill import SamplingParams
from pagemill.batch import Batch, SamplingTask
from pagemill.runner.simulated import LinearCost, SimulatedRunner, VirtualClock

BLOCK = 4


def decode_batch(table: list[int], tokens: list[int], start: int) -> Batch:
    """Compute ``tokens[start:]`` of one sequence and draw one token."""
    positions = np.arange(start, len(tokens))
    blocks = np.array([table])
    return Batch(
        token_ids=np.array(tokens[start:]),
        positions=positions,
        slot_mapping=blocks[0][positions // BLOCK] * BLOCK + positions % BLOCK,
        query_start_loc=np.array([0, len(positions)]),
        context_lens=np.array([len(tokens)]),
        block_tables=blocks,
        logits_indices=np.array([len(positions) - 1]),
        sampling=[SamplingTask(0, SamplingParams(temperature=0), tokens, [], 0, frozenset())],
    )


def draw(runner: SimulatedRunner, table: list[int], tokens: list[int], start: int) -> int | None:
    return runner.execute(decode_batch(table, tokens, start)).sampled[0].token_id


def fresh() -> SimulatedRunner:
    return SimulatedRunner(num_kv_blocks=8, block_size=BLOCK, vocab_size=2**40)


TOKENS = list(range(100, 110))


def test_the_same_sequence_gives_the_same_token_in_any_blocks_and_chunks() -> None:
    expected = draw(fresh(), [0, 1, 2], TOKENS, 0)
    runner = fresh()
    draw(runner, [5, 3, 7], TOKENS[:3], 0)
    draw(runner, [5, 3, 7], TOKENS[:9], 3)
    assert draw(runner, [5, 3, 7], TOKENS, 9) == expected


def swap_two_blocks(runner: SimulatedRunner, table: list[int]) -> None:
    table[0], table[1] = table[1], table[0]


def name_a_foreign_block(runner: SimulatedRunner, table: list[int]) -> None:
    table[1] = 6


def let_another_write_into_a_block(runner: SimulatedRunner, table: list[int]) -> None:
    draw(runner, [table[1]], [1], 0)


@pytest.mark.parametrize(
    "fault", [swap_two_blocks, name_a_foreign_block, let_another_write_into_a_block]
)
def test_a_wrong_or_overwritten_block_gives_another_token(
    fault: Callable[[SimulatedRunner, list[int]], None],
) -> None:
    runner, table = fresh(), [0, 1, 2]
    draw(runner, table, TOKENS[:9], 0)
    fault(runner, table)
    assert draw(runner, table, TOKENS, 9) != draw(fresh(), [0, 1, 2], TOKENS, 0)


def test_a_token_that_was_never_computed_is_noticed() -> None:
    runner = fresh()
    draw(runner, [0, 1, 2], TOKENS[:5], 0)
    assert draw(runner, [0, 1, 2], TOKENS, 9) != draw(fresh(), [0, 1, 2], TOKENS, 0)


def test_a_step_moves_the_clock_by_its_cost() -> None:
    clock = VirtualClock()
    runner = SimulatedRunner(
        num_kv_blocks=8, block_size=BLOCK, clock=clock, cost=LinearCost(0.5, 0.25)
    )
    draw(runner, [0, 1, 2], TOKENS, 0)
    assert clock() == 0.5 + 0.25 * len(TOKENS)
