"""Promises of a server process while many clients ask at once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import Any

import httpx
import pytest

from tests.server.processes import ServerProcess
from tests.soak.__main__ import main as soak
from tests.soak.figures import Held, complaints, read_metrics

ASK = {"model": "smollm2-135m", "prompt": [1, 2, 3], "temperature": 0, "ignore_eos": True}
NUM_STREAMS, NUM_WHOLE = 64, 32


class Client(threading.Thread):
    """Asks once and reads it all."""

    def __init__(self, client: httpx.Client, max_tokens: int, *, stream: bool) -> None:
        super().__init__()
        self._client = client
        self._ask = ASK | {"max_tokens": max_tokens, "stream": stream}
        self._ask |= {"stream_options": {"include_usage": True}} if stream else {}
        self.outcome = "none"
        self.start()

    def run(self) -> None:
        try:
            response = self._client.post("/v1/completions", json=self._ask)
        except httpx.HTTPError as error:
            self.outcome = repr(error)
            return
        if response.status_code != 200:
            self.outcome = f"{response.status_code}"
        elif self._ask["stream"]:
            *events, usage, done, rest = response.text.split("\n\n")
            reasons = [json.loads(e.removeprefix("data: "))["choices"][0] for e in events]
            assert (done, rest) == ("data: [DONE]", "")
            assert reasons[-1]["finish_reason"] == "length"
            used = json.loads(usage.removeprefix("data: "))["usage"]
            self.outcome = f"{used['completion_tokens']} tokens"
        else:
            self.outcome = f"{response.json()['usage']['completion_tokens']} tokens"


def test_a_signal_under_load_lets_all_that_were_let_in_complete_and_refuses_the_rest() -> None:
    size = ("--num-kv-blocks", "512", "--max-num-seqs", "48")  # half of them wait
    with ServerProcess(*size, STEP_SECONDS="0.005") as server, server.ready() as client:
        url = str(client.base_url)
        many = httpx.Client(base_url=url, timeout=60, limits=httpx.Limits(max_connections=None))
        inside = [Client(many, 150, stream=True) for _ in range(NUM_STREAMS)]
        inside += [Client(many, 150, stream=False) for _ in range(NUM_WHOLE)]
        deadline = time.monotonic() + 30
        while read_metrics(url)["num_open_sequences"] < NUM_STREAMS + NUM_WHOLE:
            assert time.monotonic() < deadline
            assert all(one.outcome == "none" for one in inside), "they must all be under way"
        server.signal(signal.SIGTERM)
        server.wait_for_line("stopping: ")
        outside = [Client(many, 5, stream=number % 2 == 0) for number in range(16)]
        for one in [*outside, *inside]:
            one.join(60)
        many.close()
        assert Counter(one.outcome for one in outside) == {"503": 16}
        assert Counter(one.outcome for one in inside) == {"150 tokens": NUM_STREAMS + NUM_WHOLE}
        assert server.end() == 0
        assert "Traceback" not in server.said


READER = """
import json, socket, sys
port, ask = int(sys.argv[1]), sys.argv[2].encode()
sock = socket.socket()
sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
sock.connect(("127.0.0.1", port))
head = f"POST /v1/completions HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n"
head += f"Content-Type: application/json\\r\\nContent-Length: {len(ask)}\\r\\n\\r\\n"
sock.sendall(head.encode() + ask)
print(len(sock.recv(100)), flush=True)
answer, size = b"", 0
while data := sock.recv(65536):
    size += len(data)
    answer = (answer + data)[-200:]
print(size, b"data: [DONE]" in answer, flush=True)
"""


def test_a_client_that_is_stopped_stalls_nobody_and_goes_on_where_it_was() -> None:
    size = ("--num-kv-blocks", "1500", "--no-log-requests")
    with ServerProcess(*size, STEP_SECONDS="0.001") as server, server.ready() as client:
        url = str(client.base_url)
        ask = ASK | {"max_tokens": 900, "n": 20, "logprobs": 20, "stream": True}
        command = [sys.executable, "-c", READER, url.rpartition(":")[2], json.dumps(ask)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "100\n"
            reader.send_signal(signal.SIGSTOP)
            try:
                longest = 0.0
                deadline = time.monotonic() + 60
                while read_metrics(url)["num_requests_running"]:  # its own go on to their end
                    asked = time.monotonic()
                    answer = client.post("/v1/completions", json=ASK | {"max_tokens": 5})
                    longest = max(longest, time.monotonic() - asked)
                    assert answer.json()["usage"]["completion_tokens"] == 5
                    assert time.monotonic() < deadline
                assert 0 < longest < 5
                # All is computed, but not taken.
                assert read_metrics(url)["num_requests_in_flight"] == 1
                assert read_metrics(url)["kv_blocks_referenced"] == 0
            finally:
                reader.send_signal(signal.SIGCONT)
            num_bytes, whole = reader.stdout.readline().split()
            assert (int(num_bytes) > 2**22, whole) == (True, "True")


def test_hundreds_of_clients_that_misbehave_leave_nothing_behind(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = soak(["--seconds", "40", "--clients", "200", "--longest-wait", "20"])
    said = capsys.readouterr().out
    assert code == 0, said
    assert said.endswith("soak: all is well\n")


GOOD: dict[str, Any] = {"blocks": 64, "tasks": 3, "threads": 9, "files": 7}
GOOD |= {"memory_bytes": 100 * 2**20, "busy": (), "idle_after_seconds": 0.2}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"blocks": 63}, "63 blocks are free or cached, of 64"),
        ({"tasks": 4}, "4 tasks, 3 at the start"),
        ({"threads": 99}, "99 threads"),
        ({"files": 8}, "8 open files"),
        ({"memory_bytes": 120 * 2**20}, "memory grew by 20.0 MiB"),
        ({"idle_after_seconds": 5.0}, "idle only 5.0 s after"),
        ({"busy": ("num_requests_running=1",)}, "num_requests_running=1 long after"),
    ],
)
def test_a_soak_complains_of_all_that_is_left_behind(changed: dict[str, Any], words: str) -> None:
    good = Held(**GOOD)
    limits = {"memory_mib": 16.0, "idle_seconds": 3.0}
    assert complaints(good, good, good, **limits) == []
    (complaint,) = complaints(good, good, Held(**GOOD | changed), **limits)
    assert complaint.startswith(words)
