"""Who is let in: by host, origin, key, rate, and state of the server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pagemill.server.context import ServerContext
from pagemill.server.doors import host_name
from pagemill.server.errors import ApiError
from pagemill.server.keys import ANONYMOUS, Caller
from pagemill.server.rate_limits import TokenBucket
from tests.unit.server.serving import client_of, error_of, new_context

ALICE, BOB = "sk-alice-0123456789", "sk-bob-0123456789ab"
OPEN = ("/live", "/health")
LOCKED = ("/metrics", "/version", "/openapi.json", "/docs", "/redoc", "/v1/models", "/nowhere", "/")


@pytest.fixture
def keyed(tmp_path: Path) -> ServerContext:
    """A server with two keys; Bob may ask three times a minute."""
    file = tmp_path / "keys.toml"
    file.write_text(
        f'[[keys]]\nname = "alice"\nkey = "{ALICE}"\n'
        f'[[keys]]\nname = "bob"\nkey = "{BOB}"\nrequests_per_minute = 3\n'
    )
    file.chmod(0o600)
    return new_context(api_key_file=str(file))


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_without_a_key_only_live_and_health_are_open(keyed: ServerContext) -> None:
    async def main() -> None:
        async with client_of(keyed) as client:
            for path in OPEN:
                assert (await client.get(path)).status_code == 200
            for path in (*LOCKED, "/health/", "//health", "/live/../metrics", "/LIVE"):
                for method in ("GET", "POST", "OPTIONS", "HEAD"):
                    response = await client.request(method, f"http://127.0.0.1{path}")
                    assert response.status_code == 401, (method, path)
                    assert response.headers["www-authenticate"] == "Bearer"
            assert error_of(await client.get("/metrics"))["code"] == "invalid_api_key"

    asyncio.run(main())


@pytest.mark.parametrize(
    "headers",
    [
        [("Authorization", "")],
        [("Authorization", "Bearer")],
        [("Authorization", "Bearer ")],
        [("Authorization", ALICE)],
        [("Authorization", f"Basic {ALICE}")],
        [("Authorization", f"Bearer {ALICE}x")],
        [("Authorization", f"Bearer x {ALICE}")],
        [("Authorization", f"Bearer {ALICE}"), ("Authorization", f"Bearer {ALICE}")],
        [("X-Api-Key", ALICE)],
    ],
)
def test_what_is_not_exactly_a_known_key_is_refused(
    keyed: ServerContext, headers: list[tuple[str, str]]
) -> None:
    async def main() -> None:
        async with client_of(keyed) as client:
            response = await client.get("/version", headers=headers)
            assert response.status_code == 401
            assert ALICE not in response.text

    asyncio.run(main())


def test_a_key_opens_everything_and_says_whose_request_it_is(keyed: ServerContext) -> None:
    async def main() -> None:
        async with client_of(keyed) as client:
            for path in ("/metrics", "/version", "/openapi.json"):
                assert (await client.get(path, headers=bearer(ALICE))).status_code == 200
            response = await client.post("/test/echo", headers=bearer(BOB))
            assert response.json()["caller"] == "bob"
            lower = {"authorization": f"bearer  {ALICE} "}
            assert (await client.post("/test/echo", headers=lower)).json()["caller"] == "alice"

    asyncio.run(main())


def test_a_key_that_asks_too_often_is_told_when_to_come_back(keyed: ServerContext) -> None:
    async def main() -> None:
        async with client_of(keyed) as client:
            for _ in range(3):
                assert (await client.get("/version", headers=bearer(BOB))).status_code == 200
            response = await client.get("/version", headers=bearer(BOB))
            assert response.status_code == 429
            assert 1 <= int(response.headers["retry-after"]) <= 20
            error = error_of(response)
            assert error["code"] == "rate_limit_exceeded"
            assert "'bob' has made its 3 requests a minute" in error["message"]
            assert (await client.get("/version", headers=bearer(ALICE))).status_code == 200
            assert (await client.get("/health", headers=bearer(BOB))).status_code == 200

    asyncio.run(main())


def test_where_there_are_no_keys_everybody_is_anonymous() -> None:
    async def main() -> None:
        async with client_of(new_context()) as client:
            response = await client.post("/test/echo", headers=bearer("whatever"))
            assert response.json()["caller"] == ANONYMOUS.name

    asyncio.run(main())


ALLOWED_HOSTS = [
    "127.0.0.1",
    "127.0.0.1:8000",
    "localhost:1",
    "LOCALHOST",
    "[::1]:8000",
    "10.1.2.3",
]
FOREIGN_HOSTS = [
    "evil.example",
    "evil.example:8000",
    "127.0.0.1.evil.example",
    "localhost.evil",
    "",
]


@pytest.mark.parametrize("host", ALLOWED_HOSTS)
def test_addresses_and_localhost_are_hosts(host: str) -> None:
    assert status(host=host) == 200


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
@pytest.mark.parametrize("path", ["/version", "/health"])
def test_a_name_that_a_foreign_page_may_have_is_refused(host: str, path: str) -> None:
    assert status(host=host, path=path) == 403


def test_allowed_hosts_are_names_patterns_or_all() -> None:
    hosts = ("API.example.com", "*.inner.example")
    for host, expected in [
        ("api.example.com:443", 200),
        ("api.example.com.", 200),
        ("example.com", 403),
        ("a.inner.example", 200),
        ("a.b.inner.example", 200),
        ("inner.example", 403),
        ("evilinner.example", 403),
    ]:
        assert status(host=host, allowed_hosts=hosts) == expected, host
    assert status(host="evil.example", allowed_hosts=("*",)) == 200
    assert status(host="my.machine", host_setting="my.machine") == 200


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        ("http://127.0.0.1:8000", 200),
        ("https://127.0.0.1:8000", 200),
        ("http://127.0.0.1:3000", 403),
        ("https://evil.example", 403),
        ("null", 403),
        ("", 403),
    ],
)
def test_a_script_of_a_foreign_page_is_refused(origin: str, expected: int) -> None:
    assert status(host="127.0.0.1:8000", origin=origin) == expected


def test_no_page_is_told_that_it_may_ask_unless_it_may() -> None:
    async def main(**settings: Any) -> list[tuple[int, str | None]]:
        async with client_of(new_context(**settings), start=False) as client:
            preflight = {"Access-Control-Request-Method": "POST"}
            answers = []
            for origin in ("https://app.example", "https://evil.example"):
                headers = {"Origin": origin}
                for method, more in (("GET", {}), ("OPTIONS", preflight)):
                    answer = await client.request(method, "/version", headers=headers | more)
                    allowed = answer.headers.get("access-control-allow-origin")
                    answers.append((answer.status_code, allowed))
            return answers

    assert asyncio.run(main()) == [(403, None)] * 4
    app = "https://app.example"
    allowed = asyncio.run(main(allowed_origins=(app,)))
    assert allowed == [(200, app), (200, app), (403, None), (403, None)]
    assert asyncio.run(main(allowed_origins=("*",))) == [(200, "*")] * 4


def test_a_preflight_needs_no_key_but_what_follows_does(
    keyed: ServerContext, tmp_path: Path
) -> None:
    origin = {"Origin": "https://app.example"}
    context = new_context(
        api_key_file=str(tmp_path / "keys.toml"), allowed_origins=("https://app.example",)
    )

    async def main() -> None:
        async with client_of(context) as client:
            asks = {"Access-Control-Request-Method": "POST"} | origin
            asks["Access-Control-Request-Headers"] = "authorization, content-type"
            assert (await client.options("/test/echo", headers=asks)).status_code == 200
            assert (await client.post("/test/echo", headers=origin)).status_code == 401
            answer = await client.post("/test/echo", headers=origin | bearer(ALICE))
            assert answer.headers["access-control-allow-origin"] == "https://app.example"

    asyncio.run(main())


def status(
    *,
    host: str,
    origin: str | None = None,
    path: str = "/version",
    host_setting: str = "127.0.0.1",
    allowed_hosts: tuple[str, ...] = (),
) -> int:
    async def main() -> int:
        context = new_context(host=host_setting, allowed_hosts=allowed_hosts)
        headers = {"Host": host} | ({} if origin is None else {"Origin": origin})
        async with client_of(context) as client:
            return (await client.get(path, headers=headers)).status_code

    return asyncio.run(main())


def test_the_name_in_a_host_header_is_found() -> None:
    for host, name in [("A.b:80", "a.b"), ("[::1]:8", "::1"), ("[::1", "::1"), ("a.", "a")]:
        assert host_name(host) == name


def test_work_is_refused_while_the_model_loads_and_while_draining() -> None:
    async def main() -> None:
        context = new_context()
        async with client_of(context, start=False) as client:
            for path in ("/live", "/version", "/metrics"):
                assert (await client.get(path)).status_code == 200
            loading = await client.post("/test/echo")
            assert loading.status_code == 503
            assert int(loading.headers["retry-after"]) >= 1
            assert error_of(loading)["message"] == "the model is being loaded"
            await context.engine.start()
            assert (await client.post("/test/echo")).status_code == 200
            context.lifecycle.begin_draining()
            draining = await client.post("/test/echo")
            assert draining.status_code == 503
            assert draining.headers["connection"] == "close"
            assert int(draining.headers["retry-after"]) >= 1
            for path in ("/live", "/version", "/metrics"):
                assert (await client.get(path)).status_code == 200
            await context.engine.close()

    asyncio.run(main())


def test_a_key_may_use_so_many_tokens_a_minute() -> None:
    async def main() -> None:
        context = new_context()
        await context.engine.start()
        caller = Caller(name="alice", tokens=TokenBucket(100))
        with context.work(1, caller=caller, num_tokens=100) as work:
            with pytest.raises(ApiError, match="of the 100 a minute of the key") as raised:
                context.work(1, caller=caller, num_tokens=50).__enter__()
            assert raised.value.status == 429
            assert 29 <= int(raised.value.headers["retry-after"]) <= 31
            work.num_tokens_used = 20
        with context.work(1, caller=caller, num_tokens=80):
            assert context.num_open_sequences == 1
        assert context.num_open_sequences == 0
        await context.engine.close()

    asyncio.run(main())


def test_a_full_queue_is_told_apart_from_a_request_that_never_fits() -> None:
    async def main() -> None:
        context = new_context(max_queued_sequences=10)  # and 256 may run
        await context.engine.start()
        with context.work(200), context.work(66):
            with pytest.raises(ApiError, match="the queue is full: 266 sequences") as raised:
                context.work(1).__enter__()
            assert (raised.value.status, raised.value.code) == (429, "queue_full")
            assert int(raised.value.headers["retry-after"]) >= 1
        with context.work(266):
            pass
        with pytest.raises(ApiError, match=r"267 sequences .* 256 that run and 10 that") as raised:
            context.work(267).__enter__()
        assert raised.value.status == 400
        await context.engine.close()

    asyncio.run(main())
