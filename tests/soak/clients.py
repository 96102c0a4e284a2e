"""Clients of every kind: each function is what one of them does once."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.soak.garbage import CHAT, TEXT, any_garbage
from tests.soak.raw_http import Address, Connection, connected, get, post

GONE = (ConnectionError, asyncio.IncompleteReadError)
"""How a connection ends that the server closes."""
GARBAGE_SECONDS = 45.0
"""In which garbage must be answered, or its connection closed: the server waits 30 s for a head."""


@dataclass
class World:
    """What the clients share, and what they have seen."""

    address: Address
    model: str
    random: Random
    max_tokens: int
    """Of a well-behaved client's answer."""
    count: Counter[str] = field(default_factory=Counter)
    first_waits: list[float] = field(default_factory=list)
    """Seconds from a well-behaved client's connecting to the first of its answer."""
    longest_gap: float = 0.0
    """Seconds between two chunks of a well-behaved client's stream."""
    health_waits: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """What the server should not have done."""

    def ask(self, **more: Any) -> tuple[str, dict[str, Any]]:
        """A request that can be answered: its path and its body."""
        fields: dict[str, Any] = {"model": self.model, "ignore_eos": True, "temperature": 1.0}
        fields["seed"] = self.random.randrange(2**31)
        words = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog"]
        text = " ".join(self.random.choices(words, k=self.random.randrange(1, 24)))
        if self.random.random() < 0.5:
            fields["messages"] = [{"role": "user", "content": text}]
            return CHAT, fields | more
        return TEXT, fields | {"prompt": text} | more

    def fault(self, text: str) -> None:
        """Note what should not have been."""
        if len(self.faults) < 50:
            self.faults.append(text)


async def well_behaved(world: World) -> None:
    """Ask, read it all, and see that it is whole; come back when told so."""
    tokens = world.random.randrange(1, world.max_tokens + 1)
    streams = world.random.random() < 0.7
    path, body = world.ask(max_tokens=tokens)
    if streams:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    asked = time.monotonic()
    async with connected(world.address) as connection:
        while True:
            await connection.send(post(path, body))
            status, headers = await connection.head()
            if status != 429:
                break
            world.count["told to come back (429)"] += 1
            await connection.body(headers)
            await asyncio.sleep(int(headers["retry-after"]))
        if status != 200:
            world.fault(f"a good request got {status}: {await connection.body(headers)!r}")
            return
        if streams:
            await _read_stream(world, connection, headers, asked, tokens)
        else:
            answer = json.loads(await connection.body(headers))
            world.first_waits.append(time.monotonic() - asked)
            _check(world, answer["usage"], tokens)
    world.count["answers that were whole"] += 1


async def _read_stream(
    world: World, connection: Connection, headers: dict[str, str], asked: float, tokens: int
) -> None:
    text, last = b"", asked
    async for piece in connection.pieces(headers):
        now = time.monotonic()
        if not text:
            world.first_waits.append(now - asked)
        else:
            world.longest_gap = max(world.longest_gap, now - last)
        last = now
        text += piece
    *events, done, rest = text.decode().split("\n\n")
    if (done, rest) != ("data: [DONE]", ""):
        world.fault(f"a stream ended with {events[-1:]} {done!r} {rest!r}")
        return
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    if "error" in chunks[-1]:
        world.fault(f"a stream ended with {chunks[-1]}")
        return
    _check(world, chunks[-1]["usage"], tokens)
    if chunks[-2]["choices"][0]["finish_reason"] != "length":
        world.fault(f"a stream finished with {chunks[-2]}")


def _check(world: World, usage: dict[str, Any], tokens: int) -> None:
    if usage["completion_tokens"] != tokens:
        world.fault(f"asked for {tokens} tokens, got {usage}")


async def leaves(world: World) -> None:
    """Ask for much, and go away at any moment, with or without a goodbye."""
    random = world.random
    path, body = world.ask(max_tokens=800, n=random.choice([1, 1, 2, 4]))
    body["stream"] = random.random() < 0.6
    data = post(path, body)
    async with connected(world.address) as connection:
        if random.random() < 0.1:
            await connection.send(data[: random.randrange(len(data))])
        else:
            await connection.send(data)
            await _read_for(connection, random.random() ** 2 * 3)
        if random.random() < 0.5:
            connection.reset()
    world.count["requests left"] += 1


async def _read_for(connection: Connection, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            while await connection.reader.read(4096):
                pass
    except TimeoutError:
        pass


async def times_out(world: World) -> None:
    """Wait for a whole answer for a shorter time than it takes."""
    path, body = world.ask(max_tokens=800)
    async with connected(world.address) as connection:
        await connection.send(post(path, body))
        await _read_for(connection, world.random.uniform(0.05, 1.5))
    world.count["requests timed out"] += 1


async def reads_slowly(world: World) -> None:
    """Let a large answer wait for a reader that takes little of it, or nothing."""
    path, body = world.ask(max_tokens=400, stream=True)
    body |= {"logprobs": 10} if path == TEXT else {"logprobs": True, "top_logprobs": 10}
    takes = world.random.random() < 0.7
    async with connected(world.address, small=True) as connection:
        await connection.send(post(path, body))
        for _ in range(world.random.randrange(5, 60)):
            await asyncio.sleep(0.1)
            if takes and not await connection.reader.read(256):
                break
    world.count["slow readers"] += 1


async def sends_garbage(world: World) -> None:
    """Send what cannot be answered well; it must be answered soon, or the connection closed."""
    data = any_garbage(world.random, world.model)
    try:
        async with asyncio.timeout(GARBAGE_SECONDS), connected(world.address) as connection:
            if data.endswith(b"\r\n\r\n") or world.random.random() < 0.7:
                await connection.send(data)
            else:
                half = world.random.randrange(len(data))
                await connection.send(data[:half])
                await asyncio.sleep(world.random.random())
                await connection.send(data[half:])
            status, headers = await connection.head()
            if not 400 <= status < 500:
                world.fault(f"garbage got {status}: {data[:200]!r}")
            if "error" not in json.loads(await connection.body(headers)):
                world.fault(f"garbage got no error: {data[:200]!r}")
        world.count[f"garbage answered with {status}"] += 1
    except GONE:
        world.count["garbage that ended its connection"] += 1
    except TimeoutError:
        world.fault(f"garbage was held for {GARBAGE_SECONDS:g} s: {data[:200]!r}")


async def begins_and_waits(world: World) -> None:
    """Hold a connection with a part of a request, and leave."""
    path, body = world.ask()
    data = post(path, body)
    async with connected(world.address) as connection:
        await connection.send(data[: world.random.randrange(len(data))])
        await _read_for(connection, world.random.uniform(0.1, 5))
    world.count["requests begun and held"] += 1


async def sends_twice(world: World) -> None:
    """Two requests at once on one connection, both of which are answered in turn."""
    path, body = world.ask(max_tokens=3)
    async with connected(world.address) as connection:
        await connection.send(post(path, body) * 2)
        for _ in range(2):
            status, headers = await connection.head()
            await connection.body(headers)
            if status not in (200, 429):
                world.fault(f"one of two requests in a row got {status}")
    world.count["pairs of requests in a row"] += 1


async def asks_for_health(world: World) -> None:
    """Look whether the server is well, four times a second."""
    asked = time.monotonic()
    async with connected(world.address) as connection:
        await connection.send(get("/health"))
        status, headers = await connection.head()
        await connection.body(headers)
    world.health_waits.append(time.monotonic() - asked)
    if status != 200:
        world.fault(f"/health said {status}")
    await asyncio.sleep(0.25)


Client = Callable[[World], Awaitable[None]]
GOOD: tuple[Client, ...] = (well_behaved, asks_for_health, sends_twice)
"""A connection that ends early is a fault for these."""
SHARES: dict[Client, int] = {
    well_behaved: 40,
    leaves: 20,
    times_out: 12,
    reads_slowly: 12,
    sends_garbage: 8,
    begins_and_waits: 6,
    sends_twice: 2,
}
"""Of a hundred clients."""


async def live(world: World, client: Client, until: float) -> None:
    """One client, again and again."""
    while time.monotonic() < until:
        try:
            await client(world)
        except GONE as error:
            if client in GOOD:
                world.fault(f"{client.__name__}: {error!r}")
        await asyncio.sleep(world.random.uniform(0, 0.2))
