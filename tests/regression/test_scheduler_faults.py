"""Faults that schedulers of this kind have shipped, each with its right behaviour."""

from __future__ import annotations

import pytest

from pagemill import InvalidParameterError, RequestOutput, RequestTooLargeError, SamplingParams
from pagemill.engine import LLMEngine
from pagemill.request import Request, SequenceStatus
from pagemill.scheduler.policy import DeadlinePolicy, PriorityPolicy
from pagemill.scheduler.scheduler_output import SchedulerOutput
from tests.core_helpers import (
    BLOCK,
    alone,
    assert_idle,
    generate_all,
    prompt_of,
    run_to_end,
    simulated_engine,
    tokens,
)


def test_a_request_larger_than_the_pool_is_refused_with_both_sizes_and_the_next_one_runs() -> None:
    engine = simulated_engine(num_kv_blocks=8, max_model_len=1024)
    with pytest.raises(RequestTooLargeError, match=r"200 tokens.*need 14 KV blocks.*pool has 8"):
        engine.add_request("large", prompt_of(200), SamplingParams(max_tokens=20))
    with pytest.raises(RequestTooLargeError, match=r"200 tokens.*8 blocks of 16"):
        engine.add_request("large", prompt_of(200), SamplingParams())
    engine.add_request("small", prompt_of(5), SamplingParams(max_tokens=4))
    assert len(tokens(run_to_end(engine)["small"])[0]) == 4


@pytest.mark.parametrize("budget", [7, 64])
@pytest.mark.parametrize("num_prompt_tokens", [1, BLOCK - 1, BLOCK, 3 * BLOCK + 5])
def test_what_admission_accepts_finishes_and_what_cannot_finish_is_refused(
    num_prompt_tokens: int, budget: int
) -> None:
    num_kv_blocks = 6
    capacity = num_kv_blocks * BLOCK
    for total in range(capacity - 2 * BLOCK, capacity + 2 * BLOCK + 1):
        engine = simulated_engine(num_kv_blocks=num_kv_blocks, max_num_batched_tokens=budget)
        params = SamplingParams(max_tokens=total - num_prompt_tokens)
        # The last generated token needs no slot of its own.
        if total - 1 <= capacity:
            engine.add_request("r", prompt_of(num_prompt_tokens), params)
            assert len(tokens(run_to_end(engine)["r"])[0]) == params.max_tokens
        else:
            with pytest.raises(RequestTooLargeError):
                engine.add_request("r", prompt_of(num_prompt_tokens), params)
            assert_idle(engine)


def test_a_request_without_max_tokens_runs_to_the_end_of_the_smaller_of_pool_and_context() -> None:
    for num_kv_blocks, max_model_len, total in [(4, 1024, 65), (64, 100, 100)]:
        engine = simulated_engine(num_kv_blocks=num_kv_blocks, max_model_len=max_model_len)
        engine.add_request("r", prompt_of(10), SamplingParams())
        output = run_to_end(engine)["r"]
        assert 10 + len(output.outputs[0].token_ids) == total
        assert output.outputs[0].finish_reason == "length"


def test_cancelling_a_waiting_request_at_the_edge_of_capacity_lets_the_next_one_run_at_once() -> (
    None
):
    engine = simulated_engine(num_kv_blocks=8)
    engine.add_request("running", prompt_of(20), SamplingParams(max_tokens=100))
    engine.step()
    engine.add_request("edge", prompt_of(7 * BLOCK), SamplingParams(max_tokens=BLOCK))
    engine.add_request("small", prompt_of(5, start=2), SamplingParams(max_tokens=4))
    engine.step()
    assert len(engine.scheduler.waiting) == 2
    assert engine.abort("edge")
    outputs = engine.step()
    assert {output.request_id for output in outputs} == {"edge", "running", "small"}
    run_to_end(engine)


def test_a_sequence_alone_cannot_outgrow_the_pool_but_can_be_preempted_by_others_and_finish() -> (
    None
):
    params = SamplingParams(max_tokens=60, seed=1)
    engine = simulated_engine(num_kv_blocks=6)
    outputs = generate_all(engine, [(f"{i}", prompt_of(30, start=i), params) for i in range(3)])
    assert engine.metrics.num_preemptions_recompute > 0
    for i in range(3):
        assert tokens(outputs[f"{i}"]) == tokens(alone(prompt_of(30, start=i), params))


def test_a_prompt_longer_than_the_budget_advances_every_step_under_memory_pressure() -> None:
    engine = simulated_engine(num_kv_blocks=24, max_num_batched_tokens=16)
    for i in range(4):
        engine.add_request(f"d{i}", prompt_of(3, start=i), SamplingParams(max_tokens=70))
    engine.step()
    engine.add_request("long", prompt_of(200, start=9), SamplingParams(max_tokens=5))
    (long_seq,) = engine._requests["long"].sequences
    computed = [0]
    while long_seq.num_uncomputed_tokens > 0 and not long_seq.output_token_ids:
        engine.step()
        computed.append(long_seq.num_computed_tokens)
    # Four decodes leave twelve tokens of the budget for it in every step.
    assert computed == [min(12 * i, 200) for i in range(len(computed))]
    assert long_seq.request.times.num_preemptions == 0
    run_to_end(engine)


def test_preemption_does_not_thrash() -> None:
    """A sequence that was just admitted is not the next step's victim."""
    engine = simulated_engine(num_kv_blocks=16, max_num_batched_tokens=32)
    params = SamplingParams(max_tokens=90)
    for i in range(12):
        engine.add_request(f"{i}", prompt_of(30, start=i), params)
    run_to_end(engine)
    computed = engine.metrics.num_computed_tokens
    useful = 12 * (30 + 90 - 1)
    assert engine.metrics.num_preemptions_recompute > 0
    assert computed < 1.5 * useful


def test_n_samples_finish_on_a_tiny_pool_under_forced_preemption_with_the_same_tokens() -> None:
    params = SamplingParams(n=3, max_tokens=80, seed=11)
    undisturbed = alone(prompt_of(25), params)
    assert len({tuple(ids) for ids in tokens(undisturbed)}) == 3
    for every in (2, 3, 7):
        engine = simulated_engine(num_kv_blocks=9, max_num_batched_tokens=16)
        engine.add_request("r", prompt_of(25), params)
        outputs: dict[str, RequestOutput] = {}
        for step in range(5000):
            if not engine.has_unfinished_requests():
                break
            if step % every == 0:
                force_preemption(engine)
            outputs |= {output.request_id: output for output in engine.step()}
        assert tokens(outputs["r"]) == tokens(undisturbed)
        assert outputs["r"].metrics.num_preemptions > 3
        assert_idle(engine)


def force_preemption(engine: LLMEngine) -> None:
    """Preempt the lowest-ranked running sequence that has made some progress."""
    scheduler = engine.scheduler
    if len(scheduler.running) > 1:
        scheduler._preempt(scheduler.running.last, SchedulerOutput(scheduler.decodes))


def test_a_preempted_sequence_resumes_as_a_prefill_with_identical_tokens() -> None:
    params = SamplingParams(max_tokens=50)
    engine = simulated_engine(max_num_batched_tokens=64, enable_prefix_caching=False)
    engine.add_request("r", prompt_of(3), params)
    (seq,) = engine._requests["r"].sequences
    while len(seq.output_token_ids) < 20:
        engine.step()
    engine.scheduler._preempt(seq, SchedulerOutput(engine.scheduler.decodes))
    assert seq.status is SequenceStatus.WAITING
    plan = engine.scheduler.schedule()
    assert [(c.seq.seq_id, c.num_tokens) for c in plan.chunks] == [(seq.seq_id, 23)]
    engine.scheduler._preempt(seq, plan)
    assert tokens(run_to_end(engine)["r"]) == tokens(alone(prompt_of(3), params))


def test_an_urgent_request_starts_within_a_few_steps_though_all_slots_are_taken() -> None:
    engine = simulated_engine(max_num_seqs=2, scheduling_policy="priority")
    for i in range(4):
        engine.add_request(
            f"low{i}", prompt_of(20, i), SamplingParams(max_tokens=300, seed=1), priority=5
        )
    for _ in range(3):
        engine.step()
    engine.add_request("urgent", prompt_of(20, 9), SamplingParams(max_tokens=5), priority=0)
    first = engine.step()
    assert "urgent" in {output.request_id for output in first}
    # The victim goes before those of its class that never started.
    preempted = engine.scheduler.waiting.first.request
    assert preempted.request_id == "low1"
    assert preempted.times.num_preemptions == 1
    outputs = run_to_end(engine)
    assert tokens(outputs["low1"]) == tokens(
        alone(prompt_of(20, 1), SamplingParams(max_tokens=300, seed=1))
    )


def test_whoever_is_preempted_for_a_better_ranked_request_makes_room_for_it_in_that_step() -> None:
    engine = simulated_engine(num_kv_blocks=6, block_size=4, scheduling_policy="priority")
    engine.add_request("best", prompt_of(4), SamplingParams(max_tokens=12), priority=0)
    engine.add_request("low", prompt_of(3, 1), SamplingParams(max_tokens=20, seed=1), priority=2)
    engine.step()
    engine.add_request("middle", prompt_of(16, 2), SamplingParams(max_tokens=1), priority=1)
    # "best" grows into a new block in the very step that preempts "low" for "middle".
    outputs = {output.request_id: output for output in engine.step()}
    assert engine.metrics.num_preemptions_recompute == 1
    assert outputs.keys() == {"best", "middle"}
    assert outputs["middle"].finished
    assert tokens(run_to_end(engine)["low"]) == tokens(
        alone(prompt_of(3, 1), SamplingParams(max_tokens=20, seed=1))
    )


def test_aging_lets_a_low_priority_request_finish_under_an_endless_urgent_stream() -> None:
    policy = PriorityPolicy(aging_seconds=0.5)
    engine = simulated_engine(max_num_seqs=2, scheduling_policy=policy)
    engine.add_request("low", prompt_of(20), SamplingParams(max_tokens=10), priority=2)
    for i in range(500):
        engine.add_request(f"u{i}", prompt_of(20, i), SamplingParams(max_tokens=10), priority=0)
        engine.add_request(f"v{i}", prompt_of(20, i), SamplingParams(max_tokens=10), priority=0)
        done = [output for _ in range(10) for output in engine.step() if output.finished]
        low = next((output for output in done if output.request_id == "low"), None)
        if low is not None:
            break
    else:
        pytest.fail("the low-priority request starved")
    assert low.metrics.e2e_seconds is not None
    # Two steps of priority are worth a second; what is ahead by then needs no more than another.
    assert 0.5 < low.metrics.e2e_seconds < 2.0
    engine.close()


def test_equal_priorities_are_first_come_first_served() -> None:
    engine = simulated_engine(max_num_seqs=1, scheduling_policy="priority")
    for i in range(6):
        engine.add_request(f"{i}", prompt_of(5, i), SamplingParams(max_tokens=3), priority=7)
    order = []
    while engine.has_unfinished_requests():
        order += [output.request_id for output in engine.step() if output.finished]
    assert order == ["0", "1", "2", "3", "4", "5"]


def test_a_priority_that_the_policy_would_ignore_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match="priority must be 0 under"):
        simulated_engine().add_request("r", [1], SamplingParams(), priority=1)


def test_a_step_with_nothing_to_schedule_is_idle() -> None:
    engine = simulated_engine()
    assert engine.step() == []
    assert_idle(engine)


def test_decodes_never_wait_for_a_long_prompt() -> None:
    engine = simulated_engine(num_kv_blocks=64, max_num_batched_tokens=32)
    for i in range(8):
        engine.add_request(f"{i}", prompt_of(2, i), SamplingParams(max_tokens=40))
    engine.step()
    engine.add_request("long", prompt_of(400, 50), SamplingParams(max_tokens=2))
    for _ in range(10):
        before = {
            name: len(r.sequences[0].output_token_ids) for name, r in engine._requests.items()
        }
        engine.step()
        for name, request in engine._requests.items():
            if name != "long":
                assert len(request.sequences[0].output_token_ids) == before[name] + 1
    run_to_end(engine)


def test_more_sequences_than_budget_do_not_starve_anyone() -> None:
    engine = simulated_engine(max_num_batched_tokens=3, max_num_seqs=16)
    params = SamplingParams(max_tokens=12, seed=1)
    outputs = generate_all(engine, [(f"{i}", prompt_of(9, i), params) for i in range(10)])
    for i in range(10):
        assert tokens(outputs[f"{i}"]) == tokens(alone(prompt_of(9, i), params))


class PreemptedFirst:
    """A preempted request ranks better than before, if the policy is asked again."""

    name = "preempted-first"

    def rank(self, request: Request) -> float:
        return -request.times.num_preemptions

    def check(self, request: Request) -> None:
        """Take every priority."""


@pytest.mark.parametrize("budget", [3, 4])
def test_a_policy_that_favours_the_preempted_does_not_make_them_preempt_each_other_for_ever(
    budget: int,
) -> None:
    engine = simulated_engine(
        num_kv_blocks=12,
        block_size=1,
        max_num_batched_tokens=budget,
        scheduling_policy=PreemptedFirst(),
    )
    params = SamplingParams(temperature=0, max_tokens=9)
    for i in range(3):
        engine.add_request(str(i), prompt_of(4, start=i), params)
    outputs = run_to_end(engine, max_steps=200)
    assert engine.metrics.num_preemptions_recompute > 0
    for i in range(3):
        assert tokens(outputs[str(i)]) == tokens(alone(prompt_of(4, start=i), params, block_size=1))


def test_the_earliest_deadline_goes_first_and_one_without_is_not_starved() -> None:
    policy = DeadlinePolicy(default_deadline_seconds=1.0)
    engine = simulated_engine(max_num_seqs=1, scheduling_policy=policy)
    for name, deadline in (("none", None), ("late", 5.0), ("soon", 0.5), ("now", 0.1)):
        params = SamplingParams(max_tokens=3)
        engine.add_request(name, prompt_of(5), params, deadline_seconds=deadline)
    order = []
    while engine.has_unfinished_requests():
        order += [output.request_id for output in engine.step() if output.finished]
    assert order == ["now", "soon", "none", "late"]

    engine.add_request("patient", prompt_of(20), SamplingParams(max_tokens=10))
    for i in range(500):
        engine.add_request(
            f"{i}", prompt_of(20, i), SamplingParams(max_tokens=10), deadline_seconds=0.01
        )
        done = {output.request_id: output for _ in range(5) for output in engine.step()}
        if "patient" in done and done["patient"].finished:
            break
    else:
        pytest.fail("the request without a deadline starved")
    engine.close()


@pytest.mark.parametrize("deadline", [0, -1.0, float("nan"), float("inf"), "soon", True, 1e7])
def test_a_deadline_that_is_no_number_of_seconds_is_refused(deadline: object) -> None:
    engine = simulated_engine(scheduling_policy="deadline")
    with pytest.raises(InvalidParameterError, match="deadline_seconds must be a number in"):
        engine.add_request("r", [1], deadline_seconds=deadline)  # type: ignore[arg-type]


def test_a_deadline_that_the_policy_would_ignore_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match="deadline_seconds must be None under"):
        simulated_engine().add_request("r", [1], deadline_seconds=1.0)
