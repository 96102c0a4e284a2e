"""llama.cpp: its own server, over HTTP on the loopback interface. Runs in `host.py`.

Needs the standard library only.
"""

from __future__ import annotations

import atexit
import http.client
import json
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

START_SECONDS = 120
REQUEST_SECONDS = 3600
"""Longer than any limit: whoever drives this process ends it."""


class Engine:
    """A running ``llama-server``.

    Args:
        server: the program.
        model: a GGUF file.
        threads: that compute.
        slots: requests that it works on at once (``-np``).
        context: tokens of each slot.
        cache_prompt: let a slot keep what its last prompt has in common with the next.
    """

    def __init__(
        self, server: str, model: str, threads: int, slots: int, context: int, cache_prompt: bool
    ) -> None:
        self._cache_prompt = cache_prompt
        self._port = _free_port()
        command = [server, "-m", model, "--host", "127.0.0.1", "--port", str(self._port)]
        command += ["-t", str(threads), "-tb", str(threads), "-np", str(slots)]
        command += ["-c", str(slots * context), "--no-webui"]
        self._server = subprocess.Popen(command, stdout=sys.stderr, stderr=sys.stderr)
        atexit.register(self._server.kill)
        self._wait_until_it_answers()

    def about(self) -> dict[str, Any]:
        """Whose memory counts, and the build."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=START_SECONDS)
        connection.request("GET", "/props")
        build = json.loads(connection.getresponse().read()).get("build_info", "unknown")
        # Built outside a checkout it does not know its version.
        version = None if build.endswith("unknown") else build
        return {"memory_pid": self._server.pid, "version": version}

    def single(self, prompt: list[int], max_tokens: int) -> tuple[float, float, int]:
        """Time one request, streamed."""
        began = time.perf_counter()
        first = None
        last: dict[str, Any] = {}
        for line in self._post(prompt, max_tokens, stream=True):
            if line.startswith(b"data: "):
                if first is None:
                    first = time.perf_counter()
                last = json.loads(line[6:])
        ended = time.perf_counter()
        assert first is not None, last
        return first - began, ended - began, last["tokens_predicted"]

    def many(self, requests: list[tuple[list[int], int]]) -> tuple[float, list[int]]:
        """Time many requests at once, each on a connection of its own."""

        def count(request: tuple[list[int], int]) -> int:
            answer = json.loads(self._post(*request, stream=False).read())
            return int(answer["tokens_predicted"])

        with ThreadPoolExecutor(len(requests)) as executor:
            began = time.perf_counter()
            counts = list(executor.map(count, requests))
            return time.perf_counter() - began, counts

    def _post(
        self, prompt: list[int], max_tokens: int, *, stream: bool
    ) -> http.client.HTTPResponse:
        body = {
            "prompt": prompt,
            "n_predict": max_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "top_k": 1,
            "samplers": ["top_k"],
            "cache_prompt": self._cache_prompt,
            "stream": stream,
        }
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=REQUEST_SECONDS)
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/completion", json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"llama-server: {response.status} {response.read()[:500]!r}")
        return response

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._server.poll() is not None:
                raise RuntimeError(f"llama-server ended with {self._server.returncode}")
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=5)
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    return
            except OSError:
                pass
            time.sleep(0.05)
        raise RuntimeError(f"llama-server did not answer within {START_SECONDS} s")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
