"""What an orchestrator and a scraper ask."""

from __future__ import annotations

import asyncio
from functools import partial

from pagemill import __version__
from pagemill.async_engine import EngineState
from pagemill.server.operations import health_of
from tests.unit.server.serving import client_of, new_context, new_engine, started, until


def test_health_is_200_only_while_requests_are_taken_and_the_loop_advances() -> None:
    async def main() -> None:
        context = new_context(partial(new_engine, step_seconds=1.0), health_timeout_seconds=0.7)
        assert health_of(context) == "loading"
        async with client_of(context) as client:
            assert (await client.get("/health")).status_code == 200
            assert (await client.head("/health")).status_code == 200
            stream = asyncio.create_task(client.post("/test/stream?n=1"))
            await until(lambda: health_of(context) != "ok")
            stalled = await client.get("/health")
            assert (stalled.status_code, stalled.json()) == (503, {"status": "stalled"})
            await stream
            await until(lambda: health_of(context) == "ok")
            context.lifecycle.begin_draining()
            draining = await client.get("/health")
            assert (draining.status_code, draining.json()) == (503, {"status": "draining"})

    asyncio.run(main())


def test_health_says_no_more_of_a_failure_than_that_there_was_one() -> None:
    async def main() -> None:
        context = new_context()
        async with client_of(context) as client:
            context.engine.state = EngineState.FAILED
            response = await client.get("/health")
            assert (response.status_code, response.json()) == (503, {"status": "failed"})
            assert (await client.get("/live")).status_code == 200

    asyncio.run(main())


def test_an_idle_engine_stays_healthy() -> None:
    async def main() -> None:
        context = new_context(health_timeout_seconds=2)
        async with started(context):
            await asyncio.sleep(2.5)
            assert health_of(context) == "ok"

    asyncio.run(main())


def test_the_version_is_that_of_the_package() -> None:
    async def main() -> None:
        async with client_of(new_context(), start=False) as client:
            assert (await client.get("/version")).json() == {"version": __version__}

    asyncio.run(main())


def test_no_page_of_the_server_loads_scripts_from_elsewhere() -> None:
    async def main() -> None:
        async with client_of(new_context()) as client:
            for path in ("/docs", "/redoc"):
                assert (await client.get(path)).status_code == 404
            document = (await client.get("/openapi.json")).json()
            assert {"/health", "/live", "/metrics", "/version"} <= set(document["paths"])

    asyncio.run(main())
