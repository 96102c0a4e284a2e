from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from pagemill.cli.app import run
from pagemill.engine import LLMEngine
from tests.unit.cli.simulated import fake_assembly, small_engine


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


Pagemill = Callable[..., "Outcome"]


class Outcome:
    """What a command did."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    @property
    def json(self) -> list[dict[str, Any]]:
        """Standard output as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> LLMEngine:
    """The simulated engine on which the first `pagemill` runs; each later one has its own."""
    first = small_engine()
    prepared = [first]

    def make_engine() -> LLMEngine:
        return prepared.pop() if prepared else small_engine()

    monkeypatch.setitem(sys.modules, "pagemill.assembly", fake_assembly(make_engine))
    return first


@pytest.fixture
def pagemill(engine: LLMEngine, capsys: pytest.CaptureFixture[str]) -> Pagemill:
    """Runs a command line in this process, on the simulated engine."""

    def call(*arguments: str) -> Outcome:
        code = run(arguments)
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return call


def start(module: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """A command in a process of its own, with pipes for its three streams."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )
