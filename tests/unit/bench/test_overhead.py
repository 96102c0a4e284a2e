"""``pagemill bench overhead``: time is counted once, and the engine is left as it was."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from pagemill.bench import overhead
from pagemill.bench.overhead import NATIVE, OTHER, PHASES, PhaseClock, summarize
from pagemill.cli.app import run
from pagemill.errors import EngineError
from pagemill.kernels import native
from pagemill.request import Request


class FakeTime:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class Worker:
    """Takes a second outside and two inside of what it calls."""

    def __init__(self, time: FakeTime) -> None:
        self._time = time

    def outer(self) -> str:
        self._time.seconds += 1
        return self.inner() + self.inner()

    def inner(self) -> str:
        self._time.seconds += 2
        return "done"


def test_a_phase_does_not_count_those_inside_it() -> None:
    time = FakeTime()
    clock, worker = PhaseClock(time), Worker(time)
    with clock.timing(worker, "outer", "outer"), clock.timing(worker, "inner", "inner"):
        time.seconds += 10  # nobody's
        assert worker.outer() == "donedone"
        assert clock.take() == {"outer": 1.0, "inner": 4.0}
        worker.inner()
        assert clock.take() == {"inner": 2.0}
    assert vars(worker) == {"_time": time}, "something was left on the object"


def test_time_is_counted_when_a_call_raises_and_classes_get_their_functions_back() -> None:
    time = FakeTime()
    clock = PhaseClock(time)
    inner = Worker.inner
    with clock.timing(Worker, "inner", "inner"), pytest.raises(TypeError):
        Worker(time).inner("too much")  # type: ignore[call-arg]
    assert Worker.inner is inner
    with clock.phase("after"):
        time.seconds += 3
    assert clock.take() == {"inner": 0.0, "after": 3.0}


def test_shares_are_of_whole_steps() -> None:
    steps: list[dict[str, float]] = [
        {NATIVE: 0.8e-3, "sample": 0.1e-3, OTHER: 0.1e-3},
        {NATIVE: 1.9e-3, "sample": 0.1e-3},
        {NATIVE: 0.9e-3, "sample": 0.1e-3},
    ]
    summary = summarize(steps)
    assert summary["steps"] == 3
    assert summary["step_us"] == pytest.approx(1000)
    assert summary["python_us"] == pytest.approx(100)
    assert summary["python_share"] == pytest.approx(0.1)
    assert summary["phases_us"]["sample"] == pytest.approx(100)
    assert summary["phases_us"][OTHER] == 0.0
    assert list(summary["phases_us"]) == list(PHASES)


@pytest.mark.skipif(native.load() is None, reason="no native library")
def test_the_command_measures_every_phase_and_reports_again(
    smollm2_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for kind, params in overhead._SAMPLING.items():
        monkeypatch.setitem(overhead._SAMPLING, kind, dataclasses.replace(params, max_tokens=8))
    to_output = Request.to_output
    file, document = tmp_path / "overhead.json", tmp_path / "performance.md"
    document.write_text("<!-- generated: overhead -->\n<!-- end: overhead -->\n")
    options = ["--repeats", "2", "--threads", "1", "--json", str(file), "--docs", str(document)]
    assert run(["bench", "overhead", str(smollm2_path), *options]) == 0
    shown = capsys.readouterr().out
    assert Request.to_output is to_output
    decodes: list[dict[str, Any]] = json.loads(file.read_text())["decodes"]
    assert [(d["sampling"], d["stream"]) for d in decodes] == [
        ("greedy", False), ("greedy", True), ("drawn", False), ("drawn", True),
    ]  # fmt: skip
    for decode in decodes:
        assert decode["steps"] == 2 * (8 - 3)
        phases = decode["phases_us"]
        assert all(phases[phase] > 0 for phase in PHASES if phase != "make outputs")
        assert (phases["make outputs"] > 0) is decode["stream"]
        assert 0 < decode["python_us"] < decode["step_us"]
        assert 0 < decode["python_share"] < 1
    generated = document.read_text()
    assert "| build the batch |" in generated
    assert run(["bench", "overhead", "--from-json", str(file)]) == 0
    assert capsys.readouterr().out == shown


def test_without_native_kernels_there_is_nothing_to_measure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(native, "load", lambda: None)
    command = overhead.OverheadCommand(model="smollm2-135m", num_threads=1, repeats=1)
    with pytest.raises(EngineError, match="no native kernels to measure"):
        command()
