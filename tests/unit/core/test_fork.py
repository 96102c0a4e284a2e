"""`LLMEngine.fork`: branches of a request share its blocks and never disturb it."""

from __future__ import annotations

import dataclasses

import pytest

from pagemill import InvalidParameterError, RequestOutput, SamplingParams
from pagemill.engine import LLMEngine
from tests.core_helpers import (
    BLOCK,
    alone,
    prompt_of,
    run_to_end,
    simulated_engine,
    tokens,
)

GREEDY = SamplingParams(temperature=0, max_tokens=40, logprobs=3)


def engine_after(num_steps: int, params: SamplingParams = GREEDY, **options: object) -> LLMEngine:
    engine = simulated_engine(**options)  # type: ignore[arg-type]
    engine.add_request("trunk", prompt_of(BLOCK + 5), params)
    for _ in range(num_steps):
        engine.step()
    return engine


def test_a_branch_with_the_same_parameters_goes_on_as_its_trunk_does() -> None:
    engine = engine_after(4)
    computed = engine.metrics.num_computed_tokens
    engine.fork("trunk", "branch")
    outputs = run_to_end(engine)
    assert tokens(outputs["branch"]) == tokens(outputs["trunk"])
    assert outputs["branch"].outputs[0].logprobs == outputs["trunk"].outputs[0].logprobs
    cumulative = outputs["branch"].outputs[0].cumulative_logprob
    assert cumulative == outputs["trunk"].outputs[0].cumulative_logprob
    # Nothing was computed twice, and the half-full block was copied once.
    assert engine.metrics.num_computed_tokens == computed + 2 * (40 - 4)
    assert engine.stats()["cow_copies"] == 1


def test_a_sampled_branch_draws_from_a_stream_of_its_own_unless_it_is_given_one() -> None:
    params = SamplingParams(seed=5, max_tokens=40)
    engine = engine_after(4, params)
    engine.fork("trunk", "other")
    engine.fork("trunk", "same", params)
    outputs = run_to_end(engine)
    assert tokens(outputs["same"]) == tokens(outputs["trunk"])
    (other,), (trunk,) = tokens(outputs["other"]), tokens(outputs["trunk"])
    assert other[:4] == trunk[:4]
    assert other[4:] != trunk[4:]


@pytest.mark.parametrize("shared", [0, 1, 3, BLOCK - 5, BLOCK - 4, 30, 31])
def test_a_branch_may_start_anywhere_and_with_another_token(shared: int) -> None:
    engine = engine_after(30 + 1)
    seq = engine._requests["trunk"].sequences[0]
    other = None
    if shared > 0:
        other = next(i for i in seq.logprobs[shared - 1] if i != seq.output_token_ids[shared - 1])
    engine.fork("trunk", "branch", num_output_tokens=shared, last_token_id=other)
    outputs = run_to_end(engine)
    (trunk,), (branch,) = tokens(outputs["trunk"]), tokens(outputs["branch"])
    head = [*trunk[: shared - 1], other] if other is not None else []
    assert branch[:shared] == head
    prompt = prompt_of(BLOCK + 5)
    rest = alone(prompt + head, dataclasses.replace(GREEDY, max_tokens=40 - shared))
    assert branch[shared:] == tokens(rest)[0]
    assert trunk == tokens(alone(prompt, GREEDY))[0]


def test_branches_of_branches_on_a_tiny_pool_are_what_they_are_alone() -> None:
    params = SamplingParams(temperature=0, max_tokens=30, logprobs=4)
    engine = simulated_engine(num_kv_blocks=14, block_size=4, num_swap_slots=40, max_num_seqs=3)
    engine.add_request("0", prompt_of(7), params)
    heads: dict[str, list[int]] = {"0": []}
    last: dict[str, RequestOutput] = {}
    while engine.has_unfinished_requests():
        last |= {output.request_id: output for output in engine.step()}
        if len(heads) < 12:
            name = list(engine._requests)[len(heads) % len(engine._requests)]
            seq = engine._requests[name].sequences[0]
            if seq.output_token_ids:
                choice = sorted(seq.logprobs[-1])[0]
                heads[str(len(heads))] = [*seq.output_token_ids[:-1], choice]
                engine.fork(name, str(len(heads) - 1), last_token_id=choice)
    assert engine.stats()["num_preemptions_swap"] > 0
    assert engine.stats()["cow_copies"] > 0
    assert len(heads) == 12
    for name, head in heads.items():
        (ids,) = tokens(last[name])
        assert ids[: len(head)] == head
        rest = alone(
            prompt_of(7) + head,
            dataclasses.replace(params, max_tokens=30 - len(head)),
            block_size=4,
        )
        assert ids[len(head) :] == tokens(rest)[0], name


def test_the_trunk_may_end_first() -> None:
    engine = engine_after(6)
    engine.fork("trunk", "branch")
    engine.abort("trunk")
    outputs = run_to_end(engine)
    assert tokens(outputs["branch"]) == tokens(alone(prompt_of(BLOCK + 5), GREEDY))


def test_a_branch_whose_own_parameters_end_it_at_once_is_reported_by_the_next_step() -> None:
    engine = engine_after(8)
    third = engine._requests["trunk"].sequences[0].output_token_ids[2]
    engine.fork("trunk", "branch", SamplingParams(stop_token_ids=[third], max_tokens=40))
    outputs = {output.request_id: output for output in engine.step()}
    assert outputs["branch"].finished
    assert outputs["branch"].outputs[0].stop_reason == third
    assert outputs["branch"].outputs[0].token_ids[-1] == third
    run_to_end(engine)


def test_branches_go_before_requests_that_arrived_after_their_trunk() -> None:
    engine = engine_after(4, max_num_seqs=2)
    for name in ("later", "last"):
        engine.add_request(name, prompt_of(9, start=3), GREEDY)
    engine.step()  # trunk and later run, last waits
    engine.fork("trunk", "branch")
    engine.step()
    assert [seq.request.request_id for seq in engine.scheduler.running] == ["trunk", "branch"]
    assert [seq.request.request_id for seq in engine.scheduler.waiting] == ["later", "last"]
    outputs = run_to_end(engine)
    assert tokens(outputs["branch"]) == tokens(outputs["trunk"])
    assert tokens(outputs["later"]) == tokens(alone(prompt_of(9, start=3), GREEDY))


@pytest.mark.parametrize("max_num_seqs", [1, 3])
def test_a_branch_counts_no_prompt_and_no_first_token_again(max_num_seqs: int) -> None:
    engine = engine_after(4, max_num_seqs=max_num_seqs)
    engine.fork("trunk", "whole")
    engine.fork("trunk", "part", num_output_tokens=2)
    outputs = run_to_end(engine)
    stats = engine.stats()
    assert stats["num_prompt_tokens"] == stats["prefix_cache_query_tokens"] == BLOCK + 5
    assert stats["ttft_seconds"]["count"] == 1
    assert stats["num_generation_tokens"] == 40 + 36 + 38
    # Over all tokens of a branch, those included that it began with.
    assert stats["tpot_seconds"]["count"] == 3
    assert stats["tpot_seconds"]["mean"] > 0.95 * stats["itl_seconds"]["p50"]
    assert outputs["whole"].metrics.first_token_seconds is not None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"request_id": "nobody"}, "^request_id names no unfinished request"),
        ({"request_id": ["trunk"]}, "^request_id names no unfinished request"),
        ({"new_request_id": "trunk"}, "^new_request_id is already in use"),
        ({"new_request_id": 5}, "^new_request_id must be a non-empty text"),
        ({"index": 1}, r"index .*unfinished samples of 'trunk': \[0\]"),
        ({"index": [0]}, r"index .*unfinished samples of 'trunk': \[0\]"),
        ({"index": False}, r"index .*unfinished samples of 'trunk': \[0\]"),
        ({"num_output_tokens": 9}, r"num_output_tokens .*\[0, 4\]"),
        ({"last_token_id": -5}, "last_token_id .*logprobs are known"),
        ({"last_token_id": [5]}, "last_token_id .*logprobs are known"),
        ({"sampling_params": 5}, "sampling_params must be a SamplingParams"),
        ({"sampling_params": SamplingParams(n=2)}, "n must be 1 in a fork"),
        ({"sampling_params": SamplingParams(max_tokens=4)}, "max_tokens .*fork's 4 tokens"),
    ],
)
def test_what_cannot_be_branched_is_refused_and_nothing_is_held(
    arguments: dict[str, object], message: str
) -> None:
    engine = engine_after(4)
    free = engine.kv.num_free_blocks
    given = {"request_id": "trunk", "new_request_id": "branch"} | arguments
    with pytest.raises(InvalidParameterError, match=message):
        engine.fork(**given)  # type: ignore[arg-type]
    assert engine.kv.num_free_blocks == free
    assert list(engine._requests) == ["trunk"]
    run_to_end(engine)
