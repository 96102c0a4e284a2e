"""``pagemill serve`` as a process of its own."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from types import TracebackType
from typing import Self

import httpx

SIMULATED, REAL = "tests.server.simulated", "pagemill.cli"


class ServerProcess:
    """A server at a free port; killed in the end if it has not ended itself.

    Args:
        arguments: after ``serve``.
        module: what to run.
        environment: besides this process's own.
    """

    def __init__(self, *arguments: str, module: str = SIMULATED, **environment: str) -> None:
        command = [sys.executable, "-m", module, "serve", "--port", "0", *arguments]
        self.process = subprocess.Popen(
            command,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
            # Whoever runs tests in the background has its Ctrl-C ignored, and passes that on.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        self.lines: list[str] = []
        """Of its standard error, so far."""
        self._arrived: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()
        if error is not None:
            sys.stderr.write("".join(self.lines))

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            self._arrived.put(line)
        self._arrived.put(None)

    def wait_for_line(self, text: str, seconds: float = 60) -> str:
        """The next line of its standard error that has ``text`` in it."""
        end = time.monotonic() + seconds
        while True:
            line = self._arrived.get(timeout=max(end - time.monotonic(), 0.01))
            assert line is not None, f"it ended before it said {text!r}: {''.join(self.lines)}"
            if text in line:
                return line

    def url(self) -> str:
        """Where it listens; waits until it does."""
        return self.wait_for_line("listening at ").split("listening at ")[1].split(";")[0]

    def ready(self) -> httpx.Client:
        """A client of it; waits until it serves."""
        url = self.url()
        self.wait_for_line("serving ")
        return httpx.Client(base_url=url, timeout=30)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self, seconds: float = 20) -> int:
        """Its exit code, once it has ended by itself."""
        code = self.process.wait(timeout=seconds)
        self._reader.join()
        return code

    @property
    def said(self) -> str:
        return "".join(self.lines)
