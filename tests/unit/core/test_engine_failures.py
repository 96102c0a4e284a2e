"""An engine whose runner or bookkeeping fails or is interrupted, and one that was closed."""

from __future__ import annotations

import math

import pytest

from pagemill import EngineError, SamplingParams
from pagemill.batch import Batch, SampledToken, StepResult, TokenLogprobs
from pagemill.runner.simulated import SimulatedRunner
from tests.core_helpers import (
    ByteTokenizer,
    alone,
    assert_idle,
    generate_all,
    prompt_of,
    run_to_end,
    simulated_engine,
    tokens,
)


class FailingRunner(SimulatedRunner):
    def __init__(self) -> None:
        super().__init__(num_kv_blocks=64, block_size=16, vocab_size=10)

    def execute(self, batch: Batch) -> StepResult:
        raise RuntimeError("out of memory")


def test_a_failing_runner_closes_the_engine_with_its_own_message() -> None:
    engine = simulated_engine()
    engine.runner = FailingRunner()
    engine.add_request("r", [1], SamplingParams(max_tokens=2))
    with pytest.raises(EngineError, match="out of memory"):
        engine.step()
    with pytest.raises(EngineError, match=r"takes no more work: .*out of memory"):
        engine.add_request("s", [1], SamplingParams(max_tokens=2))
    engine.close()
    assert_idle(engine)


def test_a_failure_anywhere_in_a_step_closes_the_engine() -> None:
    class BrokenTokenizer(ByteTokenizer):
        def token_bytes(self, token_id: int) -> bytes:
            raise KeyError(token_id)

    engine = simulated_engine(tokenizer=BrokenTokenizer())
    engine.add_request("r", "x", SamplingParams(max_tokens=2))
    for message in ("a step failed: KeyError", "takes no more work: a step failed: KeyError"):
        with pytest.raises(EngineError, match=message):
            engine.step()
    engine.close()
    assert_idle(engine)


def test_closing_twice_closes_the_runner_once() -> None:
    class CountingRunner(FailingRunner):
        num_closed = 0

        def close(self) -> None:
            self.num_closed += 1

    engine = simulated_engine()
    engine.runner = runner = CountingRunner()
    engine.close()
    engine.close()
    assert runner.num_closed == 1


def test_a_closed_engine_says_so() -> None:
    engine = simulated_engine()
    engine.add_request("r", [1], SamplingParams(max_tokens=2))
    engine.close()
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        engine.step()


def test_a_runner_is_interrupted_without_harm_to_the_schedule() -> None:
    """Ctrl-C inside a step: the step has not happened, and may be done again."""
    engine = simulated_engine()
    params = SamplingParams(max_tokens=6, seed=3)
    engine.add_request("r", prompt_of(20), params)
    engine.step()
    real, engine.runner = engine.runner, InterruptedRunner()
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    engine.runner = real
    assert tokens(run_to_end(engine)["r"]) == tokens(alone(prompt_of(20), params))


def test_the_end_of_an_aborted_request_is_reported_though_the_next_step_is_interrupted() -> None:
    engine = simulated_engine()
    for name in ("gone", "stays"):
        engine.add_request(name, prompt_of(20), SamplingParams(max_tokens=6, seed=3))
    engine.step()
    engine.abort("gone")
    real, engine.runner = engine.runner, InterruptedRunner()
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    engine.runner = real
    outputs = {output.request_id: output for output in engine.step()}
    assert outputs["gone"].outputs[0].finish_reason == "abort"
    run_to_end(engine)


class InterruptedRunner(FailingRunner):
    def execute(self, batch: Batch) -> StepResult:
        raise KeyboardInterrupt


class DamagedRunner(SimulatedRunner):
    """Computes NaN for whoever has 13 in its prompt."""

    def execute(self, batch: Batch) -> StepResult:
        result = super().execute(batch)
        for i, task in enumerate(batch.sampling):
            if 13 in task.prompt_token_ids:
                result.sampled[i] = SampledToken(None, TokenLogprobs(math.nan, 0, ()))
        return result


def test_damaged_logits_end_their_own_request_only() -> None:
    engine = simulated_engine()
    engine.runner = DamagedRunner(num_kv_blocks=64, block_size=16)
    params = SamplingParams(max_tokens=5, seed=1)
    outputs = generate_all(engine, [("good", [1, 2], params), ("bad", [1, 13], params)])
    assert tokens(outputs["good"]) == tokens(alone([1, 2], params))
    (bad,) = outputs["bad"].outputs
    assert (bad.finish_reason, bad.stop_reason) == ("abort", "damaged_logits")


def test_a_runner_that_returns_too_little_closes_the_engine() -> None:
    class ForgetfulRunner(FailingRunner):
        def execute(self, batch: Batch) -> StepResult:
            return StepResult([], [])

    engine = simulated_engine()
    engine.runner = ForgetfulRunner()
    engine.add_request("r", [1], SamplingParams(max_tokens=2))
    with pytest.raises(EngineError, match=r"returned \(0, 0, 0\) sampled tokens.*not \(1, 0, 0\)"):
        engine.step()


def test_an_interrupt_in_the_bookkeeping_closes_the_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = simulated_engine()
    engine.add_request("r", [1], SamplingParams(max_tokens=5))

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine.scheduler, "schedule", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    with pytest.raises(EngineError, match="interrupted"):
        engine.step()
