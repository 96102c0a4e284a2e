"""Faults that samples which share their blocks have shipped, each with its right behaviour."""

from __future__ import annotations

import dataclasses
import math

import pytest

from pagemill import RequestOutput, SamplingParams
from pagemill.batch import Batch, SampledToken, StepResult, TokenLogprobs
from pagemill.engine import LLMEngine
from pagemill.runner.simulated import SimulatedRunner
from pagemill.scheduler.scheduler_output import SchedulerOutput
from tests.core_helpers import (
    BLOCK,
    alone,
    generate_all,
    prompt_of,
    run_to_end,
    simulated_engine,
    tokens,
)
from tests.exactness import assert_as_alone, samples_alone

HALF = BLOCK + BLOCK // 2


@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("budget", [5, 64])
def test_two_forks_that_append_to_a_half_full_shared_block_copy_it_once_and_are_both_right(
    prefix_caching: bool, budget: int
) -> None:
    engine = simulated_engine(enable_prefix_caching=prefix_caching, max_num_batched_tokens=budget)
    params = SamplingParams(n=2, seed=1, max_tokens=40, logprobs=2)
    outputs = generate_all(engine, [("r", prompt_of(HALF), params)])
    assert engine.stats()["cow_copies"] == 1
    # The prompt is computed once.
    assert engine.stats()["num_computed_tokens"] == HALF + 2 * 39
    assert len({tuple(ids) for ids in tokens(outputs["r"])}) == 2
    assert_as_alone(outputs["r"], params)


@pytest.mark.parametrize(
    ("num_prompt_tokens", "n", "copies"), [(HALF, 5, 4), (2 * BLOCK, 5, 0), (1, 3, 2)]
)
def test_all_forks_but_the_last_to_write_make_a_copy(
    num_prompt_tokens: int, n: int, copies: int
) -> None:
    engine = simulated_engine()
    params = SamplingParams(n=n, seed=1, max_tokens=20)
    outputs = generate_all(engine, [("r", prompt_of(num_prompt_tokens), params)])
    assert engine.stats()["cow_copies"] == copies
    assert_as_alone(outputs["r"], params)


def test_forks_share_every_block_until_they_write() -> None:
    engine = simulated_engine(num_kv_blocks=20)
    params = SamplingParams(n=8, seed=1, max_tokens=20)
    engine.add_request("r", prompt_of(3 * BLOCK + 1), params)
    engine.step()
    assert engine.stats()["kv_blocks_referenced"] == 4
    engine.step()
    assert engine.stats()["kv_blocks_referenced"] == 3 + 8
    assert_as_alone(run_to_end(engine)["r"], params)


@pytest.mark.parametrize("num_tokens", [1, 2, 9])
def test_when_the_first_of_n_forks_stops_the_others_are_unaffected(num_tokens: int) -> None:
    """With one token it stops in the very step in which the others fork from it."""
    params = SamplingParams(n=3, seed=1, max_tokens=30)
    first, *others = tokens(alone(prompt_of(HALF), params))
    stop = first[num_tokens - 1]
    assert stop not in [*first[: num_tokens - 1], *others[0], *others[1]]
    params = dataclasses.replace(params, stop_token_ids=[stop])
    engine = simulated_engine()
    outputs = generate_all(engine, [("r", prompt_of(HALF), params)])
    assert tokens(outputs["r"]) == [first[:num_tokens], *others]
    assert [c.finish_reason for c in outputs["r"].outputs] == ["stop", "length", "length"]
    # It wrote to the shared block only if it lived long enough.
    assert engine.stats()["cow_copies"] == (1 if num_tokens == 1 else 2)
    assert_as_alone(outputs["r"], params)


class DamagedRunner(SimulatedRunner):
    """Computes NaN for one sample once it has so many tokens."""

    def __init__(self, seed: int, num_tokens: int) -> None:
        super().__init__(num_kv_blocks=64, block_size=BLOCK)
        self.damaged = (seed, num_tokens)

    def execute(self, batch: Batch) -> StepResult:
        result = super().execute(batch)
        for i, task in enumerate(batch.sampling):
            if (task.seed, len(task.output_token_ids)) == self.damaged:
                result.sampled[i] = SampledToken(None, TokenLogprobs(math.nan, 0, ()))
        return result


@pytest.mark.parametrize("num_tokens", [0, 1, 9])
def test_when_the_first_of_n_forks_is_aborted_the_others_are_unaffected(num_tokens: int) -> None:
    params = SamplingParams(n=3, seed=1, max_tokens=30, logprobs=1)
    engine = simulated_engine()
    engine.add_request("r", prompt_of(HALF), params)
    engine.runner = DamagedRunner(engine._requests["r"].sequences[0].seed, num_tokens)
    output = run_to_end(engine)["r"]
    expected = samples_alone(prompt_of(HALF), params)
    assert output.outputs[1:] == expected[1:]
    assert output.outputs[0].finish_reason == "abort"
    assert output.outputs[0].token_ids == expected[0].token_ids[:num_tokens]


def test_aborting_a_request_with_forks_frees_all_of_them_and_disturbs_nobody() -> None:
    engine = simulated_engine()
    params = SamplingParams(n=3, seed=1, max_tokens=30)
    for name in ("gone", "stays"):
        engine.add_request(name, prompt_of(HALF), params)
    for _ in range(5):
        engine.step()
    assert engine.stats()["num_requests_running"] == 6
    engine.abort("gone")
    assert engine.stats()["num_requests_running"] == 3
    assert_as_alone(run_to_end(engine)["stays"], params)


class InterruptedRunner(SimulatedRunner):
    """Ctrl-C in one step, before or after it has written its keys and values."""

    def __init__(self, engine: LLMEngine, at_step: int, has_written: bool) -> None:
        super().__init__(num_kv_blocks=engine.kv.num_blocks, block_size=BLOCK, num_swap_slots=40)
        self.steps_left = at_step
        self.has_written = has_written

    def execute(self, batch: Batch) -> StepResult:
        self.steps_left -= 1
        if self.steps_left == 0:
            if self.has_written:
                super().execute(batch)
            raise KeyboardInterrupt
        return super().execute(batch)


@pytest.mark.parametrize("has_written", [False, True])
@pytest.mark.parametrize("num_kv_blocks", [9, 64])
@pytest.mark.parametrize("at_step", [1, 2, 3])
def test_forks_of_a_step_that_was_interrupted_are_made_by_the_next_one(
    at_step: int, num_kv_blocks: int, has_written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = simulated_engine(
        num_kv_blocks=num_kv_blocks, num_swap_slots=40, max_num_batched_tokens=BLOCK
    )
    engine.runner = InterruptedRunner(engine, at_step, has_written)
    params = SamplingParams(n=3, seed=1, max_tokens=40, logprobs=1)
    engine.add_request("before", prompt_of(2, 5), params)
    engine.add_request("r", prompt_of(HALF), params)
    outputs: dict[str, RequestOutput] = {}
    for _ in range(at_step - 1):
        outputs |= {output.request_id: output for output in engine.step()}
    plans: list[SchedulerOutput] = []
    build = engine._build

    def noting(plan: SchedulerOutput) -> Batch:
        plans.append(plan)
        return build(plan)

    monkeypatch.setattr(engine, "_build", noting)
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    engine.audit()
    outputs |= {output.request_id: output for output in engine.step()}
    # In the small pool there is room for the forks of the first request only.
    num_forks = {1: 2, 2: 0 if num_kv_blocks == 9 else 2, 3: 0}[at_step]
    assert len(plans[0].forks) == len(plans[1].forks) == num_forks
    assert plans[0].num_tokens == plans[1].num_tokens
    outputs |= run_to_end(engine)
    assert engine.stats()["cow_copies"] >= 3
    for output in outputs.values():
        assert_as_alone(output, params)


def test_a_request_can_be_aborted_after_the_step_that_forked_it_was_interrupted() -> None:
    engine = simulated_engine(num_swap_slots=40)
    engine.runner = InterruptedRunner(engine, 1, has_written=True)
    params = SamplingParams(n=3, seed=1, max_tokens=20)
    for name in ("gone", "stays"):
        engine.add_request(name, prompt_of(HALF), params)
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    engine.abort("gone")
    engine.audit()
    assert_as_alone(run_to_end(engine)["stays"], params)


@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("max_num_seqs", [1, 2, 3])
def test_samples_beyond_max_num_seqs_follow_when_others_have_ended(
    max_num_seqs: int, prefix_caching: bool
) -> None:
    engine = simulated_engine(max_num_seqs=max_num_seqs, enable_prefix_caching=prefix_caching)
    params = SamplingParams(n=5, seed=1, max_tokens=20, logprobs=1)
    outputs = generate_all(
        engine, [("r", prompt_of(HALF), params), ("next", prompt_of(9, 4), params)]
    )
    stats = engine.stats()
    assert stats["running_per_step"]["p99"] <= max_num_seqs
    # Those of a pair or three share their prompt; the next ones find it, or compute it again.
    assert (stats["cow_copies"] > 0) == (max_num_seqs > 1)
    assert (engine.kv.num_whole_hits > 0) == prefix_caching
    prompts_computed = (stats["num_computed_tokens"] - 10 * 19) / (HALF + 9)
    assert prompts_computed < 2 if prefix_caching else 2 <= prompts_computed <= 5
    for output in outputs.values():
        assert_as_alone(output, params)


@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("budget", [5, 64])
def test_several_samples_of_no_tokens_score_the_prompt_once(
    budget: int, prefix_caching: bool
) -> None:
    engine = simulated_engine(max_num_batched_tokens=budget, enable_prefix_caching=prefix_caching)
    params = SamplingParams(n=3, seed=1, max_tokens=0, prompt_logprobs=2)
    output = generate_all(engine, [("r", prompt_of(HALF), params)])["r"]
    assert [c.token_ids for c in output.outputs] == [[], [], []]
    assert [c.finish_reason for c in output.outputs] == ["length"] * 3
    assert output.prompt_logprobs is not None
    assert len(output.prompt_logprobs) == HALF
    assert_as_alone(output, params)


@pytest.mark.parametrize("num_swap_slots", [0, 3, 40])
def test_forks_in_a_pool_that_holds_few_of_them_are_preempted_and_right(
    num_swap_slots: int,
) -> None:
    engine = simulated_engine(num_kv_blocks=8, num_swap_slots=num_swap_slots)
    params = SamplingParams(n=4, seed=1, max_tokens=70, logprobs=1)
    outputs = generate_all(engine, [(f"{i}", prompt_of(HALF, i), params) for i in range(3)])
    stats = engine.stats()
    assert stats["cow_copies"] >= 3
    assert (stats["num_preemptions_swap"] > 0) == (num_swap_slots > 0)
    assert (stats["num_preemptions_recompute"] > 0) == (num_swap_slots < 40)
    for output in outputs.values():
        assert_as_alone(output, params)
