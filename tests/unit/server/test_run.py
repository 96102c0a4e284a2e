"""A server on a real socket: how it starts and stops, and clients that only hold on to it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import httpx
import pytest

from pagemill.async_engine import EngineState
from pagemill.engine import LLMEngine
from pagemill.errors import ModelError, PagemillError
from pagemill.server import run
from pagemill.server.context import ServerContext
from pagemill.server.run import Server
from pagemill.server.settings import ServerSettings
from tests.unit.server.serving import error_of, loaded, new_app, new_context, new_engine, until

slow_engine = partial(new_engine, step_seconds=0.02)


@pytest.fixture(autouse=True)
def _test_routes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "create_app", new_app)


class Running:
    """A server under way."""

    def __init__(self, server: Server, ended: asyncio.Task[bool], said: list[str]) -> None:
        self.server = server
        self.context = server.context
        self.ended = ended
        self.said = said
        self.client = httpx.AsyncClient(base_url=server.url, timeout=20)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, _, port = self.server.url.removeprefix("http://").partition(":")
        return await asyncio.open_connection(host, int(port))

    async def send(self, data: bytes) -> bytes:
        """All that comes back on a connection of its own."""
        reader, writer = await self.connect()
        writer.write(data)
        answer = await asyncio.wait_for(reader.read(), 10)
        writer.close()
        return answer


@asynccontextmanager
async def running(
    make: Callable[[], LLMEngine] = new_engine,
    *,
    context: ServerContext | None = None,
    ready: bool = True,
    **settings: Any,
) -> AsyncIterator[Running]:
    said: list[str] = []
    server = Server(context or new_context(make, port=0, **settings), say=said.append)
    one = Running(server, asyncio.create_task(server.run()), said)
    try:
        if ready:
            await until(lambda: server.context.engine.state is EngineState.READY)
        async with one.client:
            yield one
    finally:
        server.stop()
        server.stop()
        await asyncio.wait({one.ended})


def test_it_says_where_it_listens_and_when_it_serves() -> None:
    async def main() -> None:
        async with running() as one:
            await until(lambda: len(one.said) == 2)
            assert one.said == [
                f"listening at {one.server.url}; loading tiny",
                f"serving tiny at {one.server.url}/v1",
            ]
            assert (await one.client.get("/health")).status_code == 200
            one.server.stop()
            assert await one.ended is True
            with pytest.raises(httpx.ConnectError):
                await one.client.get("/live")

    asyncio.run(main())


def test_while_the_model_loads_it_listens_and_says_so() -> None:
    goes_on = threading.Event()

    def load() -> LLMEngine:
        assert goes_on.wait(20)
        return new_engine()

    async def main() -> None:
        async with running(load, ready=False) as one:
            assert (await one.client.get("/live")).status_code == 200
            health = await one.client.get("/health")
            assert (health.status_code, health.json()) == (503, {"status": "loading"})
            asked = await one.client.post("/test/echo")
            assert (asked.status_code, asked.headers["retry-after"]) == (503, "2")
            goes_on.set()
            await until(lambda: one.context.engine.state is EngineState.READY)
            assert (await one.client.get("/health")).status_code == 200
            assert (await one.client.post("/test/echo")).status_code == 200

    asyncio.run(main())


def test_a_stop_while_the_model_loads_does_not_wait_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run, "ABORT_SECONDS", 0.2)
    goes_on = threading.Event()

    def load() -> LLMEngine:
        goes_on.wait(20)
        return new_engine()

    async def main() -> None:
        async with running(load, ready=False) as one:
            assert (await one.client.get("/live")).status_code == 200
            started = time.monotonic()
            one.server.stop()
            assert await one.ended is True
            assert time.monotonic() - started < 5
            goes_on.set()

    asyncio.run(main())


def test_a_model_that_cannot_be_loaded_ends_it_with_the_reason() -> None:
    def load() -> LLMEngine:
        raise ModelError("the file is damaged")

    async def main() -> None:
        async with running(load, ready=False) as one:
            with pytest.raises(ModelError, match="the file is damaged"):
                await one.ended
            with pytest.raises(httpx.ConnectError):
                await one.client.get("/live")

    asyncio.run(main())


async def read_lines(one: Running, n: int, *, until_line: int | None = None) -> list[str]:
    """Lines of a stream: all, or up to one."""
    lines = []
    async with one.client.stream("POST", f"/test/stream?n={n}") as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            lines.append(line)
            if len(lines) == until_line:
                break
    return lines


def test_draining_finishes_what_runs_and_refuses_what_comes() -> None:
    async def main() -> None:
        async with running(slow_engine, shutdown_timeout_seconds=20) as one:
            streams = [asyncio.create_task(read_lines(one, 50)) for _ in range(5)]
            await until(lambda: one.context.num_open_sequences == 5)
            one.server.stop()
            await until(lambda: one.context.lifecycle.draining)
            health = await one.client.get("/health")
            assert (health.status_code, health.json()) == (503, {"status": "draining"})
            async with httpx.AsyncClient(base_url=one.server.url) as other:
                refused = await other.post("/test/echo")
                assert (refused.status_code, refused.headers["connection"]) == (503, "close")
                assert "shutting down" in error_of(refused)["message"]
                assert (await other.get("/live")).status_code == 200
            assert not any(stream.done() for stream in streams)
            for stream in streams:
                assert (await stream)[-1] == "50"
            assert await one.ended is True
            assert "stopping: 5 requests may go on for 20 s" in one.said[-1]

    asyncio.run(main())


def test_what_is_not_done_in_time_is_aborted() -> None:
    async def main() -> None:
        async with running(slow_engine, shutdown_timeout_seconds=0.3) as one:
            stream = asyncio.create_task(read_lines(one, 900))
            await until(lambda: one.context.num_open_sequences == 1)
            started = time.monotonic()
            one.server.stop()
            assert await one.ended is False
            assert 0.3 <= time.monotonic() - started < 5
            with pytest.raises(httpx.RemoteProtocolError):
                await stream
            assert one.said[-1] == "aborting 1 requests"
            assert one.context.num_open_sequences == 0
            assert one.context.engine.state is EngineState.CLOSED

    asyncio.run(main())


def test_a_second_stop_does_not_wait() -> None:
    async def main() -> None:
        async with running(slow_engine, shutdown_timeout_seconds=60) as one:
            stream = asyncio.create_task(read_lines(one, 900))
            await until(lambda: one.context.num_open_sequences == 1)
            one.server.stop()
            await until(lambda: one.context.lifecycle.draining)
            started = time.monotonic()
            one.server.stop()
            assert await one.ended is False
            assert time.monotonic() - started < 5
            stream.cancel()
            with contextlib.suppress(httpx.HTTPError, asyncio.CancelledError):
                await stream

    asyncio.run(main())


def test_a_client_that_leaves_frees_everything_and_is_not_waited_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "pagemill.access")

    async def main() -> None:
        async with running(slow_engine) as one:
            assert len(await read_lines(one, 900, until_line=3)) == 3
            await until(lambda: one.context.num_open_sequences == 0)
            await until(lambda: one.context.lifecycle.num_in_flight == 0)
            await until(lambda: one.context.metrics.engine.read()["num_requests_running"] == 0)
            assert one.context.metrics.engine.read()["kv_blocks_referenced"] == 0
            assert caplog.messages[-1].startswith("POST /test/stream 200 ")
            assert caplog.messages[-1].endswith(" disconnected")

    asyncio.run(main())


def test_two_servers_in_a_process_do_not_know_each_other() -> None:
    async def main() -> None:
        async with running(slow_engine) as one, running(slow_engine) as other:
            assert one.server.url != other.server.url
            stream = asyncio.create_task(read_lines(other, 50))
            await until(lambda: other.context.num_open_sequences == 1)
            one.server.stop()
            assert await one.ended is True
            assert (await stream)[-1] == "50"
            assert (await other.client.get("/health")).status_code == 200

    asyncio.run(main())


def test_a_port_in_use_is_told_before_anything_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        def load() -> Any:
            raise AssertionError("it was loaded")

        context = ServerContext(ServerSettings(port=port), load, "tiny")
        with pytest.raises(PagemillError) as raised:
            Server(context)
    assert str(raised.value) == (
        f"cannot listen at http://127.0.0.1:{port}: Address already in use; choose another "
        f"--port or --host"
    )


def test_a_host_that_leads_nowhere_is_told() -> None:
    for host in ("no such host", "a" * 300):
        with pytest.raises(PagemillError, match="leads nowhere"):
            Server(new_context(host=host))


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    ("host", "addresses"),
    [
        ("127.0.0.1", ["127.0.0.1"]),
        ("localhost", ["127.0.0.1"]),
        ("0.0.0.0", ["127.0.0.1"]),
        ("::1", ["[::1]"]),
        ("::", ["[::1]", "127.0.0.1"]),
    ],
)
def test_it_listens_at_every_address_of_its_host(host: str, addresses: list[str]) -> None:
    if ":" in host and not has_ipv6():
        pytest.skip("this machine has no IPv6")

    async def main() -> None:
        async with running(host=host) as one:
            port = one.server.url.rpartition(":")[2]
            for address in addresses:
                response = await one.client.get(f"http://{address}:{port}/live")
                assert response.status_code == 200
            warned = any("warning: whoever reaches" in said for said in one.said)
            assert warned == (host in ("0.0.0.0", "::"))

    asyncio.run(main())


def test_a_failed_engine_is_replaced_once_and_then_health_says_so() -> None:
    engines = 0

    def make() -> LLMEngine:
        nonlocal engines
        engines += 1
        engine = slow_engine()
        steps = iter(range(1000))
        execute = engine.runner.execute

        def fail(batch: Any) -> Any:
            if next(steps) == 5:
                raise RuntimeError("a broken chip")
            return execute(batch)

        engine.runner.execute = fail  # type: ignore[method-assign]
        return engine

    async def main() -> None:
        async with running(
            context=ServerContext(ServerSettings(port=0), lambda: loaded(make), "tiny")
        ) as one:
            for expected in (200, 503):
                with pytest.raises(httpx.RemoteProtocolError):
                    await read_lines(one, 50)
                await until(lambda: one.context.num_open_sequences == 0)
                await asyncio.sleep(0.2)
                assert (await one.client.get("/health")).status_code == expected
            assert engines == 2
            assert (await one.client.get("/health")).json() == {"status": "failed"}
            refused = await one.client.post("/test/echo")
            assert refused.status_code == 503
            assert "chip" not in refused.text
            one.server.stop()
            assert await one.ended is True

    asyncio.run(main())


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def test_a_head_that_is_too_large_is_refused() -> None:
    async def main() -> None:
        async with running(max_header_bytes=2048) as one:
            answer = await one.send(b"GET /live HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 4096)
            assert status_of(answer) == 431
            assert b"larger than 2048 bytes" in answer
            answer = await one.send(b"GET /" + b"x" * 4096)
            assert status_of(answer) == 431
            assert (await one.client.get("/live")).status_code == 200

    asyncio.run(main())


@pytest.mark.parametrize(
    "garbage", [b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"]
)
def test_what_is_no_http_is_refused(garbage: bytes) -> None:
    async def main() -> None:
        async with running() as one:
            answer = await one.send(garbage)
            assert status_of(answer) == 400
            assert b'{"error": {"message": "Invalid HTTP request' in answer

    asyncio.run(main())


async def closed_after(one: Running, data: bytes, trickle: bytes = b"") -> float:
    """Seconds until the server closes a connection on which data came, and then trickles."""
    started = time.monotonic()
    reader, writer = await one.connect()
    writer.write(data)
    reading = asyncio.create_task(reader.read())
    with contextlib.suppress(ConnectionError):
        while not reading.done():
            await asyncio.wait({reading}, timeout=0.05)
            if trickle:
                writer.write(trickle)
            assert time.monotonic() - started < 10
        await reading
    writer.close()
    return time.monotonic() - started


POST = b"POST /test/echo HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize("trickle", [b"", b"x"])
def test_a_head_or_body_that_does_not_come_is_not_waited_for(trickle: bytes) -> None:
    async def main() -> None:
        times: Any = {"header_timeout_seconds": 0.4, "body_timeout_seconds": 0.4}
        async with running(**times) as one:
            for begun in (b"", b"GET /live", POST + b"X: ", POST + b"Content-Length: 999\r\n\r\n"):
                if begun or not trickle:
                    assert 0.3 < await closed_after(one, begun, trickle) < 5, begun

    asyncio.run(main())


def test_a_body_that_nobody_wants_any_more_does_not_trickle_for_ever() -> None:
    async def main() -> None:
        async with running(header_timeout_seconds=0.4) as one:
            refused = POST.replace(b"localhost", b"evil.example") + b"Content-Length: 9999\r\n\r\n"
            assert 0.3 < await closed_after(one, refused, b"x") < 5

    asyncio.run(main())


def test_an_idle_connection_is_closed_after_a_while_but_not_before() -> None:
    async def main() -> None:
        async with running(keep_alive_seconds=1.0, header_timeout_seconds=0.3) as one:
            request = b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n"
            assert 0.9 < await closed_after(one, request) < 5
            reader, writer = await one.connect()
            for _ in range(3):
                writer.write(request)
                await asyncio.wait_for(reader.readuntil(b"}"), 5)
                await asyncio.sleep(0.5)
            writer.close()

    asyncio.run(main())


def test_a_slow_stream_is_not_taken_for_an_idle_connection() -> None:
    async def main() -> None:
        times: Any = {"header_timeout_seconds": 0.2, "keep_alive_seconds": 0.2}
        async with running(partial(new_engine, step_seconds=0.3), **times) as one:
            assert await read_lines(one, 4) == ["1", "2", "3", "4"]

    asyncio.run(main())


def test_a_client_that_takes_nothing_is_cut_and_the_others_go_on() -> None:
    async def main() -> None:
        async with running(write_timeout_seconds=0.5) as one:
            host, _, port = one.server.url.removeprefix("http://").partition(":")
            lazy = socket.create_connection((host, int(port)))
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            with lazy:
                lazy.sendall(POST.replace(b"echo", b"flood") + b"Content-Length: 0\r\n\r\n")
                await until(lambda: one.context.lifecycle.num_in_flight == 1)
                assert (await read_lines(one, 20))[-1] == "20"
                await until(lambda: one.context.lifecycle.num_in_flight == 0)

    asyncio.run(main())


def test_more_connections_than_allowed_are_told_so() -> None:
    async def main() -> None:
        async with running(max_connections=3) as one:
            held = [await one.connect() for _ in range(3)]
            await asyncio.sleep(0.1)
            answer = await one.send(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert status_of(answer) == 503
            assert b"too many connections" in answer
            for _, writer in held:
                writer.close()
            await until(lambda: len(one.server._http.server_state.connections) == 0)
            assert (await one.client.get("/live")).status_code == 200

    asyncio.run(main())


def test_a_large_body_is_refused_with_an_answer_that_arrives() -> None:
    async def main() -> None:
        async with running(max_body_bytes=2**20) as one:

            async def pieces(n: int) -> AsyncIterator[bytes]:
                for _ in range(n):
                    yield b"x" * 2**16

            announced = await one.client.post("/test/echo", content=b"x" * (2**21))
            assert announced.status_code == 413
            chunked = await one.client.post("/test/echo", content=pieces(32))
            assert chunked.status_code == 413
            assert error_of(chunked)["message"].startswith("the body is larger than 1048576 bytes")
            fits = await one.client.post("/test/echo", content=pieces(16))
            assert fits.json()["num_bytes"] == 2**20

    asyncio.run(main())
