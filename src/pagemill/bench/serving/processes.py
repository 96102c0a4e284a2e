"""The three processes: the engine without HTTP, the server, the client."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import pagemill
from pagemill.bench.environment import family_cpu_ticks
from pagemill.bench.peers.contenders import DRIVERS
from pagemill.bench.peers.driver import Driver
from pagemill.bench.serving import client, offline
from pagemill.bench.serving.requests import Timed
from pagemill.bench.workload import Request
from pagemill.errors import BenchmarkError

SERVED_NAME = "served"
START_LIMIT_S = 300.0
RUN_LIMIT_S = 600.0
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_LOOK_S = 0.05


class Processes:
    """All three, idle but for one at a time; ended on leaving the context.

    Args:
        settings: fields of `EngineConfig`, of the server and of the engine without one.
        logs: a directory for what they write to standard error.
    """

    def __init__(self, settings: Mapping[str, Any], logs: Path) -> None:
        self._settings = settings
        self._logs = logs
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._offline = stack.enter_context(
                _driver(
                    "the engine without a server",
                    [str(DRIVERS / "host.py"), offline.__file__, json.dumps(dict(self._settings))],
                    self._logs / "offline.log",
                )
            )
            self._offline.wait_until_ready(START_LIMIT_S)
            server = stack.enter_context(_Server(self._settings, self._logs / "server.log"))
            host, port = server.wait_until_ready()
            self._server_pid = server.pid
            self._client = stack.enter_context(
                _driver("the client", [client.__file__, host, port], self._logs / "client.log")
            )
            self._client.wait_until_ready(START_LIMIT_S)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    @property
    def about(self) -> Mapping[str, Any]:
        """What may be asked of the model; see `pagemill.bench.serving.offline`."""
        return self._offline.about

    def generate(self, requests: Sequence[Request]) -> dict[str, float]:
        """Answer without a server: wall and processor seconds."""
        before = _cpu_s(self._offline.pid)
        run = self._offline.run("many", requests, RUN_LIMIT_S)
        return {"total_s": run.total_s, "engine_cpu_s": _cpu_s(self._offline.pid) - before}

    def serve(self, timed: Sequence[Timed]) -> dict[str, Any]:
        """Answer through the server: the same, and what the client tells.

        Raises:
            BenchmarkError: an answer is shorter than asked.
        """
        before = _cpu_s(self._server_pid)
        asked = {"streams": [one.to_json(SERVED_NAME) for one in timed]}
        told = self._client.ask(asked, f"asking {len(timed)} requests", RUN_LIMIT_S)
        told["engine_cpu_s"] = _cpu_s(self._server_pid) - before
        for one, stream in zip(timed, told["streams"], strict=True):
            if stream["output_tokens"] != one.request.max_tokens:
                raise BenchmarkError(
                    f"the server answered with {stream['output_tokens']} tokens, not "
                    f"{one.request.max_tokens}"
                )
        return told


class _Server:
    """``pagemill serve`` at a free port."""

    def __init__(self, settings: Mapping[str, Any], log: Path) -> None:
        command = [sys.executable, "-m", "pagemill.cli", "serve", "--port", "0"]
        command += ["--served-model-name", SERVED_NAME]
        for name, value in settings.items():
            command += [f"--{name.replace('_', '-')}", str(value)]
        self._log = log
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stderr=stderr, env=_environment()
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until_ready(self) -> tuple[str, str]:
        """Host and port."""
        deadline = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline:
            said = self._log.read_text(errors="replace")
            if f"serving {SERVED_NAME} at " in said:
                host, _, port = said.rpartition(" at http://")[2].partition("/")[0].rpartition(":")
                return host, port
            if self._process.poll() is not None:
                raise BenchmarkError(f"the server did not start:\n{said}")
            time.sleep(_LOOK_S)
        raise BenchmarkError(f"the server did not start within {START_LIMIT_S:g} s")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._process.wait()


def _driver(name: str, arguments: Sequence[str], log: Path) -> Driver:
    return Driver(name, [sys.executable, *arguments], _environment(), log)


def _environment() -> dict[str, str]:
    """This process's, and where the package that runs now lies."""
    return os.environ | {"PYTHONPATH": str(Path(pagemill.__file__).parent.parent)}


def _cpu_s(pid: int) -> float:
    return family_cpu_ticks({pid}) / _TICKS_PER_SECOND
