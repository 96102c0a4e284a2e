"""A body is whole, in time and small enough before anybody works on it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from pagemill.server.request_body import RequestBody

LIMIT = 100


class Exchange:
    """Plays a client that sends some messages, and then nothing more."""

    def __init__(
        self, messages: Sequence[Message], headers: dict[str, str] | None = None, **options: Any
    ) -> None:
        self._messages = list(messages)
        self.sent: list[Message] = []
        self.bodies: list[bytes] = []
        self.later: list[Message] = []
        self.num_received = 0
        named = [(k.encode(), v.encode()) for k, v in (headers or {}).items()]
        scope = {"type": "http", "method": "POST", "path": "/", "headers": named}
        app = RequestBody(self.app, max_bytes=LIMIT, timeout_seconds=0.2, **options)
        asyncio.run(app(scope, self.receive, self.send))

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        assert not message["more_body"]
        self.bodies.append(message["body"])
        self.later.append(await receive())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def receive(self) -> Message:
        if not self._messages:
            await asyncio.sleep(60)
        self.num_received += 1
        return self._messages.pop(0)

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    @property
    def status(self) -> int | None:
        return self.sent[0]["status"] if self.sent else None

    @property
    def message(self) -> str:
        return str(json.loads(self.sent[1]["body"])["error"]["message"])

    @property
    def closes(self) -> bool:
        return (b"connection", b"close") in self.sent[0]["headers"]


def piece(size: int, *, last: bool = False) -> Message:
    return {"type": "http.request", "body": b"x" * size, "more_body": not last}


GONE: Message = {"type": "http.disconnect"}


def test_a_body_comes_in_one_piece_and_then_what_follows() -> None:
    exchange = Exchange([piece(60), piece(0), piece(40, last=True), GONE])
    assert exchange.bodies == [b"x" * 100]
    assert exchange.later == [GONE]
    assert exchange.status == 200


def test_a_body_that_is_announced_too_large_is_refused() -> None:
    for length in ("101", "0101", "9" * 18, "9" * 5000):
        exchange = Exchange([piece(5, last=True)], {"content-length": length})
        assert (exchange.status, exchange.bodies) == (413, [])
        assert exchange.message == "the body is larger than 100 bytes, the limit here"
        assert exchange.closes


@pytest.mark.parametrize("headers", [{}, {"content-length": "5"}, {"content-length": "-1"}])
def test_a_body_that_is_larger_than_announced_is_refused(headers: dict[str, str]) -> None:
    exchange = Exchange([piece(60), piece(41), piece(1, last=True)], headers)
    assert (exchange.status, exchange.bodies) == (413, [])
    assert exchange.num_received == 3, "what is on its way is taken off the wire first"


def test_an_endless_body_is_not_read_for_ever() -> None:
    exchange = Exchange([piece(50) for _ in range(1000)])
    assert exchange.status == 413
    assert exchange.num_received <= 3 + 8


def test_who_waits_to_be_asked_for_a_body_is_not_asked() -> None:
    headers = {"content-length": "101", "expect": "100-continue"}
    exchange = Exchange([piece(101, last=True)], headers)
    assert (exchange.status, exchange.num_received) == (413, 0)


def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    exchange = Exchange([piece(1)])
    assert (exchange.status, exchange.closes) == (408, True)
    assert exchange.message == "the body did not arrive within 0.2 seconds"


def test_a_body_that_trickles_has_no_more_time() -> None:
    async def trickle() -> AsyncIterator[Message]:
        while True:
            await asyncio.sleep(0.05)
            yield piece(1)

    messages = trickle()
    sent: list[Message] = []

    async def main() -> None:
        async def app(*_: Any) -> None:
            raise AssertionError("it was never whole")

        async def send(message: Message) -> None:
            sent.append(message)

        guarded = RequestBody(app, max_bytes=LIMIT, timeout_seconds=0.2)
        scope = {"type": "http", "headers": []}
        await guarded(scope, messages.__anext__, send)

    asyncio.run(asyncio.wait_for(main(), 5))
    assert sent[0]["status"] == 408


def test_a_client_that_leaves_meanwhile_is_not_answered() -> None:
    exchange = Exchange([piece(1), GONE])
    assert (exchange.sent, exchange.bodies) == ([], [])
