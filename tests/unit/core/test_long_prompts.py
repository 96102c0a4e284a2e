"""A prompt that fills several steps, and those beside it. Time is virtual."""

from __future__ import annotations

import pytest

from pagemill.batch import Batch, StepResult
from pagemill.engine import LLMEngine
from pagemill.runner.simulated import LinearCost
from pagemill.sampling_params import SamplingParams
from tests.core_helpers import assert_idle, prompt_of, roomy_engine

BUDGET = 1024
LONG = 4000
COST = LinearCost()
CHUNK_STEP_SECONDS = COST.per_step_seconds + COST.per_token_seconds * BUDGET


def engine_with_streams(num_streams: int = 16, **options: object) -> LLMEngine:
    """Streams that decode, and go on doing so."""
    engine = roomy_engine(max_num_batched_tokens=BUDGET, **options)
    for i in range(num_streams):
        params = SamplingParams(max_tokens=200, ignore_eos=True)
        engine.add_request(f"stream {i}", prompt_of(20, i), params)
    while len(engine.scheduler.decodes) < num_streams:
        engine.step()
    return engine


def watch_steps(engine: LLMEngine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tokens of each step from now on."""
    sizes: list[int] = []
    execute = engine.runner.execute

    def watched(batch: Batch) -> StepResult:
        sizes.append(batch.num_tokens)
        return execute(batch)

    monkeypatch.setattr(engine.runner, "execute", watched)
    return sizes


@pytest.mark.parametrize("policy", ["fcfs", "priority", "deadline"])
def test_whoever_comes_while_a_long_prompt_is_computed_waits_for_two_steps_at_most(
    policy: str,
) -> None:
    engine = engine_with_streams(scheduling_policy=policy)
    waits: dict[str, float] = {}
    engine.add_request("long", prompt_of(LONG, 99), SamplingParams(max_tokens=1))
    steps = 0
    while "long" not in waits:
        began = engine.clock()
        # At the worst moment: a step has begun without it.
        outputs = engine.step()
        for i in range(4):
            name = f"short {steps}-{i}"
            params = SamplingParams(max_tokens=2, ignore_eos=True)
            engine.add_request(name, prompt_of(50, steps * 4 + i), params, arrival_seconds=began)
        steps += 1
        for output in outputs:
            ttft_seconds = output.metrics.ttft_seconds
            if ttft_seconds is not None:
                waits.setdefault(output.request_id, ttft_seconds)
        streams = [o for o in outputs if o.request_id.startswith("stream")]
        assert len(streams) == 16, "a stream got no token in a step"
    shorts = [seconds for name, seconds in waits.items() if name.startswith("short")]
    assert len(shorts) >= 12
    assert max(shorts) <= 2 * CHUNK_STEP_SECONDS + 1e-9
    assert steps <= 2 * -(-LONG // BUDGET)


def test_one_that_comes_with_a_long_prompt_does_not_wait_for_it_either() -> None:
    engine = engine_with_streams()
    engine.add_request("long", prompt_of(LONG, 99), SamplingParams(max_tokens=1))
    engine.add_request("short", prompt_of(50), SamplingParams(max_tokens=1))
    assert "short" in {output.request_id for output in engine.step()}


def test_what_nobody_else_needs_goes_to_the_long_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_with_streams()
    sizes = watch_steps(engine, monkeypatch)
    engine.add_request("long", prompt_of(LONG, 99), SamplingParams(max_tokens=1))
    engine.add_request("short", prompt_of(50), SamplingParams(max_tokens=20, ignore_eos=True))
    for _ in range(3):
        engine.step()
    assert sizes == [BUDGET] * 3


def test_those_who_cannot_be_admitted_do_not_slow_a_long_prompt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = engine_with_streams(max_num_seqs=17)
    sizes = watch_steps(engine, monkeypatch)
    engine.add_request("long", prompt_of(LONG, 99), SamplingParams(max_tokens=1))
    engine.add_request("queued", prompt_of(50), SamplingParams(max_tokens=1))
    for _ in range(3):
        engine.step()
    assert sizes == [BUDGET] * 3


def test_long_prompts_share_with_each_other_and_all_come_to_their_end() -> None:
    engine = roomy_engine(max_num_batched_tokens=64, num_kv_blocks=600, max_model_len=1024)
    for i in range(6):
        params = SamplingParams(max_tokens=3, n=2, seed=i)
        engine.add_request(f"long {i}", prompt_of(700 + i, i), params)
    finished: list[str] = []
    steps = 0
    while engine.has_unfinished_requests():
        finished += [output.request_id for output in engine.step() if output.finished]
        steps += 1
    assert finished == [f"long {i}" for i in range(6)], "who came first ended first"
    assert steps <= (6 * 705) // 64 + 20
    assert_idle(engine)


@pytest.mark.parametrize("num_ahead", [1, 3])
def test_who_waits_for_a_prompt_under_way_holds_up_nobody_behind(num_ahead: int) -> None:
    """Others that need the same prompt, or more samples of it, stand first in the queue."""
    engine = engine_with_streams(enable_prefix_caching=True, num_kv_blocks=2000)
    for i in range(num_ahead):
        params = SamplingParams(max_tokens=2, n=2, ignore_eos=True, seed=i)
        engine.add_request(f"long {i}", prompt_of(LONG, 99), params)
    engine.add_request("short", prompt_of(50), SamplingParams(max_tokens=1))
    began = engine.clock()
    outputs = {output.request_id for _ in range(2) for output in engine.step()}
    assert "short" in outputs
    assert engine.clock() - began <= 2 * CHUNK_STEP_SECONDS + 1e-9
    # The prompt is computed once, whoever came between.
    while engine.has_unfinished_requests():
        engine.step()
    assert engine.metrics.num_computed_tokens < LONG + BUDGET + 16 * 220
    assert_idle(engine)
