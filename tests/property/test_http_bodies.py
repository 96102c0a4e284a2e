"""Whatever a client sends as a body is answered; the engine lives, and all its blocks come back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from pagemill.server.schemas.chat import ChatRequest
from pagemill.server.schemas.completions import CompletionRequest
from pagemill.server.schemas.embeddings import EmbeddingRequest
from pagemill.server.schemas.tokenization import DetokenizeRequest, TokenizeRequest
from tests.unit.server.http_helpers import MODEL, Served, error_of, parsed_events, served

ROUTES: dict[str, type[BaseModel]] = {
    "/v1/completions": CompletionRequest,
    "/v1/chat/completions": ChatRequest,
    "/v1/embeddings": EmbeddingRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
}
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 40)
    | st.sampled_from([2**31, 2**63, 2**64, -(2**63), 10**400])
    | st.floats(-2, 3, allow_nan=False)
    | st.sampled_from(["", "a", "hello", "\ud800", "né", MODEL, "user", "text", "<|im_end|>"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["5", "a", "role", "content", "type", "text"]), inner)
    ),
    max_leaves=6,
)
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.just("user"), "content": st.just("hi") | VALUES}),
    min_size=1,
    max_size=3,
)
LIKELY = {
    "model": st.just(MODEL),
    "prompt": st.sampled_from(["hello", ["a", "b"], [65, 66], [[65], [66]]]),
    "input": st.sampled_from(["hello", ["a", "b"], [65, 66]]),
    "tokens": st.lists(st.integers(0, 259)),
    "messages": MESSAGES,
    "max_tokens": st.integers(0, 30),
    "stream": st.booleans(),
}


@st.composite
def bodies(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A route, and a body of some of its fields: most of them may be what they should."""
    route = draw(st.sampled_from(sorted(ROUTES)))
    names = sorted(ROUTES[route].model_fields)
    body: dict[str, Any] = {}
    for name in LIKELY:
        if name in names and draw(st.integers(0, 9)):
            body[name] = draw(LIKELY[name])
    for name in draw(st.lists(st.sampled_from([*names, "unknown"]), max_size=3)):
        body[name] = draw(VALUES)
    return route, body


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[asyncio.Runner, Served]]:
    with asyncio.Runner() as runner:
        entered = served(max_model_len=64)
        yield runner, runner.run(entered.__aenter__())
        runner.run(entered.__aexit__(None, None, None))


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(bodies())
def test_every_body_is_answered(
    server: tuple[asyncio.Runner, Served], asked: tuple[str, dict[str, Any]]
) -> None:
    runner, client = server
    route, body = asked

    async def ask() -> None:
        async with asyncio.timeout(20):
            response = await client.post_text(route, json.dumps(body))
        assert response.status_code in (200, 400, 404), response.text
        if response.status_code != 200:
            error_of(response)
        elif response.headers["content-type"].startswith("text/event-stream"):
            chunks = parsed_events(response.text)
            assert not any("error" in chunk for chunk in chunks)
        else:
            response.json()
        assert client.context.num_open_sequences == 0

    runner.run(ask())
