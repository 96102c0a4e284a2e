"""Faults that prefix caches have shipped, each with its right behaviour."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import pytest

from pagemill import RequestOutput, SamplingParams
from pagemill.engine import LLMEngine
from pagemill.kvcache.manager import KVCacheManager
from pagemill.kvcache.prefix_cache import PrefixHit
from tests.core_helpers import (
    BLOCK,
    assert_idle,
    generate_all,
    prompt_of,
    run_to_end,
    simulated_engine,
)
from tests.exactness import assert_as_alone

PARAMS = SamplingParams(max_tokens=12, seed=1, logprobs=2)


def send(
    engine: LLMEngine, prompt: Sequence[int], params: SamplingParams = PARAMS
) -> RequestOutput:
    """Run one request to its end; what comes out must be what comes out alone."""
    output = generate_all(engine, [("r", prompt, params)])["r"]
    assert_as_alone(output, params)
    return output


def test_with_a_constant_hash_function_outputs_are_right_since_tokens_are_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def constant(data: bytes) -> bytes:
        return b"constant"

    prompts = [prompt_of(BLOCK + 4, i) for i in range(3)] + [prompt_of(3 * BLOCK, 5)]
    order = (0, 0, 1, 0, 1, 2, 2, 3, 3, 0, 0)
    ordinary = simulated_engine(num_kv_blocks=20)
    colliding = functools.partial(KVCacheManager, hash_function=constant)
    monkeypatch.setattr("pagemill.engine.KVCacheManager", colliding)
    engine = simulated_engine(num_kv_blocks=20)
    for i in order:
        send(ordinary, prompts[i])
        send(engine, prompts[i])
    # Each takes the place of the one before it, and is found if it comes twice in a row.
    assert (engine.kv.num_whole_hits, ordinary.kv.num_whole_hits) == (3, 8)
    requests = [(f"{i}", prompts[i % 4], PARAMS) for i in range(12)]
    for output in generate_all(engine, requests).values():
        assert_as_alone(output, PARAMS)


def test_equal_blocks_behind_different_first_blocks_are_not_shared() -> None:
    engine = simulated_engine()
    ones, twos = [1] * BLOCK + [9] * BLOCK, [2] * BLOCK + [9] * BLOCK
    assert send(engine, ones).num_cached_tokens == 0
    assert send(engine, twos).num_cached_tokens == 0
    assert send(engine, ones).num_cached_tokens == 2 * BLOCK - 1
    assert send(engine, twos).num_cached_tokens == 2 * BLOCK - 1


def test_tokens_that_are_equal_modulo_256_are_different_keys() -> None:
    engine = simulated_engine()
    assert [send(engine, [token] * 40).num_cached_tokens for token in (65, 321, 65, 321)] == [
        0, 0, 39, 39
    ]  # fmt: skip


@pytest.mark.parametrize("num_blocks", [1, 3])
@pytest.mark.parametrize("partial_hits", [True, False])
def test_a_prompt_of_whole_blocks_that_is_all_cached_still_computes_a_token(
    num_blocks: int, partial_hits: bool
) -> None:
    engine = simulated_engine(prefix_cache_partial_hits=partial_hits)
    length = num_blocks * BLOCK
    cached = length - 1 if partial_hits else length - BLOCK
    params = SamplingParams(max_tokens=5, seed=1, logprobs=3)
    outputs, computed = [], []
    for _ in range(3):
        before = engine.stats()["num_computed_tokens"]
        outputs.append(send(engine, prompt_of(length), params))
        computed.append(engine.stats()["num_computed_tokens"] - before - 4)
    assert [output.num_cached_tokens for output in outputs] == [0, cached, cached]
    assert computed == [length, length - cached, length - cached]
    assert outputs[0].outputs == outputs[1].outputs == outputs[2].outputs


@pytest.mark.parametrize("length", [2 * BLOCK, 2 * BLOCK + 5])
@pytest.mark.parametrize("budget", [7, 64])
def test_two_identical_prompts_arriving_in_the_same_step_share_what_either_has_computed(
    length: int, budget: int
) -> None:
    engine = simulated_engine(max_num_batched_tokens=budget)
    requests = [(name, prompt_of(length), PARAMS) for name in "ab"]
    outputs = generate_all(engine, requests)
    for output in outputs.values():
        assert_as_alone(output, PARAMS)
    assert outputs["a"].num_cached_tokens == 0
    assert outputs["b"].num_cached_tokens >= 2 * BLOCK - 1


@pytest.mark.parametrize("length", [2 * BLOCK - 1, 2 * BLOCK, 2 * BLOCK + 1])
@pytest.mark.parametrize("partial_hits", [True, False])
def test_identical_prompts_all_start_in_the_step_after_the_first_is_computed(
    length: int, partial_hits: bool
) -> None:
    """Each computes its last token by itself: that is nothing for the next one to wait for."""
    engine = simulated_engine(prefix_cache_partial_hits=partial_hits)
    for i in range(10):
        engine.add_request(f"{i}", prompt_of(length), PARAMS)
    running = []
    for _ in range(3):
        engine.step()
        running.append(len(engine.scheduler.running))
    assert running == [1, 10, 10]
    for output in run_to_end(engine).values():
        assert_as_alone(output, PARAMS)


def test_no_block_is_freed_while_the_other_of_two_identical_prompts_still_has_it() -> None:
    engine = simulated_engine(num_kv_blocks=9)
    params = SamplingParams(max_tokens=40, seed=3)
    for name in "ab":
        engine.add_request(name, prompt_of(2 * BLOCK + 5), params)
    for _ in range(4):
        engine.step()
    a, b = (engine._requests[name].sequences[0].blocks for name in "ab")
    assert a.table[:2] == b.table[:2]
    assert engine.stats()["kv_blocks_referenced"] == 4
    engine.abort("a")
    assert engine.stats()["kv_blocks_referenced"] == len(b.table) == 3
    # What is free is written to by somebody else; the audit runs in every step.
    engine.add_request("other", prompt_of(3 * BLOCK, 5), PARAMS)
    outputs = run_to_end(engine)
    assert_as_alone(outputs["b"], params)
    assert_as_alone(outputs["other"], PARAMS)


def test_what_was_evicted_since_the_last_lookup_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = simulated_engine(num_kv_blocks=8)
    send(engine, prompt_of(3 * BLOCK + 4), SamplingParams(max_tokens=1, seed=1))
    long = SamplingParams(max_tokens=4 * BLOCK, seed=2)
    engine.add_request("long", prompt_of(4 * BLOCK, 5), long)
    engine.step()
    found: list[int] = []
    look_up = engine.kv.find_prefix

    def recording(*args: Any) -> PrefixHit:
        hit = look_up(*args)
        found.append(len(hit.nodes))
        return hit

    monkeypatch.setattr(engine.kv, "find_prefix", recording)
    engine.add_request("waits", prompt_of(3 * BLOCK + 4), PARAMS)
    outputs = run_to_end(engine)
    assert found[0] == 3
    assert found == sorted(found, reverse=True)
    assert set(found) > {0, 3}, "evicted bit by bit while it waits"
    assert engine.kv.num_evictions >= 3
    assert outputs["waits"].num_cached_tokens < BLOCK
    assert_as_alone(outputs["waits"], PARAMS)
    assert_as_alone(outputs["long"], long)


@pytest.mark.parametrize("num_steps", [1, 2, 3, 4])
@pytest.mark.parametrize("budget", [7, BLOCK])
def test_a_prompt_aborted_between_two_chunks_and_sent_again_is_as_in_a_cold_run(
    num_steps: int, budget: int
) -> None:
    engine = simulated_engine(max_num_batched_tokens=budget)
    prompt = prompt_of(5 * BLOCK + 3)
    engine.add_request("gone", prompt, PARAMS)
    for _ in range(num_steps):
        engine.step()
    computed = engine._requests["gone"].sequences[0].num_computed_tokens
    assert computed == num_steps * budget
    engine.abort("gone")
    engine.step()
    assert send(engine, prompt).num_cached_tokens == computed
    assert send(engine, [*prompt[: computed + 1], 7, 8, 9]).num_cached_tokens == computed + 1


def test_who_waits_for_blocks_of_a_prompt_that_is_aborted_goes_on_from_where_that_was() -> None:
    engine = simulated_engine(max_num_batched_tokens=BLOCK)
    prompts = {f"{i}": prompt_of(4 * BLOCK + 3) + prompt_of(6, i) for i in range(3)}
    engine.add_request("gone", prompt_of(9 * BLOCK), PARAMS)
    for name, prompt in prompts.items():
        engine.add_request(name, prompt, PARAMS)
    for _ in range(2):
        engine.step()
    assert len(engine.scheduler.running) == 1
    engine.abort("gone")
    outputs = run_to_end(engine)
    for name in prompts:
        assert_as_alone(outputs[name], PARAMS)
    assert [outputs[name].num_cached_tokens for name in prompts] == [32, 64, 64]


def test_recomputing_random_prompts_under_heavy_preemption_is_no_hit() -> None:
    engine = simulated_engine(num_kv_blocks=40, block_size=4)
    params = SamplingParams(max_tokens=80, seed=1)
    outputs = generate_all(engine, [(f"{i}", prompt_of(30, i), params) for i in range(10)])
    stats = engine.stats()
    assert stats["num_preemptions_recompute"] >= 8
    assert engine.kv.num_whole_hits > 0, "they find their own blocks again"
    assert stats["prefix_cache_hit_tokens"] == 0
    assert stats["prefix_cache_query_tokens"] == 300
    for output in outputs.values():
        assert output.num_cached_tokens == 0
        assert_as_alone(output, params)


def test_free_and_cached_blocks_return_to_the_total_after_each_of_ten_requests() -> None:
    engine = simulated_engine(num_kv_blocks=6)
    for i in range(10):
        send(engine, prompt_of(40, i % 4))
        stats = engine.stats()
        assert stats["kv_blocks_free"] + stats["kv_blocks_cached"] == 6
        assert stats["kv_blocks_referenced"] == 0
        assert_idle(engine)
    assert engine.kv.num_evictions > 0
    assert engine.kv.num_cached_blocks == 6


def test_the_same_prompt_under_two_salts_is_computed_twice() -> None:
    engine = simulated_engine()
    cached = []
    for salt in ("a", "b", None, "a", "b", None):
        engine.add_request("r", prompt_of(40), PARAMS, cache_salt=salt)
        output = run_to_end(engine)["r"]
        assert_as_alone(output, PARAMS)
        cached.append(output.num_cached_tokens)
    assert cached == [0, 0, 0, 39, 39, 39]


@pytest.mark.parametrize("budget", [5, 64])
def test_prompt_logprobs_of_a_cached_prompt_are_all_there_and_right(budget: int) -> None:
    engine = simulated_engine(max_num_batched_tokens=budget)
    scoring = SamplingParams(max_tokens=4, seed=1, prompt_logprobs=2)
    send(engine, prompt_of(40))
    first = send(engine, prompt_of(40), scoring)
    assert first.prompt_logprobs is not None
    assert len(first.prompt_logprobs) == 40
    assert first.num_cached_tokens == 0
    # Without them the same prompt is a hit.
    assert send(engine, prompt_of(40)).num_cached_tokens == 39


@pytest.mark.parametrize("num_swap_slots", [0, 30])
def test_a_request_preempted_while_it_scores_its_prompt_scores_each_position_once(
    num_swap_slots: int,
) -> None:
    engine = simulated_engine(
        num_kv_blocks=9,
        max_num_batched_tokens=8,
        num_swap_slots=num_swap_slots,
        scheduling_policy="priority",
    )
    scoring = SamplingParams(max_tokens=4, seed=1, prompt_logprobs=2)
    engine.add_request("scored", prompt_of(90), scoring, priority=5)
    for _ in range(5):
        engine.step()
    urgent = SamplingParams(max_tokens=30, seed=2)
    engine.add_request("urgent", prompt_of(70, 3), urgent, priority=0)
    outputs = run_to_end(engine)
    assert outputs["scored"].metrics.num_preemptions == 1
    assert_as_alone(outputs["scored"], scoring)
    assert_as_alone(outputs["urgent"], urgent)
