"""An engine that computes nothing and says what it was told to say. Runs in ``drivers/host.py``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any


class Engine:
    """Claims ``seconds[i]`` for its i-th counted run; the warm-up takes what it takes.

    Args:
        seconds: in all, of each run.
        ttft_s: to the first token.
        diary: a file to which it appends the requests of each run.
        dies_in_run: ends itself in this run, counted from 1.
        hangs: does not come back from a run, and has a child that does not end either.
        short_by: tokens that it leaves out.
    """

    def __init__(
        self,
        seconds: list[float],
        ttft_s: float = 0.0,
        diary: str | None = None,
        dies_in_run: int | None = None,
        hangs: bool = False,
        short_by: int = 0,
        fails_to_load: bool = False,
    ) -> None:
        print("an engine may print what it likes", flush=True)  # noqa: T201
        os.write(1, b"and so may its C++\n")
        if fails_to_load:
            raise RuntimeError("no such model")
        self._seconds = seconds
        self._ttft_s = ttft_s
        self._diary = diary
        self._dies_in_run = dies_in_run
        self._hangs = hangs
        self._short_by = short_by
        self._num_runs = 0

    def about(self) -> dict[str, Any]:
        return {"version": "1.2.3"}

    def single(self, prompt: list[int], max_tokens: int) -> tuple[float, float, int]:
        total_s = self._run([(prompt, max_tokens)])
        return self._ttft_s, total_s, max_tokens - self._short_by

    def many(self, requests: list[tuple[list[int], int]]) -> tuple[float, list[int]]:
        return self._run(requests), [max_tokens - self._short_by for _, max_tokens in requests]

    def _run(self, requests: list[tuple[list[int], int]]) -> float:
        if self._diary is not None:
            with open(self._diary, "a") as file:
                file.write(json.dumps(requests) + "\n")
        if self._hangs:
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            print(f"child {child.pid}", file=sys.stderr, flush=True)  # noqa: T201
            time.sleep(600)
        if all(max_tokens <= 4 for _, max_tokens in requests):
            return 1.0  # the warm-up
        self._num_runs += 1
        if self._num_runs == self._dies_in_run:
            for number in range(100):
                print(f"line {number}", file=sys.stderr)  # noqa: T201
            sys.stderr.flush()
            os._exit(7)
        return self._seconds[self._num_runs - 1]
