"""What no client should send."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

from tests.soak.raw_http import post

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
ASK = b'{"model": "MODEL", "prompt": "hello", "max_tokens": 2'

BODIES: dict[str, bytes] = {
    "no JSON": b"{'model': 1}",
    "half of a JSON text": ASK,
    "bad UTF-8": ASK + b', "user": "\xff\xfe"}',
    "deeply nested": b"[" * 200_000,
    "deeply nested field": ASK + b', "metadata": ' + b'{"a":' * 50_000 + b"1" + b"}" * 50_001,
    "an integer of many digits": ASK + b', "seed": ' + b"9" * 10_000 + b"}",
    "an exponent beyond all numbers": ASK + b', "temperature": 1e999999}',
    "NaN": ASK + b', "temperature": NaN}',
    "Infinity": ASK + b', "top_p": Infinity}',
    "a lone surrogate": ASK + b', "stop": "\\ud800"}',
    "a lone surrogate as model": b'{"model": "\\udfff", "prompt": "hello"}',
    "a lone surrogate as field": ASK + b', "\\ud800": 1}',
    "zero bytes in a field": ASK + b', "\\u0000": 1}',
    "token ids beyond all vocabularies": b'{"model": "MODEL", "prompt": [1, 99999999999999999999]}',
    "a prompt beyond the context": json.dumps({"model": "MODEL", "prompt": "a b " * 9000}).encode(),
    "many prompts": json.dumps({"model": "MODEL", "prompt": ["a"] * 5000}).encode(),
    "many samples": ASK + b', "n": 100000}',
    "an unknown field": ASK + b', "temprature": 1}',
    "an empty body": b"",
    "null": b"null",
    "a number": b"1e5",
    "a long text": b'"' + b"x" * 300_000 + b'"',
}
"""All of them are refused with 400, or 404 for another model."""

HEADS: dict[str, bytes] = {
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)),
    "a method without a path": b"GET\r\n\r\n",
    "no host": b"GET /live HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /live HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "a header without a name": b"GET /live HTTP/1.1\r\nHost: localhost\r\n: x\r\n\r\n",
    "a header with a zero byte": b"GET /live HTTP/1.1\r\nHost: localhost\r\nA: \x00\r\n\r\n",
    "a huge header": b"GET /live HTTP/1.1\r\nHost: localhost\r\nA: " + b"a" * 2**17 + b"\r\n\r\n",
    "many headers": b"GET /live HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 20_000 + b"\r\n",
    "a length that is none": b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Length: many\r\n\r\n",
    "a negative length": b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Length: -5\r\n\r\n",
    "two lengths": b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n{}    ",
    "an endless length": b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n",
    "a chunk of no size": b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n"
    b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    "an unknown encoding": b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n"
    b"Transfer-Encoding: gzip\r\n\r\n",
    "a path with bytes": b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
}
"""All of them are refused with 4xx, and the connection is closed."""


def body(name: str, model: str) -> bytes:
    """One of `BODIES`, for a server of ``model``."""
    return BODIES[name].replace(b"MODEL", model.encode())


def any_garbage(random: Random, model: str) -> bytes:
    """Something that must not be answered with 200 or 500."""
    kinds: list[Callable[[], bytes]] = [
        lambda: random.randbytes(random.randrange(1, 2000)) + b"\r\n\r\n",
        lambda: random.choice([*HEADS.values()]),
        lambda: post(random.choice([TEXT, CHAT]), body(random.choice([*BODIES]), model)),
        lambda: post(random.choice([TEXT, CHAT]), _damaged(random, model)),
    ]
    return random.choice(kinds)()


def _damaged(random: Random, model: str) -> bytes:
    """A request of which some bytes are others, and one field is wrong in any case."""
    asked: dict[str, Any] = {"model": model, "prompt": "hello", "messages": [], "wrong": 1}
    text = bytearray(json.dumps(asked).encode())
    for _ in range(random.randrange(4)):
        text[random.randrange(len(text))] = random.randrange(256)
    return bytes(text)
