"""Embeddings through the engine, on the simulated runner, whose rows tell every slot and token."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from pagemill import (
    EmbeddingOutput,
    EngineError,
    InvalidParameterError,
    ModelError,
    RequestError,
    RequestTooLargeError,
    SamplingParams,
)
from pagemill.batch import Batch, StepResult
from pagemill.engine import LLMEngine
from pagemill.outputs import RequestOutput
from pagemill.runner.simulated import SimulatedRunner
from tests.core_helpers import (
    alone,
    assert_idle,
    embedding_alone,
    embedding_of,
    prompt_of,
    run_to_end,
    simulated_engine,
    tokens,
)

PARAMS = SamplingParams(max_tokens=20, seed=1)


def embed(engine: LLMEngine, prompt: list[int]) -> RequestOutput:
    engine.add_embedding_request("embedded", prompt)
    return run_to_end(engine)["embedded"]


def test_an_embedding_is_the_mean_over_all_rows_of_its_prompt() -> None:
    rows: list[np.ndarray[Any, Any]] = []

    class NotingRunner(SimulatedRunner):
        def execute(self, batch: Batch) -> StepResult:
            result = super().execute(batch)
            rows.extend(row for task in batch.pooling for row in self._hidden(batch, task))
            return result

    engine = simulated_engine(max_num_batched_tokens=7)
    engine.runner = NotingRunner(num_kv_blocks=64, block_size=16)
    output = embed(engine, prompt_of(40))
    assert len(rows) == 40
    assert len({row.tobytes() for row in rows}) == 40
    mean = np.array(rows, np.float64).mean(axis=0)
    assert embedding_of(output) == pytest.approx(mean.tolist(), rel=1e-6)
    assert output.outputs[0].finish_reason == "length"
    assert output.prompt_token_ids == prompt_of(40)
    assert output.prompt_logprobs is None


def test_every_token_of_the_prompt_shows_in_it() -> None:
    whole = embedding_alone(prompt_of(40))
    for position in (0, 17, 39):
        changed = prompt_of(40)
        changed[position] += 1
        assert embedding_alone(changed) != whole
    assert embedding_alone(prompt_of(39)) != whole
    assert embedding_alone([5]) != embedding_alone([6])


@pytest.mark.parametrize("budget", [1, 7, 16, 64])
def test_it_has_the_same_bits_in_any_chunks_beside_generation(budget: int) -> None:
    engine = simulated_engine(max_num_batched_tokens=budget)
    engine.add_request("before", prompt_of(20), PARAMS)
    engine.add_embedding_request("a", prompt_of(50, 3))
    engine.add_embedding_request("b", prompt_of(33, 4))
    engine.add_request("after", prompt_of(33, 5), PARAMS)
    outputs = run_to_end(engine)
    assert embedding_of(outputs["a"]) == embedding_alone(prompt_of(50, 3))
    assert embedding_of(outputs["b"]) == embedding_alone(prompt_of(33, 4))
    assert tokens(outputs["before"]) == tokens(alone(prompt_of(20), PARAMS))
    assert tokens(outputs["after"]) == tokens(alone(prompt_of(33, 5), PARAMS))


@pytest.mark.parametrize("num_swap_slots", [0, 30])
def test_a_preempted_prompt_counts_each_row_once(num_swap_slots: int) -> None:
    engine = simulated_engine(
        num_kv_blocks=9,
        max_num_batched_tokens=8,
        num_swap_slots=num_swap_slots,
        scheduling_policy="priority",
    )
    engine.add_embedding_request("embedded", prompt_of(90), 5)
    for _ in range(5):
        engine.step()
    engine.add_request("urgent", prompt_of(70, 3), PARAMS, priority=0)
    outputs = run_to_end(engine)
    assert outputs["embedded"].metrics.num_preemptions == 1
    stats = engine.stats()
    assert stats["num_preemptions_swap"] == (num_swap_slots > 0)
    assert embedding_of(outputs["embedded"]) == embedding_alone(prompt_of(90))
    assert tokens(outputs["urgent"]) == tokens(alone(prompt_of(70, 3), PARAMS))


def test_rows_are_counted_once_where_the_second_chunks_are_cut_elsewhere() -> None:
    engine = simulated_engine(
        num_kv_blocks=9,
        max_num_batched_tokens=8,
        enable_prefix_caching=False,
        scheduling_policy="priority",
    )
    engine.add_request("beside", [1], SamplingParams(max_tokens=6, seed=1))
    engine.step()
    engine.add_embedding_request("embedded", prompt_of(90), 5)
    for _ in range(5):
        engine.step()  # 7 tokens of the prompt each
    engine.add_request("urgent", prompt_of(70, 3), PARAMS)
    outputs = run_to_end(engine)
    assert outputs["embedded"].metrics.num_preemptions == 1
    assert engine.stats()["num_computed_tokens"] > 35 + 90 + 70  # all of it was computed again
    assert embedding_of(outputs["embedded"]) == embedding_alone(prompt_of(90))


def test_nothing_of_a_cached_prompt_is_skipped_and_what_is_computed_is_found_by_others() -> None:
    engine = simulated_engine()
    first = embed(engine, prompt_of(40))
    again = embed(engine, prompt_of(40))
    assert again.num_cached_tokens == 0
    assert embedding_of(again) == embedding_of(first) == embedding_alone(prompt_of(40))
    engine.add_request("r", prompt_of(40), PARAMS)
    generated = run_to_end(engine)["r"]
    assert generated.num_cached_tokens == 39
    assert tokens(generated) == tokens(alone(prompt_of(40), PARAMS))


def test_a_cache_salt_keeps_what_is_computed_to_itself() -> None:
    engine = simulated_engine()
    engine.add_embedding_request("embedded", prompt_of(40), cache_salt="a")
    run_to_end(engine)
    for salt, num_cached in [(None, 0), ("a", 39)]:
        engine.add_request("r", prompt_of(40), PARAMS, cache_salt=salt)
        assert run_to_end(engine)["r"].num_cached_tokens == num_cached


def test_prompts_that_begin_alike_do_not_wait_for_each_other() -> None:
    engine = simulated_engine()
    shared = prompt_of(32)
    for i in range(3):
        engine.add_embedding_request(f"{i}", [*shared, i])
    assert len(engine.step()) == 3
    assert_idle(engine)


def test_only_its_end_is_reported() -> None:
    engine = simulated_engine(max_num_batched_tokens=10)
    engine.add_embedding_request("embedded", prompt_of(25))
    assert [len(engine.step()) for _ in range(3)] == [0, 0, 1]
    assert not engine.has_unfinished_requests()


def test_a_prompt_may_be_as_long_as_the_context() -> None:
    engine = simulated_engine(max_model_len=40)
    assert embedding_of(embed(engine, prompt_of(40))) == embedding_alone(prompt_of(40))
    with pytest.raises(RequestTooLargeError, match=r"41 tokens .* max_model_len=40") as error:
        engine.add_embedding_request("r", prompt_of(41))
    assert "max_tokens" not in str(error.value)
    assert_idle(engine)


def test_a_prompt_may_fill_the_pool() -> None:
    engine = simulated_engine(num_kv_blocks=3)
    assert embedding_of(embed(engine, prompt_of(48))) == embedding_alone(prompt_of(48))
    with pytest.raises(RequestTooLargeError, match="49 tokens needs 4 KV blocks") as error:
        engine.add_embedding_request("r", prompt_of(49))
    assert "max_tokens" not in str(error.value)
    assert_idle(engine)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompt": []}, "prompt must hold at least one token"),
        ({"prompt": [1000]}, r"prompt\[0\] must be a token id in \[0, 1000\)"),
        ({"prompt": b"ab"}, "prompt must be a text or a list"),
        ({"prompt": "text"}, "no tokenizer"),
        ({"priority": 1.5}, "priority must be an integer"),
        ({"priority": 3}, "priority must be 0 under scheduling_policy='fcfs'"),
        ({"deadline_seconds": 3}, "deadline_seconds must be None under"),
        ({"deadline_seconds": "soon"}, "deadline_seconds must be a number"),
        ({"cache_salt": 5}, "cache_salt must be a text"),
        ({"request_id": ""}, "request_id must be a non-empty text"),
        ({"request_id": "taken"}, "is already in use"),
    ],
)
def test_what_cannot_be_served_is_refused(arguments: dict[str, Any], message: str) -> None:
    engine = simulated_engine()
    engine.add_request("taken", [1], PARAMS)
    with pytest.raises(RequestError, match=message):
        engine.add_embedding_request(**{"request_id": "r", "prompt": [1], **arguments})
    run_to_end(engine)


@pytest.mark.parametrize("num_steps", [0, 2])
@pytest.mark.parametrize("report", [True, False])
def test_an_aborted_one_leaves_nothing_behind(num_steps: int, report: bool) -> None:
    engine = simulated_engine(max_num_batched_tokens=16)
    engine.add_embedding_request("embedded", prompt_of(100))
    for _ in range(num_steps):
        assert engine.step() == []
    assert engine.abort("embedded", report=report)
    assert_idle(engine)
    outputs = engine.step()
    assert len(outputs) == report
    for output in outputs:
        assert output.embedding is None
        assert output.outputs[0].finish_reason == "abort"
        with pytest.raises(EngineError, match="'embedded' has no embedding: it was aborted"):
            EmbeddingOutput.of(output, normalize=False)
    assert engine.stats()["num_prompt_tokens"] == 0


def test_an_aborted_one_gives_its_swap_slots_back() -> None:
    engine = simulated_engine(
        num_kv_blocks=9, max_num_batched_tokens=8, num_swap_slots=30, scheduling_policy="priority"
    )
    engine.add_embedding_request("embedded", prompt_of(90), 5)
    for _ in range(5):
        engine.step()
    engine.add_request("urgent", prompt_of(70, 3), PARAMS)
    engine.step()
    assert engine.kv.num_swapped_blocks > 0
    engine.abort("embedded")
    assert engine.kv.num_swapped_blocks == 0
    run_to_end(engine)


def test_it_is_counted_without_tokens_that_it_does_not_generate() -> None:
    engine = simulated_engine(max_num_batched_tokens=16)
    output = embed(engine, prompt_of(40))
    stats = engine.stats()
    assert stats["num_prompt_tokens"] == stats["num_computed_tokens"] == 40
    assert stats["num_generation_tokens"] == 0
    for name in ("ttft_seconds", "itl_seconds", "tpot_seconds"):
        assert stats[name]["count"] == 0
    for name in ("e2e_seconds", "queue_seconds"):
        assert stats[name]["count"] == 1
    assert stats["num_requests_finished"] == {"stop": 0, "length": 1, "abort": 0}
    assert output.metrics.ttft_seconds is None
    assert output.metrics.e2e_seconds == pytest.approx(3 * 0.010 + 40 * 0.0001)
    json.dumps(stats)


def test_a_prompt_that_is_only_scored_is_counted_once() -> None:
    engine = simulated_engine()
    engine.add_request("r", prompt_of(40), SamplingParams(n=3, max_tokens=0, prompt_logprobs=0))
    run_to_end(engine)
    assert engine.stats()["num_prompt_tokens"] == 40


class DamagedRunner(SimulatedRunner):
    """Computes NaN or infinity in one row of a prompt that begins with 13."""

    damage = np.nan

    def execute(self, batch: Batch) -> StepResult:
        result = super().execute(batch)
        for i, task in enumerate(batch.pooling):
            if batch.token_ids[task.first_row] == 13:
                result.pooled[i][3] = self.damage
        return result


@pytest.mark.parametrize("damage", [np.nan, np.inf, -np.inf])
def test_a_damaged_embedding_ends_its_own_request_only(damage: float) -> None:
    engine = simulated_engine(max_num_batched_tokens=16)
    engine.runner = runner = DamagedRunner(num_kv_blocks=64, block_size=16)
    runner.damage = damage
    engine.add_embedding_request("bad", [13, *prompt_of(40)])
    engine.add_embedding_request("good", prompt_of(40))
    outputs = run_to_end(engine)
    assert embedding_of(outputs["good"]) == embedding_alone(prompt_of(40))
    assert outputs["bad"].embedding is None
    (ending,) = outputs["bad"].outputs
    assert (ending.finish_reason, ending.stop_reason) == ("abort", "damaged_embedding")
    with pytest.raises(ModelError, match="'bad' has no embedding: the model computed NaN"):
        EmbeddingOutput.of(outputs["bad"], normalize=True)


def test_a_runner_that_pools_nothing_closes_the_engine() -> None:
    class ForgetfulRunner(SimulatedRunner):
        def execute(self, batch: Batch) -> StepResult:
            return StepResult([], [])

    engine = simulated_engine()
    engine.runner = ForgetfulRunner(num_kv_blocks=64, block_size=16)
    engine.add_embedding_request("r", [1])
    with pytest.raises(EngineError, match=r"returned \(0, 0, 0\) .* not \(0, 0, 1\)"):
        engine.step()


def test_it_cannot_be_forked() -> None:
    engine = simulated_engine(max_num_batched_tokens=8)
    engine.add_embedding_request("embedded", prompt_of(40))
    engine.step()
    for params in (None, PARAMS):
        with pytest.raises(InvalidParameterError, match=r"request_id must be .* that generates"):
            engine.fork("embedded", "branch", params)
    assert len(run_to_end(engine)) == 1


def test_an_output_is_what_the_engine_said() -> None:
    engine = simulated_engine()
    output = embed(engine, prompt_of(40))
    assert output.embedding is not None
    plain = EmbeddingOutput.of(output, normalize=False)
    assert plain.embedding.tolist() == output.embedding.tolist()
    assert (plain.request_id, plain.prompt) == ("embedded", None)
    assert plain.prompt_token_ids == prompt_of(40)
    assert plain.metrics == output.metrics
    scaled = EmbeddingOutput.of(output, normalize=True).embedding.astype(np.float64)
    assert np.sqrt(np.square(scaled).sum()) == pytest.approx(1)
    direction = plain.embedding / np.linalg.norm(plain.embedding)
    assert scaled.tolist() == pytest.approx(direction.tolist(), abs=1e-6)
