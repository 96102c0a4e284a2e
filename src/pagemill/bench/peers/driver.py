"""An engine in a process of its own: start it, ask it, end it."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from pagemill.bench.workload import Mode, Request, Run
from pagemill.errors import BenchmarkError

NUM_LOG_LINES = 15
"""How much of its log the error for a dead driver shows."""
_POLL_BYTES = 1 << 16


class DriverDiedError(BenchmarkError):
    """The process ended, or said what nobody can read."""


class OverLimitError(BenchmarkError):
    """The process took longer than it may, and was killed."""

    def __init__(self, name: str, doing: str, limit_s: float) -> None:
        super().__init__(f"{name}: {doing} took longer than {limit_s:g} s and was ended")
        self.limit_s = limit_s


class Driver:
    """A process that speaks the protocol of ``drivers/host.py``; ended on leaving the context.

    Args:
        name: for messages.
        command: the program and its arguments.
        environment: of the process, whole.
        log: a file for what it writes to standard error.
    """

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> None:
        self.name = name
        self._log = log
        with log.open("wb") as stderr:
            # A session of its own, so that what the engine starts can be ended with it.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=dict(environment),
                start_new_session=True,
            )
        self._unread = b""
        self.about: dict[str, Any] = {}
        """What it told of itself when it was ready."""

    @property
    def pid(self) -> int:
        """Of the process that was started."""
        return self._process.pid

    def wait_until_ready(self, limit_s: float) -> None:
        """Wait for the engine to have loaded its model.

        Raises:
            DriverDiedError, OverLimitError: then the process is no more.
        """
        answer = self._read_answer("loading", limit_s)
        if answer.pop("ready", None) is not True:
            raise self._died(f"said {answer} before it was ready")
        self.about = answer

    def run(self, mode: Mode, requests: Sequence[Request], limit_s: float) -> Run:
        """Answer requests, and say how long that took.

        Raises:
            DriverDiedError, OverLimitError: then the process is no more.
        """
        ask = {"op": "run", "mode": mode, "requests": [r.to_json() for r in requests]}
        answer = self.ask(ask, f"running {len(requests)} requests", limit_s)
        wanted = [request.max_tokens for request in requests]
        if answer.get("output_tokens") != wanted:
            raise self._died(f"answered with {answer.get('output_tokens')} tokens, not {wanted}")
        return Run(answer["ttft_s"], answer["total_s"], sum(wanted))

    def ask(self, message: Mapping[str, Any], doing: str, limit_s: float) -> dict[str, Any]:
        """Send one line, and read one.

        Raises:
            DriverDiedError, OverLimitError: then the process is no more.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(dict(message)).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._died("takes no requests") from None
        return self._read_answer(doing, limit_s)

    def resident_bytes(self) -> tuple[int, int] | None:
        """Resident memory of the engine, now and at most so far; None without /proc."""
        return resident_bytes(self.about.get("memory_pid", self.pid))

    def close(self) -> None:
        """End the process, and all that it started. Closing twice is harmless."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # a request that nobody read
                pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _read_answer(self, doing: str, limit_s: float) -> dict[str, Any]:
        line = self._read_line(doing, limit_s)
        try:
            answer = json.loads(line)
        except ValueError:
            raise self._died(f"said {line[:200]!r}, which is no JSON object") from None
        if not isinstance(answer, dict):
            raise self._died(f"said {line[:200]!r}, which is no JSON object")
        return answer

    def _read_line(self, doing: str, limit_s: float) -> bytes:
        assert self._process.stdout is not None
        deadline = time.monotonic() + limit_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                left_s = deadline - time.monotonic()
                if left_s <= 0 or not selector.select(left_s):
                    self.close()
                    raise OverLimitError(self.name, doing, limit_s)
                received = os.read(self._process.stdout.fileno(), _POLL_BYTES)
                if not received:
                    raise self._died(f"ended while {doing}")
                self._unread += received
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _died(self, how: str) -> DriverDiedError:
        """The error for a process that is of no more use; ends it."""
        # One that ended by itself has a code that tells more than that of being killed.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1)
        self.close()
        lines = self._log.read_text(errors="replace").splitlines()[-NUM_LOG_LINES:]
        tail = "\n".join(lines) or "(nothing)"
        return DriverDiedError(
            f"{self.name}: its process {how} (exit code {self._process.returncode}); "
            f"the end of its log, {self._log}:\n{tail}"
        )


def resident_bytes(pid: int, proc: Path = Path("/proc")) -> tuple[int, int] | None:
    """Resident memory of a process, now and at most so far (``VmRSS``, ``VmHWM``)."""
    try:
        lines = (proc / str(pid) / "status").read_text().splitlines()
    except OSError:
        return None
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith("Vm")}
    return kib["VmRSS"] * 1024, kib["VmHWM"] * 1024
