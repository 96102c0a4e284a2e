"""Embeddings from coroutines, beside generation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import pytest

from pagemill import EngineError, ModelError, RequestError, SamplingParams
from pagemill.async_engine import AsyncLLMEngine
from pagemill.engine import LLMEngine
from tests.core_helpers import assert_idle, embedding_alone, prompt_of, simulated_engine
from tests.unit.core.test_embeddings import DamagedRunner

PARAMS = SamplingParams(max_tokens=20, seed=1)


async def started(make: Callable[[], LLMEngine] = simulated_engine) -> AsyncLLMEngine:
    engine = AsyncLLMEngine(make)
    await engine.start()
    return engine


async def generated(engine: AsyncLLMEngine, request_id: str) -> int:
    return len([o async for o in engine.generate(request_id, prompt_of(20), PARAMS)])


def test_embeddings_and_generation_share_the_engine() -> None:
    async def run() -> None:
        engine = await started(lambda: simulated_engine(max_num_batched_tokens=16))
        one, two, num_outputs = await asyncio.gather(
            engine.embed("a", prompt_of(50)),
            engine.embed("b", prompt_of(70, 3), normalize=True),
            generated(engine, "c"),
        )
        assert one.embedding.tolist() == embedding_alone(prompt_of(50))
        assert one.request_id == "a"
        assert np.linalg.norm(two.embedding.astype(np.float64)) == pytest.approx(1)
        assert num_outputs > 0
        assert engine.num_unfinished_requests == 0
        await engine.call(assert_idle)
        await engine.close()

    asyncio.run(run())


def test_a_cancelled_call_aborts_its_request() -> None:
    async def run() -> None:
        engine = await started(
            lambda: simulated_engine(
                num_kv_blocks=8000, max_model_len=100_000, max_num_batched_tokens=1
            )
        )
        task = asyncio.create_task(engine.embed("a", prompt_of(100_000)))
        while not await engine.call(lambda engine: engine.scheduler.running):
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert engine.num_unfinished_requests == 0
        await engine.call(assert_idle)
        assert await engine.call(lambda e: e.stats()["num_requests_finished"]["abort"]) == 1
        await engine.close()

    asyncio.run(run())


def test_what_goes_wrong_is_raised_and_the_engine_goes_on() -> None:
    def make() -> LLMEngine:
        engine = simulated_engine()
        engine.runner = DamagedRunner(num_kv_blocks=64, block_size=16)
        return engine

    async def run() -> None:
        engine = await started(make)
        with pytest.raises(RequestError, match="at least one token"):
            await engine.embed("a", [])
        with pytest.raises(ModelError, match="NaN or infinity"):
            await engine.embed("a", [13, 1])
        assert (await engine.embed("a", [1])).embedding.tolist() == embedding_alone([1])
        await engine.close()
        with pytest.raises(EngineError, match="closed"):
            await engine.embed("a", [1])

    asyncio.run(run())
