"""`AsyncLLMEngine`: an engine on a thread of its own, shared by coroutines."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from pagemill import async_engine
from pagemill.async_engine import AsyncLLMEngine, EngineState
from pagemill.batch import Batch, StepResult
from pagemill.engine import LLMEngine
from pagemill.errors import ConfigError, EngineError, RequestError
from pagemill.outputs import RequestOutput
from pagemill.sampling_params import SamplingParams
from tests.core_helpers import alone, assert_idle, prompt_of, simulated_engine, tokens

PARAMS = SamplingParams(max_tokens=8, seed=3)
LONG = SamplingParams(max_tokens=900, seed=3)


def slow_engine(seconds: float = 0.002, **options: Any) -> LLMEngine:
    """Each step takes real time, so that there is some to act in."""
    engine = simulated_engine(**options)
    execute = engine.runner.execute

    def slowly(batch: Batch) -> StepResult:
        time.sleep(seconds)
        return execute(batch)

    engine.runner.execute = slowly  # type: ignore[method-assign]
    return engine


class Breakable:
    """Makes engines, the newest of which breaks in its next step when it is told to."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.breaks = False

    def make(self) -> LLMEngine:
        self.events.append("made")
        engine = slow_engine()
        execute, close = engine.runner.execute, engine.runner.close

        def break_or_execute(batch: Batch) -> StepResult:
            if self.breaks:
                self.breaks = False
                raise RuntimeError("out of memory")
            return execute(batch)

        def note_close() -> None:
            self.events.append("closed")
            close()

        engine.runner.execute = break_or_execute  # type: ignore[method-assign]
        engine.runner.close = note_close  # type: ignore[method-assign]
        return engine


@asynccontextmanager
async def running(
    make: Callable[[], LLMEngine] = simulated_engine,
) -> AsyncIterator[AsyncLLMEngine]:
    engine = AsyncLLMEngine(make)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


async def collected(
    engine: AsyncLLMEngine,
    name: str = "r",
    params: SamplingParams = PARAMS,
    length: int = 20,
    **options: Any,
) -> list[RequestOutput]:
    return [o async for o in engine.generate(name, prompt_of(length), params, **options)]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)


def test_a_stream_grows_to_what_the_engine_gives_alone() -> None:
    async def run() -> None:
        async with running(slow_engine) as engine:
            outputs = await collected(engine)
            lengths = [len(output.outputs[0].token_ids) for output in outputs]
            assert lengths == sorted(set(lengths))
            assert lengths[-1] == 8
            assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
            assert tokens(outputs[-1]) == tokens(alone(prompt_of(20), PARAMS))
            await engine.call(assert_idle)

    asyncio.run(run())


def test_requests_share_batches_and_each_gets_its_own_outputs() -> None:
    async def run() -> None:
        async with running(slow_engine) as engine:
            lengths = range(10, 40, 5)
            all_outputs = await asyncio.gather(
                *(collected(engine, f"r{n}", length=n) for n in lengths)
            )
            for length, outputs in zip(lengths, all_outputs, strict=True):
                assert tokens(outputs[-1]) == tokens(alone(prompt_of(length), PARAMS))
            # Alone, each would have needed its own eight or more.
            assert await engine.call(lambda e: e.metrics.num_steps) < 8 * len(lengths)

    asyncio.run(run())


def test_a_slow_reader_finds_the_newest_snapshot_and_misses_nothing() -> None:
    async def run() -> None:
        async with (
            running() as engine,
            aclosing(engine.generate("r", prompt_of(20), LONG)) as outputs,
        ):
            await anext(outputs)
            while await engine.call(lambda e: e.has_unfinished_requests()):
                await asyncio.sleep(0.01)
            newest = await anext(outputs)
            assert newest.finished
            assert tokens(newest) == tokens(alone(prompt_of(20), LONG))
            assert [output async for output in outputs] == []

    asyncio.run(run())


def test_a_request_that_is_not_streamed_reports_its_end_only() -> None:
    async def run() -> None:
        async with running(slow_engine) as engine:
            (output,) = await collected(engine, stream=False)
            assert output.finished
            assert tokens(output) == tokens(alone(prompt_of(20), PARAMS))

    asyncio.run(run())


async def _read(outputs: AsyncIterator[RequestOutput]) -> None:
    async for _ in outputs:
        pass


@pytest.mark.parametrize("how", ["close", "cancel"])
def test_whoever_stops_listening_frees_everything_within_two_steps(how: str) -> None:
    aborted_at: list[tuple[int, int]] = []

    def make() -> LLMEngine:
        engine = slow_engine(0.02)
        abort = engine.abort

        def note_abort(request_id: str, *, report: bool = True) -> bool:
            found = abort(request_id, report=report)
            assert_idle(engine)
            aborted_at.append((found, engine.metrics.num_steps))
            return found

        engine.abort = note_abort  # type: ignore[method-assign]
        return engine

    async def run() -> None:
        async with running(make) as engine:
            outputs = engine.generate("r", prompt_of(20), LONG)
            await anext(outputs)
            if how == "close":
                num_steps = await engine.call(lambda e: e.metrics.num_steps)
                await outputs.aclose()
            else:
                reading = asyncio.create_task(_read(outputs))
                num_steps = await engine.call(lambda e: e.metrics.num_steps)
                reading.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await reading
            assert engine.num_unfinished_requests == 0
            await until(lambda: bool(aborted_at))
            found, at = aborted_at[0]
            assert found
            assert at - num_steps <= 2

    asyncio.run(run())


def test_a_request_that_still_waits_is_taken_out_of_the_queue() -> None:
    async def run() -> None:
        async with running(lambda: slow_engine(max_num_seqs=1)) as engine:
            first = engine.generate("first", prompt_of(20), LONG)
            await anext(first)
            second = asyncio.create_task(collected(engine, "second"))
            while not await engine.call(lambda e: len(e.scheduler.waiting)):
                await asyncio.sleep(0.001)
            second.cancel()
            with pytest.raises(asyncio.CancelledError):
                await second
            assert await engine.call(lambda e: len(e.scheduler.waiting)) == 0
            await first.aclose()
            await engine.call(assert_idle)

    asyncio.run(run())


def test_a_request_cancelled_before_the_engine_saw_it_never_runs() -> None:
    async def run() -> None:
        async with running(lambda: slow_engine(0.05)) as engine:
            other = engine.generate("other", prompt_of(20), PARAMS)
            await anext(other)  # a step is under way now
            task = asyncio.create_task(collected(engine, "gone"))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert [o.finished async for o in other][-1]
            await engine.call(assert_idle)
            finished = await engine.call(lambda e: e.metrics.counters()["num_requests_finished"])
            assert finished == {"stop": 0, "length": 1, "abort": 0}

    asyncio.run(run())


def test_a_refused_request_raises_and_leaves_nothing() -> None:
    async def run() -> None:
        async with running() as engine:
            with pytest.raises(RequestError, match="max_model_len=1024"):
                await collected(engine, params=SamplingParams(max_tokens=5000))
            assert engine.num_unfinished_requests == 0
            assert (await collected(engine))[-1].finished
            await engine.call(assert_idle)

    asyncio.run(run())


def test_a_name_in_use_is_refused_without_harm_to_its_owner() -> None:
    async def run() -> None:
        async with running(slow_engine) as engine:
            first = asyncio.create_task(collected(engine))
            await asyncio.sleep(0)
            with pytest.raises(ValueError, match="in use"):
                await collected(engine)
            assert tokens((await first)[-1]) == tokens(alone(prompt_of(20), PARAMS))

    asyncio.run(run())


def test_a_failure_fails_what_runs_and_the_next_engine_takes_over() -> None:
    breakable = Breakable()

    async def run() -> None:
        async with running(breakable.make) as engine:
            tasks = [asyncio.create_task(collected(engine, f"r{i}", params=LONG)) for i in range(3)]
            await until(lambda: engine.num_unfinished_requests == 3)
            breakable.breaks = True
            for task in tasks:
                with pytest.raises(EngineError, match="out of memory"):
                    await task
            assert engine.num_unfinished_requests == 0
            await until(lambda: engine.state is EngineState.READY)
            outputs = await collected(engine, "later")
            assert tokens(outputs[-1]) == tokens(alone(prompt_of(20), PARAMS))
            assert engine.state is EngineState.READY
            assert engine.num_restarts == 1
            # The memory of the first one was free when the second was made.
            assert breakable.events == ["made", "closed", "made"]

    asyncio.run(run())


def test_an_engine_that_failed_is_not_kept_in_memory() -> None:
    breakable = Breakable()
    engines: list[weakref.ref[LLMEngine]] = []

    def make() -> LLMEngine:
        engine = breakable.make()
        engines.append(weakref.ref(engine))
        if len(engines) == 2:
            gc.collect()
            assert engines[0]() is None
        return engine

    async def run() -> None:
        async with running(make) as engine:
            breakable.breaks = True
            with pytest.raises(EngineError):
                await collected(engine)
            await until(lambda: engine.state is EngineState.READY)
            assert (await collected(engine))[-1].finished
            assert len(engines) == 2

    asyncio.run(run())


def test_a_second_failure_is_the_end() -> None:
    breakable = Breakable()

    async def run() -> None:
        async with running(breakable.make) as engine:
            for _ in range(2):
                await until(lambda: engine.state is EngineState.READY)
                breakable.breaks = True
                with pytest.raises(EngineError, match="out of memory"):
                    await collected(engine)
            await until(lambda: engine.state is EngineState.FAILED)
            assert engine.num_restarts == 1
            assert "out of memory" in str(engine.failure)
            with pytest.raises(EngineError, match=r"the engine is failed: .*out of memory"):
                await collected(engine)
            assert breakable.events == ["made", "closed", "made", "closed"]
        assert engine.state.value == "closed"

    asyncio.run(run())


def test_an_engine_that_cannot_be_made_again_is_the_end() -> None:
    breakable = Breakable()

    def make() -> LLMEngine:
        if breakable.events:
            raise ConfigError("the file has gone")
        return breakable.make()

    async def run() -> None:
        async with running(make) as engine:
            breakable.breaks = True
            with pytest.raises(EngineError, match="out of memory"):
                await collected(engine)
            await until(lambda: engine.state is EngineState.FAILED)
            with pytest.raises(EngineError, match="the file has gone"):
                await engine.call(lambda e: None)

    asyncio.run(run())


def test_an_engine_that_cannot_be_made_fails_the_start_with_its_own_error() -> None:
    def make() -> LLMEngine:
        raise ConfigError("no such model")

    async def run() -> None:
        engine = AsyncLLMEngine(make)
        with pytest.raises(ConfigError, match="no such model"):
            await engine.start()
        assert engine.state is EngineState.FAILED
        with pytest.raises(EngineError, match="the engine is failed: no such model"):
            await collected(engine)
        await engine.close()
        assert engine.state.value == "closed"

    asyncio.run(run())


def test_nothing_is_taken_before_it_is_loaded() -> None:
    async def run() -> None:
        engine = AsyncLLMEngine(simulated_engine)
        assert engine.state is EngineState.LOADING
        with pytest.raises(EngineError, match="the engine is loading"):
            await collected(engine)
        await engine.close()

    asyncio.run(run())


def test_closing_fails_what_runs_and_ends_the_thread() -> None:
    breakable = Breakable()

    async def run() -> None:
        async with running(breakable.make) as engine:
            outputs = engine.generate("r", prompt_of(20), LONG)
            await anext(outputs)
            await engine.close()
            with pytest.raises(EngineError, match="closed"):
                async for _ in outputs:
                    pass
            assert engine.num_unfinished_requests == 0
            assert engine.state is EngineState.CLOSED
            assert breakable.events == ["made", "closed"]
            assert "pagemill-engine" not in [thread.name for thread in threading.enumerate()]
            with pytest.raises(EngineError, match="the engine is closed"):
                await collected(engine)
            with pytest.raises(EngineError, match="the engine is closed"):
                await engine.call(lambda e: None)
            await engine.close()  # again is harmless
            assert breakable.events == ["made", "closed"]

    asyncio.run(run())


def test_closing_while_a_call_waits_fails_the_call() -> None:
    async def run() -> None:
        async with running(lambda: slow_engine(0.05)) as engine:
            outputs = engine.generate("r", prompt_of(20), LONG)
            await anext(outputs)
            calling = asyncio.create_task(engine.call(lambda e: "done"))
            await asyncio.sleep(0)
            await engine.close()
            with contextlib.suppress(EngineError):  # or it was taken just in time
                assert await calling == "done"
            await outputs.aclose()

    asyncio.run(run())


def test_a_command_that_comes_when_the_thread_has_ended_does_not_wait_for_ever() -> None:
    async def run() -> None:
        async with running() as engine:
            pass
        # As seen by a coroutine that runs before the loop has heard of the end.
        engine.state = EngineState.READY
        engine._closing = False
        async with asyncio.timeout(10):
            with pytest.raises(EngineError, match="closed"):
                await engine.call(lambda e: None)

    asyncio.run(run())


def test_a_call_runs_on_the_engines_thread_and_gives_its_result_or_error() -> None:
    async def run() -> None:
        async with running() as engine:
            name = await engine.call(lambda e: threading.current_thread().name)
            assert name == "pagemill-engine"
            assert await engine.call(lambda e: e.max_model_len) == 1024

            def fail(engine: LLMEngine) -> None:
                raise KeyError("mine")

            with pytest.raises(KeyError, match="mine"):
                await engine.call(fail)
            assert engine.state is EngineState.READY

    asyncio.run(run())


def test_an_idle_engine_shows_that_it_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_engine, "IDLE_SECONDS", 0.01)

    async def run() -> None:
        async with running() as engine:
            before = engine.last_advance_seconds
            await until(lambda: engine.last_advance_seconds > before + 0.02)

    asyncio.run(run())


def test_latencies_count_from_the_arrival_at_the_front_door() -> None:
    def make() -> LLMEngine:
        engine = simulated_engine()
        engine.clock = time.monotonic
        return engine

    async def run() -> None:
        async with running(make) as engine:
            arrival = time.monotonic() - 5
            outputs = await collected(engine, arrival_seconds=arrival)
            assert outputs[-1].metrics.arrival_seconds == arrival
            outputs = await collected(engine)
            assert outputs[-1].metrics.arrival_seconds > arrival + 4

    asyncio.run(run())


def test_a_name_that_was_left_can_be_used_again_at_once() -> None:
    async def run() -> None:
        async with running(slow_engine) as engine:
            for i in range(5):
                left = engine.generate("r", prompt_of(9, 50 + i), PARAMS)
                await anext(left)
                await left.aclose()
                outputs = await collected(engine, "r")
                assert outputs[-1].prompt_token_ids == prompt_of(20)
                assert tokens(outputs[-1]) == tokens(alone(prompt_of(20), PARAMS))
            await engine.call(assert_idle)

    asyncio.run(run())


def test_what_is_no_ordinary_exception_does_not_end_the_thread() -> None:
    async def run() -> None:
        async with running() as engine:

            def panic(engine: LLMEngine) -> None:
                raise SystemExit("from native code")

            with pytest.raises(EngineError, match="from native code"):
                await engine.call(panic)
            assert (await collected(engine))[-1].finished

    asyncio.run(run())
