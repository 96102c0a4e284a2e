"""Whatever is generated beside it, an embedding is that of its prompt alone.

Prompts to embed and requests to generate are drawn as for `test_schedules_do_not_change_outputs`,
into engines where both are short of memory and what is generated goes first; steps may be
interrupted.
"""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagemill import SamplingParams
from pagemill.outputs import RequestOutput
from tests.core_helpers import ByteTokenizer, assert_idle, prompt_of, simulated_engine
from tests.property.test_interrupted_steps_change_nothing import Interruptions
from tests.property.test_schedules_do_not_change_outputs import (
    Arrival,
    arrivals,
    assert_same,
    drive,
    engine_options,
    prompts,
)

FIRED: Counter[str] = Counter()
"""What happened to embeddings in the examples of one run."""
EVENTS = (
    "in chunks",
    "beside generation",
    "preempted and computed again",
    "preempted and swapped",
    "aborted",
    "refused",
    "interrupted",
)


def embeddings() -> st.SearchStrategy[list[Arrival]]:
    """Of one or two drawn prompts together, early and less urgent than what is generated."""
    one = st.builds(
        lambda at_step, parts, abort_after, salt: Arrival(
            at_step, [token for part in parts for token in part], None, 2, abort_after, salt
        ),
        at_step=st.integers(0, 4),
        parts=st.lists(prompts(), min_size=1, max_size=2),
        abort_after=st.sampled_from([None, None, None, 2, 9]),
        salt=st.sampled_from([None, None, "a"]),
    )
    return st.lists(one, min_size=1, max_size=4)


@given(
    embedded=embeddings(),
    generated=arrivals().map(lambda drawn: drawn[:3]),
    urgent_at_step=st.integers(1, 8),
    block_size=st.sampled_from([1, 2, 3, 4, 8]),
    pool_tokens=st.integers(60, 200),
    max_num_batched_tokens=st.integers(1, 16),
    preemption_mode=st.sampled_from(["swap", "recompute"]),
    options=engine_options(),
    interrupted=st.lists(st.sampled_from([None, None, None, False, True]), max_size=40),
)
def check_one_schedule(
    embedded: list[Arrival],
    generated: list[Arrival],
    urgent_at_step: int,
    block_size: int,
    pool_tokens: int,
    max_num_batched_tokens: int,
    preemption_mode: str,
    options: dict[str, object],
    interrupted: list[bool | None],
) -> None:
    options = options | {
        "max_num_batched_tokens": max_num_batched_tokens,
        "preemption_mode": preemption_mode,
        "scheduling_policy": "priority",
    }
    engine = simulated_engine(
        num_kv_blocks=max(pool_tokens // block_size, 1),
        block_size=block_size,
        tokenizer=ByteTokenizer(),
        **options,  # type: ignore[arg-type]
    )
    engine.runner = Interruptions(engine.runner, interrupted)
    step = engine.step

    def step_or_not() -> list[RequestOutput]:
        try:
            return step()
        except KeyboardInterrupt:
            engine.audit()
            FIRED["interrupted"] += any(
                not seq.request.max_tokens for seq in engine.scheduler.running
            )
            return []

    # One that takes most of the pool, and what others have begun.
    prompt = [token % 258 for token in prompt_of(pool_tokens * 2 // 3, 5)]
    params = SamplingParams(max_tokens=3, seed=1)
    urgent = Arrival(urgent_at_step, prompt, params, -2, None, None)
    all_arrivals = [
        *embedded,
        *(dataclasses.replace(one, priority=-1) for one in generated),
        urgent,
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "step", step_or_not)
        outputs, refused = drive(engine, all_arrivals, use_priority=True)
    assert_idle(engine)
    for i, arrival in enumerate(all_arrivals):
        if i not in refused and arrival.abort_after != 0:
            assert_same(outputs[f"{i}"], arrival)
    FIRED["refused"] += len([i for i in refused if i < len(embedded)])
    for i in range(len(embedded)):
        if i not in refused:
            count_events(outputs[f"{i}"], options, len(outputs))


def count_events(output: RequestOutput, options: dict[str, object], num_outputs: int) -> None:
    if output.embedding is None:
        FIRED["aborted"] += 1
        return
    assert isinstance(options["max_num_batched_tokens"], int)
    FIRED["in chunks"] += len(output.prompt_token_ids) > options["max_num_batched_tokens"]
    FIRED["beside generation"] += num_outputs > 1
    if output.metrics.num_preemptions:
        FIRED["preempted and computed again"] += options["preemption_mode"] == "recompute"
        FIRED["preempted and swapped"] += options["preemption_mode"] == "swap"


def test_every_schedule_gives_each_prompt_the_embedding_it_has_alone(long_run: bool) -> None:
    FIRED.clear()
    settings(
        max_examples=10_000 if long_run else 200,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )(check_one_schedule)()
    # Without these the property would say little.
    for what in EVENTS:
        assert FIRED[what] >= 3, (what, FIRED)
