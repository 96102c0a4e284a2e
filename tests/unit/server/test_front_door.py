"""Every request has a name, a line in the log and an answer that says nothing of the inside."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any

import pytest

from pagemill.server.front_door import escaped
from tests.unit.server.serving import client_of, error_of, new_context

LINE = re.compile(r"(\S+) (\S+) (\d+|none) \d+\.\d+ms (\d+)B caller=(\S+) id=(\S+)( disconnected)?")


def ask(*asked: tuple[str, str, dict[str, Any]], **settings: Any) -> list[Any]:
    async def main() -> list[Any]:
        async with client_of(new_context(**settings)) as client:
            return [await client.request(method, path, **more) for method, path, more in asked]

    return asyncio.run(main())


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "pagemill.access"]


def test_each_request_is_one_line_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    secret = {"Authorization": "Bearer sk-secret", "X-Secret": "sk-secret"}
    path = "/test/echo?prompt=the-prompt"
    (response,) = ask(("POST", path, {"content": b'{"prompt": "the-prompt"}', "headers": secret}))
    (line,) = lines(caplog)
    found = LINE.fullmatch(line)
    assert found is not None, line
    assert found.groups() == (
        *("POST", "/test/echo", "200", str(len(response.content)), "anonymous"),
        response.headers["x-request-id"],
        None,
    )
    logged = [r.getMessage() for r in caplog.records if r.name.startswith("pagemill")]
    assert not any("the-prompt" in line or "sk-secret" in line for line in logged)


def test_what_a_client_writes_cannot_forge_a_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    paths = ["/a%0AGET%20/b 200", "/%1b[31m", "/%C3%A9%E2%80%A8", "/" + "x" * 5000]
    for path in paths:
        ask(("GET", path, {"headers": {"X-Request-Id": "a b\tcaller=root"}}))
    for line in lines(caplog):
        assert LINE.fullmatch(line), line
        assert line.isascii()
        assert line.isprintable()
        assert len(line) < 400
    assert len(lines(caplog)) == len(paths)


def test_the_log_can_be_turned_off(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    (response,) = ask(("GET", "/version", {}), log_requests=False)
    assert response.status_code == 200
    assert lines(caplog) == []


def test_a_request_keeps_the_name_that_it_brings_if_it_is_one() -> None:
    for given in ("abc-1.2:3_4", "x" * 128):
        (response,) = ask(("GET", "/version", {"headers": {"X-Request-Id": given}}))
        assert response.headers["x-request-id"] == given
    for given in ("", "a b", "a\tb", "é", "x" * 129, "a\\n"):
        headers = {"X-Request-Id": given.encode()}
        (response,) = ask(("GET", "/version", {"headers": headers}))
        assert re.fullmatch("[0-9a-f]{32}", response.headers["x-request-id"])


def test_refusals_have_a_name_and_a_line_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    responses = ask(
        ("GET", "/nowhere", {}),
        ("GET", "/test/echo", {}),
        ("GET", "/version", {"headers": {"Host": "evil.example"}}),
    )
    assert [r.status_code for r in responses] == [404, 405, 403]
    for response, line in zip(responses, lines(caplog), strict=True):
        found = LINE.fullmatch(line)
        assert found is not None
        assert found[3] == str(response.status_code)
        assert found[6] == response.headers["x-request-id"]


def test_a_fault_is_a_500_that_says_nothing_and_a_traceback_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    (response,) = ask(("POST", "/test/fault", {}))
    assert response.status_code == 500
    assert error_of(response)["type"] == "server_error"
    assert "secret" not in response.text
    assert "RuntimeError" not in response.text
    assert "RuntimeError: a secret of the inside" in caplog.text
    assert response.headers["x-request-id"] in caplog.text


def test_escaped_text_is_one_printable_word() -> None:
    assert escaped("/a b\n\x00\\é") == "/a\\x20b\\n\\x00\\\\\\xe9"
    assert len(escaped("é" * 1000)) == 200
