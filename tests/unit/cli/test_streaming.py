from __future__ import annotations

from collections.abc import Callable

import pytest

from pagemill.cli.streaming import Job, run_jobs
from pagemill.errors import RequestError, RequestTooLargeError
from pagemill.outputs import RequestOutput
from pagemill.sampling_params import SamplingParams
from tests.core_helpers import assert_idle
from tests.unit.cli.simulated import small_engine


class Recorder:
    def __init__(self) -> None:
        self.updates: list[RequestOutput] = []

    def update(self, output: RequestOutput) -> None:
        self.updates.append(output)

    def last(self) -> dict[str, RequestOutput]:
        return {output.request_id: output for output in self.updates}


def job(name: str, max_tokens: int = 20, *, prompt: str = "hello", fit: bool = False) -> Job:
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    return Job(name, prompt, params, shrink_to_fit=fit)


def after(num_calls: int) -> Callable[[], bool]:
    calls = iter(range(num_calls))
    return lambda: next(calls, None) is None


def test_all_jobs_share_the_batches_and_are_reported_step_by_step() -> None:
    engine, recorder = small_engine(), Recorder()
    assert run_jobs(engine, [job("a"), job("b", 5)], recorder)
    last = recorder.last()
    assert all(output.finished for output in last.values())
    assert [len(last[name].outputs[0].token_ids) for name in ("a", "b")] == [20, 5]
    assert engine.metrics.num_steps == 20  # not 25
    assert len(recorder.updates) == 25
    assert_idle(engine)


def test_an_interrupt_ends_each_job_after_the_step_in_progress_and_frees_all_blocks() -> None:
    engine, recorder = small_engine(), Recorder()
    assert not run_jobs(engine, [job("a"), job("b", 2)], recorder, after(5))
    last = recorder.last()
    assert last["b"].outputs[0].finish_reason == "length"
    assert last["a"].outputs[0].finish_reason == "abort"
    assert len(last["a"].outputs[0].token_ids) == 5
    assert_idle(engine)


def test_a_job_that_cannot_be_served_leaves_none_of_the_others_in_the_engine() -> None:
    engine = small_engine()
    jobs = [job("a"), Job("b", "x" * 2000, SamplingParams(), source="prompts.txt, line 2")]
    with pytest.raises(RequestError, match=r"^prompts\.txt, line 2: .*1024"):
        run_jobs(engine, jobs, Recorder())
    assert not engine.has_unfinished_requests()
    assert_idle(engine)


def test_a_listener_that_fails_leaves_nothing_in_the_engine() -> None:
    class Closed:
        def update(self, output: RequestOutput) -> None:
            raise BrokenPipeError

    engine = small_engine()
    with pytest.raises(BrokenPipeError):
        run_jobs(engine, [job("a"), job("b")], Closed())
    assert not engine.has_unfinished_requests()
    assert_idle(engine)


def test_a_default_length_shrinks_to_what_the_context_leaves() -> None:
    engine, recorder = small_engine(), Recorder()
    run_jobs(engine, [job("a", 100, prompt="x" * 1000, fit=True)], recorder)
    assert len(recorder.last()["a"].outputs[0].token_ids) == 24


def test_a_length_that_the_user_gave_is_refused_instead() -> None:
    with pytest.raises(RequestTooLargeError, match="max_tokens=100"):
        run_jobs(small_engine(), [job("a", 100, prompt="x" * 1000)], Recorder())
