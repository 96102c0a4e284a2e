"""What a key has of its own: priority, cache salt, and tokens a minute."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from pagemill.server.keys import Caller
from pagemill.server.rate_limits import TokenBucket
from tests.unit.server.http_helpers import MODEL, TOKENIZER, Served, error_of, run, served

PROMPT = "a prompt that is long enough for two whole blocks of the cache"
COMPLETION: dict[str, Any] = {"model": MODEL, "prompt": PROMPT, "ignore_eos": True}
NUM_PROMPT = len(TOKENIZER.encode(PROMPT))
KEYS = """
[[keys]]
name = "alice"
key = "alices-secret-key"
cache_salt = "a"
priority = 1
tokens_per_minute = 1000

[[keys]]
name = "bob"
key = "bobs-secret-key-0"
"""


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    path = tmp_path / "keys.toml"
    path.write_text(KEYS)
    path.chmod(0o600)
    return str(path)


def caller_named(server: Served, name: str) -> Caller:
    assert server.context.keyring is not None
    return next(caller for caller in server.context.keyring.callers if caller.name == name)


def stopped_bucket(server: Served) -> Callable[[], float]:
    """Alice's tokens, which do not come back with time; how many she has."""
    bucket = TokenBucket(1000, clock=lambda: 0.0)
    object.__setattr__(caller_named(server, "alice"), "tokens", bucket)
    return lambda: bucket._level


async def ask(server: Served, key: str, **fields: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"}
    body = {**COMPLETION, **fields}
    return await server.client.post("/v1/completions", json=body, headers=headers)


async def alice(server: Served, **fields: Any) -> httpx.Response:
    return await ask(server, "alices-secret-key", **fields)


async def bob(server: Served, **fields: Any) -> httpx.Response:
    return await ask(server, "bobs-secret-key-0", **fields)


def cached(response: httpx.Response) -> int:
    assert response.status_code == 200, response.text
    return int(response.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def policy() -> dict[str, Any]:
    return {"scheduling_policy": "priority"}


def test_nobody_finds_a_prefix_of_another_key(key_file: str) -> None:
    async def test() -> None:
        async with served(settings={"api_key_file": key_file}, **policy()) as server:
            assert cached(await alice(server)) == 0
            assert cached(await alice(server)) > 0
            assert cached(await bob(server)) == 0
            # Nor by naming a salt.
            assert cached(await bob(server, cache_salt="a")) == 0
            assert cached(await alice(server, cache_salt="b")) == 0
            assert cached(await alice(server, cache_salt="b")) > 0

    run(test())


def test_what_was_not_used_of_the_reserved_tokens_is_given_back(key_file: str) -> None:
    async def test() -> None:
        async with served("yes", settings={"api_key_file": key_file}, **policy()) as server:
            level = stopped_bucket(server)
            # What is refused costs nothing.
            assert (await alice(server, max_tokens=10**6)).status_code == 400
            assert (await alice(server, temperature=-1)).status_code == 400
            assert level() == 1000
            used = 0
            for fields in ({"max_tokens": 500}, {"max_tokens": 500, "stream": True}, {"n": 2}):
                response = await alice(server, ignore_eos=False, **fields)
                assert response.status_code == 200
                used += NUM_PROMPT + 4 * fields.get("n", 1)
                assert level() == 1000 - used

    run(test())


def test_tokens_are_reserved_before_anything_is_computed(key_file: str) -> None:
    async def test() -> None:
        settings = {"api_key_file": key_file}
        async with served(settings=settings, step_seconds=0.005, **policy()) as server:
            stopped_bucket(server)
            first = asyncio.create_task(alice(server, max_tokens=200, n=3))
            while not server.context.num_open_sequences:
                await asyncio.sleep(0.001)
            response = await alice(server, max_tokens=400)
            assert response.status_code == 429
            assert error_of(response)["code"] == "rate_limit_exceeded"
            assert int(response.headers["retry-after"]) >= 1
            assert (await bob(server, max_tokens=5)).status_code == 200
            assert (await first).status_code == 200

    run(test())


def test_a_key_has_its_priority_at_best(key_file: str) -> None:
    seen: list[int] = []

    async def test() -> None:
        async with served("x", settings={"api_key_file": key_file}, **policy()) as server:
            loaded = server.context._loaded
            assert loaded is not None
            add = loaded.engine.add_request

            def noting(name: str, prompt: Any, params: Any, priority: int, **more: Any) -> None:
                seen.append(priority)
                add(name, prompt, params, priority, **more)

            loaded.engine.add_request = noting  # type: ignore[method-assign,assignment]
            for asked in (None, -5, 0, 3):
                assert (await alice(server, priority=asked)).status_code == 200
            assert seen == [1, 1, 1, 3]

    run(test())
