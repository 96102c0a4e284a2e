"""Ctrl-C while the runner computes: the step has not happened, and everything goes on from there.

Requests, pools and options are drawn as for `test_schedules_do_not_change_outputs`; any step may be
interrupted, before or after it has written its keys and values.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagemill.batch import Batch, ModelRunner, StepResult
from pagemill.outputs import RequestOutput
from pagemill.scheduler.scheduler_output import SchedulerOutput
from tests.core_helpers import ByteTokenizer, assert_idle, simulated_engine
from tests.property.test_schedules_do_not_change_outputs import (
    BLOCK_SIZES,
    Arrival,
    arrivals,
    assert_same,
    drive,
    engine_options,
)

FIRED: Counter[str] = Counter()
"""What the interrupted steps had in them."""


class Interruptions:
    """A runner that is interrupted in some of its steps."""

    def __init__(self, runner: ModelRunner, interrupted: list[bool | None]) -> None:
        self.runner = runner
        self.interrupted = iter(interrupted)
        """For each of the first steps: None, or whether it has written by then."""
        self.vocab_size = runner.vocab_size
        self.move_blocks = runner.move_blocks
        self.read_block, self.write_block = runner.read_block, runner.write_block
        self.close = runner.close

    def execute(self, batch: Batch) -> StepResult:
        has_written = next(self.interrupted, None)
        if has_written is None:
            return self.runner.execute(batch)
        if has_written:
            self.runner.execute(batch)
        raise KeyboardInterrupt


@given(
    arrivals=arrivals(),
    block_size=BLOCK_SIZES,
    pool_tokens=st.integers(16, 90),
    options=engine_options(),
    interrupted=st.lists(st.sampled_from([None, None, False, True]), min_size=20, max_size=60),
)
def check_one_schedule(
    arrivals: list[Arrival],
    block_size: int,
    pool_tokens: int,
    options: dict[str, object],
    interrupted: list[bool | None],
) -> None:
    engine = simulated_engine(
        num_kv_blocks=max(pool_tokens // block_size, 1),
        block_size=block_size,
        tokenizer=ByteTokenizer(),
        **options,  # type: ignore[arg-type]
    )
    engine.runner = Interruptions(engine.runner, interrupted)
    plans: list[SchedulerOutput] = []
    step, build = engine.step, engine._build

    def noting_build(plan: SchedulerOutput) -> Batch:
        plans.append(plan)
        return build(plan)

    def step_or_not() -> list[RequestOutput]:
        try:
            return step()
        except KeyboardInterrupt:
            engine.audit()
            count_events(plans[-1])
            return []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "_build", noting_build)
        patch.setattr(engine, "step", step_or_not)
        use_priority = options["scheduling_policy"] == "priority"
        outputs, refused = drive(engine, arrivals, use_priority=use_priority)
    assert_idle(engine)
    for i, arrival in enumerate(arrivals):
        if i not in refused and arrival.abort_after != 0:
            assert_same(outputs[f"{i}"], arrival)


def count_events(plan: SchedulerOutput) -> None:
    FIRED["forks"] += len(plan.forks)
    FIRED["moves"] += len(plan.moves)
    FIRED["preemptions"] += len(plan.preempted)
    FIRED["chunks"] += len(plan.chunks)
    FIRED["decodes"] += plan.num_decodes


def test_every_step_may_be_interrupted(long_run: bool) -> None:
    FIRED.clear()
    settings(
        max_examples=5_000 if long_run else 120,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )(check_one_schedule)()
    # Without these it would say little.
    for what in ("forks", "moves", "preemptions", "chunks", "decodes"):
        assert FIRED[what] >= 5, (what, FIRED)
