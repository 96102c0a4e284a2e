"""Clients that speak no HTTP, or bad JSON, get an error; nobody else notices."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.soak.garbage import BODIES, HEADS, body
from tests.soak.raw_http import post
from tests.unit.server.http_helpers import MODEL, served
from tests.unit.server.http_helpers import run as run_test
from tests.unit.server.server_thread import ServerThread
from tests.unit.server.test_request_fields import CHAT, NEEDED, PUBLISHED, TEXT

ASK = {"model": MODEL, "prompt": "hello", "max_tokens": 2, "ignore_eos": True}


@pytest.fixture(scope="module")
def address() -> Iterator[tuple[str, int]]:
    thread = ServerThread(
        header_timeout_seconds=1.0, body_timeout_seconds=1.0, keep_alive_seconds=1.5
    )
    host, _, port = thread.url.removeprefix("http://").partition(":")
    yield host, int(port)
    thread.end()


def send(address: tuple[str, int], *pieces: bytes, half_close: bool = False) -> bytes:
    """All that comes back until the server closes."""
    with socket.create_connection(address, timeout=20) as sock:
        answer = b""
        try:
            for piece in pieces:
                sock.sendall(piece)
                time.sleep(0.01 if len(pieces) > 1 else 0)
            if half_close:
                sock.shutdown(socket.SHUT_WR)
            while data := sock.recv(2**16):
                answer += data
        except (ConnectionResetError, BrokenPipeError):
            pass  # it closed while there was more to come
        return answer


def statuses(answer: bytes) -> list[int]:
    return [int(s) for s in re.findall(rb"HTTP/1\.1 (\d+)", answer)]


def closing(request: bytes) -> bytes:
    return request.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)


@pytest.mark.parametrize("name", HEADS)
def test_what_is_no_request_is_refused_and_the_connection_closed(
    address: tuple[str, int], name: str
) -> None:
    answer = send(address, HEADS[name])
    assert len(statuses(answer)) == 1
    if name != "a path with bytes":
        assert b"connection: close" in answer.lower()
    assert 400 <= statuses(answer)[0] < 500
    assert set(json.loads(answer.partition(b"\r\n\r\n")[2])) == {"error"}


@pytest.mark.parametrize("path", [TEXT, CHAT])
@pytest.mark.parametrize("name", BODIES)
def test_a_bad_body_is_refused(address: tuple[str, int], name: str, path: str) -> None:
    begun = time.monotonic()
    answer = send(address, closing(post(path, body(name, MODEL))))
    assert statuses(answer)[0] in (400, 404)
    error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert len(error["message"]) < 1000
    assert time.monotonic() - begun < 10


def test_a_head_that_comes_in_one_piece_is_refused_too_if_it_is_too_large(
    address: tuple[str, int],
) -> None:
    for size in (2**16 + 2**13, 2**17, 2**20):
        head = b"GET /live HTTP/1.1\r\nHost: localhost\r\nA: " + b"a" * size + b"\r\n\r\n"
        assert statuses(send(address, head)) in ([431], [])  # reset while it still sends
    head = b"GET /live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + b"A: b\r\n" * 9000
    assert statuses(send(address, head + b"\r\n")) == [200]


def test_requests_in_a_row_are_answered_in_their_order(address: tuple[str, int]) -> None:
    first = post(TEXT, ASK)
    bad = post(TEXT, ASK | {"temprature": 1})
    last = closing(post("/tokenize", {"prompt": "abc"}))
    assert statuses(send(address, first + bad + first + last)) == [200, 400, 200, 200]


def test_a_request_that_comes_a_byte_at_a_time_is_answered(address: tuple[str, int]) -> None:
    request = closing(post("/tokenize", {"prompt": "a"}))
    pieces = [request[i : i + 8] for i in range(0, len(request), 8)]
    assert statuses(send(address, *pieces)) == [200]


def test_a_body_that_is_shorter_than_announced_is_not_waited_for(
    address: tuple[str, int],
) -> None:
    assert statuses(send(address, post(TEXT, ASK, length=10_000))) == [408]
    assert statuses(send(address, post(TEXT, ASK, length=10_000), half_close=True)) == []


def test_a_body_that_is_longer_than_announced_begins_no_other_request(
    address: tuple[str, int],
) -> None:
    answer = send(address, post(TEXT, ASK, length=10))
    assert statuses(answer) == [400]  # what follows is half of a line, and waited for in vain
    answer = send(address, post(TEXT, ASK, length=10) + b"\r\n\r\n")
    assert statuses(answer) == [400, 400]


def test_a_client_that_closes_its_half_counts_as_gone(address: tuple[str, int]) -> None:
    # It cannot be told from one that has left; `ServerThread` sees that all is given back.
    long = ASK | {"max_tokens": 900, "stream": True}
    assert b"[DONE]" not in send(address, post(TEXT, long), half_close=True)


def test_of_a_key_that_is_there_twice_the_last_one_counts() -> None:
    async def test() -> None:
        async with served("abc") as server:
            text = '{"model": "x", "prompt": "a", "max_tokens": 5, "max_tokens": 1, "model": "%s"}'
            answer = server.body(await server.post_text(TEXT, text % MODEL))
            assert answer["usage"]["completion_tokens"] == 1

    run_test(test())


texts = st.text(st.characters(codec=None), max_size=6)  # lone surrogates, too
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-3, 300)
    | st.integers()
    | st.sampled_from([2**31, 2**63, 2**64, -(2**63) - 1, 10**30])
    | st.floats()
    | texts
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=8,
)
messages = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "role": st.sampled_from(["system", "user", "assistant", "tool"]) | values,
            "content": texts | st.lists(values, max_size=2) | values,
            "name": values,
        },
    ),
    max_size=3,
)
KNOWN = {
    "prompt": texts | st.lists(st.integers(-1, 300), max_size=5) | values,
    "input": texts | values,
    "messages": messages | values,
    "tokens": st.lists(st.integers(-1, 300), max_size=5) | values,
}
FIELDS = {path: sorted(PUBLISHED.get(path, {"prompt", "messages", "tokens"})) for path in NEEDED}
EXTRA = ("top_k", "min_p", "stop_token_ids", "bad_words", "allowed_token_ids", "min_tokens")


@st.composite
def bodies(draw: st.DrawFn, path: str) -> str:
    """A good request of which some fields have other values."""
    names = [*FIELDS[path], *EXTRA]
    chosen = draw(st.lists(st.sampled_from(names), max_size=3, unique=True))
    fields: dict[str, Any] = {"model": MODEL, **NEEDED[path]}
    fields |= {name: draw(KNOWN.get(name, values)) for name in chosen}
    return json.dumps(fields)


@pytest.mark.parametrize("path", NEEDED)
def test_any_json_is_answered_or_refused_and_nothing_stays_behind(path: str) -> None:
    @settings(
        max_examples=100,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(sent=st.lists(bodies(path), min_size=1, max_size=8))
    def holds(sent: list[str]) -> None:
        async def test() -> None:
            async with served() as server:
                for text in sent:
                    response = await server.post_text(path, text)
                    assert response.status_code in (200, 400, 404), (text, response.text)
                    if response.status_code != 200:
                        assert set(response.json()) == {"error"}
                    elif "event-stream" in response.headers["content-type"]:
                        assert '"server_error"' not in response.text, text
                assert server.context.engine.num_restarts == 0

        run_test(test())

    holds()
