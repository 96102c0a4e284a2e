"""Promises of ``pagemill serve`` about a whole process: start, signals, exit codes."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.processes import REAL, ServerProcess

ASK = {"model": "smollm2-135m", "prompt": [1, 2, 3], "temperature": 0, "ignore_eos": True}


class Stream(threading.Thread):
    """A client that reads a stream to its end."""

    def __init__(self, client: httpx.Client, max_tokens: int) -> None:
        super().__init__()
        self._url = f"{client.base_url}/v1/completions"
        self._ask = ASK | {"max_tokens": max_tokens, "stream": True}
        self.events: list[str] = []
        self.error: httpx.HTTPError | None = None
        self.begun = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            with httpx.stream("POST", self._url, json=self._ask, timeout=30) as response:
                assert response.status_code == 200
                for line in response.iter_lines():
                    if line:
                        self.events.append(line.removeprefix("data: "))
                        self.begun.set()
        except httpx.HTTPError as error:
            self.error = error
        self.begun.set()

    def finish_reason(self) -> str | None:
        """Of the last chunk, if the stream came to its end."""
        self.join(30)
        assert self.error is None, self.error
        assert self.events[-1] == "[DONE]"
        reason: str | None = json.loads(self.events[-2])["choices"][0]["finish_reason"]
        return reason


def test_it_says_where_it_listens_loads_serves_and_ends_with_0() -> None:
    with ServerProcess(LOAD_SECONDS="1.5") as server:
        url = server.url()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", url)
        client = httpx.Client(base_url=url)
        assert client.get("/live").status_code == 200
        assert client.get("/health").json() == {"status": "loading"}
        refused = client.post("/v1/completions", json=ASK)
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        server.wait_for_line(f"serving smollm2-135m at {url}/v1")
        assert client.get("/health").status_code == 200
        answer = client.post("/v1/completions", json=ASK | {"max_tokens": 5})
        assert answer.status_code == 200
        assert answer.json()["usage"]["completion_tokens"] == 5
        server.signal(signal.SIGTERM)
        assert server.end() == 0
        assert "Traceback" not in server.said
        assert re.search(r"POST /v1/completions 200 [\d.]+ms \d+B caller=anonymous", server.said)
        client.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_load_lets_what_runs_complete(number: signal.Signals) -> None:
    with ServerProcess(STEP_SECONDS="0.03") as server, server.ready() as client:
        streams = [Stream(client, max_tokens=60) for _ in range(4)]
        assert all(stream.begun.wait(20) for stream in streams)
        server.signal(number)
        server.wait_for_line("stopping: 4 requests may go on for 30 s")
        assert client.get("/health").json() == {"status": "draining"}
        assert client.get("/live").status_code == 200
        refused = httpx.post(f"{client.base_url}/v1/completions", json=ASK)
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert set(refused.json()["error"]) == {"message", "type", "param", "code"}
        for stream in streams:
            assert stream.finish_reason() == "length"
        assert server.end() == 0
        assert "Traceback" not in server.said


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_second_signal_stops_at_once(number: signal.Signals, code: int) -> None:
    with ServerProcess(STEP_SECONDS="0.03") as server, server.ready() as client:
        stream = Stream(client, max_tokens=900)
        assert stream.begun.wait(20)
        server.signal(number)
        server.wait_for_line("stopping: ")
        asked = time.monotonic()
        server.signal(number)
        assert server.end() == code
        assert time.monotonic() - asked < 8
        stream.join(20)
        assert stream.events[-1] != "[DONE]"
        assert "Traceback" not in server.said


def test_a_second_signal_does_not_wait_for_the_step() -> None:
    with ServerProcess(STEP_SECONDS="60") as server, server.ready() as client:
        stream = Stream(client, max_tokens=5)
        deadline = time.monotonic() + 20
        while "num_requests_in_flight" in (text := client.get("/metrics").text):
            if re.search(r"num_requests_in_flight\{\S+\} 1\.0", text):
                break
            assert time.monotonic() < deadline
        server.signal(signal.SIGTERM)
        server.wait_for_line("stopping: ")
        asked = time.monotonic()
        server.signal(signal.SIGTERM)
        assert server.end() == 143
        assert time.monotonic() - asked < 8
        stream.join(20)


def test_what_is_not_done_in_time_is_aborted_with_an_error() -> None:
    arguments = ("--shutdown-timeout", "0.5")
    with ServerProcess(*arguments, STEP_SECONDS="0.03") as server, server.ready() as client:
        stream = Stream(client, max_tokens=900)
        assert stream.begun.wait(20)
        server.signal(signal.SIGTERM)
        assert server.end() == 1
        stream.join(20)
        assert stream.error is None
        errors = [event for event in stream.events if '"error"' in event]
        assert len(errors) == 1
        assert set(json.loads(errors[0])["error"]) == {"message", "type", "param", "code"}
        assert "Traceback" not in server.said


def test_a_signal_while_the_model_loads_does_not_wait_for_it() -> None:
    with ServerProcess(LOAD_SECONDS="60") as server:
        server.url()
        asked = time.monotonic()
        server.signal(signal.SIGTERM)
        assert server.end() == 0
        assert time.monotonic() - asked < 4


def outcome(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", REAL, "serve", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == ""
    return done.returncode, done.stderr


def test_a_port_in_use_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, err = outcome("--port", f"{port}")
    assert code == 1
    assert err == (
        f"pagemill: error: cannot listen at http://127.0.0.1:{port}: Address already in use; "
        f"choose another --port or --host\n"
    )


def test_a_model_that_leads_nowhere_is_one_line_and_1() -> None:
    code, err = outcome("nope", "--port", "0")
    assert code == 1
    assert err.splitlines()[-1].startswith("pagemill: error: model 'nope' is no alias")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--port", "70000"), "port must be between 0 and 65535, got 70000"),
        (("--max-body-size", "many"), '--max-body-size must be bytes or a text such as "2GiB"'),
        (("--allowed-host", "http://a"), "allowed_hosts has 'http://a'"),
        (("--shutdown-timeout", "-1"), "shutdown_timeout_seconds must be 0 or more"),
        (("--api-key-file", "/nonexistent"), "api_key_file='/nonexistent' cannot be read"),
        (("a", "-m", "b"), "the model is named twice"),
        (("--num-kv-blocks", "0"), "num_kv_blocks must be between 1 and"),
    ],
)
def test_what_cannot_work_is_one_line_and_2(arguments: tuple[str, ...], message: str) -> None:
    code, err = outcome(*arguments)
    assert code == 2
    assert err.startswith(f"pagemill: error: {message}")
    assert err.count("\n") == 1


def test_a_priority_that_the_scheduler_ignores_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text('[[keys]]\nname = "a"\nkey = "sk-0123456789abcdef"\npriority = 3\n')
    file.chmod(0o600)
    code, err = outcome("--api-key-file", str(file))
    assert code == 2
    assert "the key 'a' has priority 3, which has no use under scheduling_policy='fcfs'" in err


def test_keys_are_asked_for_and_named_in_the_log(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    key = "sk-0123456789abcdef"
    file.write_text(f'[[keys]]\nname = "alice"\nkey = "{key}"\n')
    file.chmod(0o644)
    with ServerProcess("--api-key-file", str(file)) as server:
        client = server.ready()
        assert client.get("/v1/models").status_code == 401
        headers = {"Authorization": f"Bearer {key}"}
        assert client.get("/v1/models", headers=headers).status_code == 200
        client.close()
        server.signal(signal.SIGTERM)
        assert server.end() == 0
        assert "GET /v1/models 401" in server.said
        assert re.search(r"GET /v1/models 200 .* caller=alice", server.said)
        assert "can be read by others than its owner (mode 0644)" in server.said
        assert key not in server.said


def test_a_server_for_everybody_without_keys_is_warned_of() -> None:
    with ServerProcess("--host", "0.0.0.0", "--no-log-requests") as server:
        client = server.ready()
        assert client.get("/live").status_code == 200
        client.close()
        assert "has no keys; give it some with --api-key-file" in server.said
        server.signal(signal.SIGTERM)
        assert server.end() == 0
        assert "GET /live" not in server.said


def test_its_help_and_wrong_options_import_neither_torch_nor_a_web_framework() -> None:
    for arguments, code in ((["--help"], 0), (["--port", "x"], 2), (["--port", "-1"], 2)):
        program = (
            "import sys; from pagemill.cli.app import run\n"
            f"assert run(['serve', *{arguments!r}]) == {code}\n"
            "assert not {'torch', 'fastapi', 'uvicorn', 'prometheus_client'} & set(sys.modules)\n"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@contextmanager
def real_server(model: Path, *arguments: str) -> Iterator[tuple[ServerProcess, httpx.Client]]:
    options = ("--num-kv-blocks", "64", "--num-threads", "1", "--check-invariants", *arguments)
    with ServerProcess(str(model), *options, module=REAL) as server, server.ready() as client:
        yield server, client


def test_a_real_model_answers_over_a_real_socket(tiny_model: Path) -> None:
    with real_server(tiny_model, "--served-model-name", "tiny") as (server, client):
        ask: dict[str, Any] = {"model": "tiny", "prompt": "Hello", "max_tokens": 8}
        ask |= {"temperature": 0, "ignore_eos": True}
        first, again = (client.post("/v1/completions", json=ask) for _ in range(2))
        assert first.status_code == again.status_code == 200
        assert first.json()["choices"] == again.json()["choices"]
        assert first.json()["usage"]["completion_tokens"] == 8
        shown = client.get("/metrics").text
        assert 'vllm:generation_tokens_total{model_name="tiny"} 16.0' in shown
        server.signal(signal.SIGTERM)
        assert server.end() == 0
        assert "Traceback" not in server.said
