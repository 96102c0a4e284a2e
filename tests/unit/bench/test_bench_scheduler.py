"""``pagemill bench scheduler``: one trace for all, driven alike, and told apart when it fails."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pagemill.bench.scheduler import tables
from pagemill.bench.scheduler.command import summed
from pagemill.bench.scheduler.contender import Contender, ContenderError, contenders
from pagemill.bench.scheduler.drivers.host import drive, prompt_of
from pagemill.bench.scheduler.lookup import lookup
from pagemill.bench.scheduler.trace import churn_trace, steady_trace
from pagemill.cli.app import run
from tests.unit.bench.conftest import Benchmark, result_of


class FakeScheduler:
    """Computes prompts in one step and decodes in the next; each part takes a second."""

    def __init__(self) -> None:
        self.left: dict[int, int] = {}
        self.new: list[int] = []
        self.most = 0

    def add(self, number: int, prompt: list[int], max_tokens: int) -> None:
        assert prompt == prompt_of(number, len(prompt))
        self.left[number] = max_tokens
        self.new.append(number)
        self.most = max(self.most, len(self.left))

    def step(self) -> tuple[int, int, list[int], dict[str, float]]:
        going, self.new = [n for n in self.left if n not in self.new], []
        for number in going:
            self.left[number] -= 1
        ended = [number for number in going if self.left[number] == 0]
        for number in ended:
            del self.left[number]
        return 2 * len(going), len(going), ended, {"schedule": 1.0, "update": 2.0}


def test_as_one_request_ends_the_next_one_arrives() -> None:
    trace = {
        "kind": "churn",
        "num_running": 4,
        "num_warm_up_steps": 3,
        "num_steps": 10,
        "lengths": [(5, 2), (6, 3), (7, 4)],
    }
    scheduler = FakeScheduler()
    driven = drive(scheduler, trace)
    assert scheduler.most == 4
    assert len(scheduler.left) in (3, 4)
    assert len(driven["steps"]) == 10
    assert driven["num_requests"] > 10
    figures = summed(driven)
    assert figures["num_rows"] == 2 * figures["num_drawn"]
    assert figures["seconds_per_row"]["update"] == 2.0 * 10 / figures["num_rows"]
    assert figures["seconds_per_row"]["schedule"] == 1.0 * 10 / figures["num_rows"]
    assert 0 < figures["seconds_per_row"]["add"] < 1.0
    assert all(seconds == pytest.approx(3.0, abs=0.5) for seconds in figures["step_seconds"])


def test_prompts_of_a_trace_share_nothing() -> None:
    prompts = [prompt_of(number, 8) for number in range(2000)]
    assert len({prompt[0] for prompt in prompts}) == 2000
    assert prompt_of(3, 5) == prompt_of(3, 8)[:5]


def test_a_trace_is_the_same_each_time_and_its_pool_is_large_enough() -> None:
    for make in (steady_trace, churn_trace):
        trace = make(50, 32)
        assert trace == make(50, 32)
        longest = max(map(sum, trace.lengths))
        assert trace.num_blocks * trace.block_size >= 50 * longest
        assert trace.max_model_len > longest
    assert {output for _, output in steady_trace(50, 32).lengths} == {32 + 128}
    first = [output for _, output in churn_trace(50, 32).lengths[:50]]
    assert min(first) < 64  # as if half done
    # In each step of steady decode some sequence fills its block.
    assert len({prompt % 16 for prompt, _ in steady_trace(200, 32).lengths}) == 16


def test_looking_up_tells_prompt_blocks_and_three_times() -> None:
    found = lookup(256, "x")
    assert (found["num_tokens"], found["num_blocks"]) == (256, 16)
    assert all(found[f"{way}_seconds"] > 0 for way in ("hit", "miss", "again"))
    # Its blocks have their names already.
    assert found["again_seconds"] < found["hit_seconds"]


def a_run(engine: str, kind: str, num_running: int, repeat: int, **parts: float) -> dict[str, Any]:
    return {
        "repeat": repeat,
        "engine": engine,
        "about": {"engine": engine, "version": "1.2"},
        "kind": kind,
        "num_running": num_running,
        "num_steps": 10,
        "num_rows": 10 * num_running,
        "seconds_per_row": parts,
        "step_seconds": [1e-3, 1e-3, 5e-3],
    }


def made_up(schedule: float, failed: dict[str, str], left_out: Sequence[str]) -> dict[str, Any]:
    runs = []
    for repeat, slower in enumerate((1.0, 10.0, 1.0)):
        for num_running in (1000, 10_000):
            parts = {
                "add": 0.0,
                "schedule": schedule,
                "build_batch": 0.2e-6,
                "tokens": 1e-6,
                "bookkeeping": 0.1e-6,
            }
            ours = {name: seconds * slower for name, seconds in parts.items()}
            theirs = {"add": 0.0, "schedule": 3e-6 * slower, "update": 2e-6 * slower}
            runs.append(a_run("pagemill", "steady", num_running, repeat, **ours))
            runs.append(a_run("vLLM", "steady", num_running, repeat, **theirs))
    lookups = [
        {
            "repeat": 0,
            "num_tokens": 1600,
            "num_blocks": 100,
            "hit_seconds": 1e-4,
            "miss_seconds": 2e-4,
            "again_seconds": 5e-5,
        }
    ]
    return result_of("scheduler", runs=runs, failed=failed, left_out=left_out, lookups=lookups)


def test_engines_stand_beside_each_other_and_ratios_are_of_the_same_round() -> None:
    engines, parts, found = tables.tables(made_up(0.2e-6, {}, ["nano-vllm"]))
    assert engines.columns[3:] == [
        "plan a row",
        "all: pagemill 1.2",
        "all: vLLM 1.2",
        "vLLM / pagemill",
    ]
    assert engines.rows[0] == ["steady decode", "1,000", "1000", "0.50", "1.50", "5.00", "3.3"]
    assert parts.columns[2:7] == ["add", "schedule", "build batch", "tokens", "bookkeeping"]
    assert parts.rows[1][1:] == [
        "10,000",
        "0.000",
        "0.200",
        "0.200",
        "1.000",
        "0.100",
        "1 ms",
        "5 ms",
    ]
    assert found.rows == [["1,600", "100", "100 µs (1.00)", "200 µs (2.00)", "50 µs (0.50)"]]
    notes = " ".join(engines.notes)
    assert "under 1.00 a row with 1,000 decoding sequences: reached" in notes
    assert "With 10,000 a row takes 1.00 times as long" in notes
    assert "Not measured: nano-vllm." in notes


def test_a_missed_target_and_an_engine_that_failed_are_said() -> None:
    engines = tables.tables(made_up(0.7e-6, {"nano-vllm": "no such module"}, []))[0]
    notes = " ".join(engines.notes)
    assert "1,000 decoding sequences: missed" in notes
    assert "nano-vllm could not be driven: no such module." in notes


NANO_SCHEDULER = """
from nanovllm.config import Config
from nanovllm.engine.sequence import Sequence

class Scheduler:
    def __init__(self, config: Config):
        self.budget = config.max_num_batched_tokens
        self.waiting, self.running = [], []
        assert Sequence.block_size == config.kvcache_block_size == 16

    def add(self, seq):
        self.waiting.append(seq)

    def schedule(self):
        if self.waiting:
            admitted = []
            while self.waiting and sum(map(len, admitted + self.waiting[:1])) <= self.budget:
                admitted.append(self.waiting.pop(0))
            self.running += admitted
            return admitted, True
        return list(self.running), False

    def postprocess(self, seqs, token_ids{is_prefill}):
        for seq, token_id in zip(seqs, token_ids):
            seq.token_ids.append(token_id)
            seq.is_finished = len(seq.token_ids) == seq.end
            if seq.is_finished:
                self.running.remove(seq)
"""
NANO_SEQUENCE = """
class Sequence:
    block_size = 256
    made = 0

    def __init__(self, token_ids, params):
        Sequence.made += 1
        self.seq_id, self.token_ids, self.num_cached_tokens = Sequence.made, list(token_ids), 0
        self.end, self.is_finished = len(token_ids) + params.max_tokens, False

    def __len__(self):
        return len(self.token_ids)
"""
NANO_PARAMS = """
from dataclasses import dataclass

@dataclass
class SamplingParams:
    temperature: float
    max_tokens: int
    ignore_eos: bool
"""


def python_with_nano_vllm(directory: Path, is_prefill: str) -> Path:
    """A Python that finds a package of that name, which only its scheduler can be imported from."""
    package = directory / "nanovllm"
    (package / "engine").mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('there is no device')")
    (package / "config.py").write_text("raise ImportError('there is no transformers')")
    (package / "sampling_params.py").write_text(NANO_PARAMS)
    (package / "engine" / "sequence.py").write_text(NANO_SEQUENCE)
    scheduler = NANO_SCHEDULER.replace("{is_prefill}", is_prefill)
    (package / "engine" / "scheduler.py").write_text(scheduler)
    return a_program(directory, f'PYTHONPATH={directory} exec {sys.executable} "$@"')


def a_program(directory: Path, line: str) -> Path:
    program = directory / "python"
    program.write_text(f"#!/bin/sh\n{line}\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize("is_prefill", ["", ", is_prefill"])
def test_other_engines_are_driven_without_their_device(tmp_path: Path, is_prefill: str) -> None:
    nano = contenders(None, python_with_nano_vllm(tmp_path, is_prefill))[1]
    steady, churn = nano.run([steady_trace(4, 8), churn_trace(4, 16)], 60.0)["results"]
    assert [step["rows"] for step in steady["steps"]] == [4] * 8
    assert {tuple(step) for step in steady["steps"]} == {
        ("rows", "drawn", "add", "schedule", "update")
    }
    # Prompts come in steps of their own, and draw their first token there.
    assert len(churn["steps"]) == 16
    assert max(step["rows"] for step in churn["steps"]) > 4
    assert all(1 <= step["drawn"] <= 4 for step in churn["steps"])


def test_an_engine_that_fails_or_takes_too_long_is_reported_with_its_last_words(
    tmp_path: Path,
) -> None:
    fails = a_program(tmp_path, "echo first >&2; echo 'ImportError: no module' >&2; exit 3")
    with pytest.raises(ContenderError, match=r"^ImportError: no module$"):
        contenders(fails, None)[1].run([], 60.0)
    slow = a_program(tmp_path, "exec sleep 60")
    with pytest.raises(ContenderError, match=r"took longer than 0.2 s and was ended"):
        contenders(slow, None)[1].run([], 0.2)
    with pytest.raises(ContenderError, match="does not start"):
        Contender("vLLM", tmp_path / "none", "driver_vllm.py").run([], 60.0)


def test_all_are_driven_with_the_same_trace(benchmark: Benchmark, tmp_path: Path) -> None:
    nano = python_with_nano_vllm(tmp_path / "nano", "")
    fails = a_program(tmp_path, "echo 'there is no vllm' >&2; exit 1")
    options = ("--nano-vllm-python", str(nano), "--vllm-python", str(fails))
    result, shown, document = benchmark("scheduler", "--fast", "--repeats", "2", *options)
    runs = {(r["engine"], r["kind"], r["num_running"], r["repeat"]): r for r in result["runs"]}
    assert set(runs) == {
        (engine, kind, num_running, repeat)
        for engine in ("pagemill", "nano-vllm")
        for kind in ("steady", "churn")
        for num_running in (10, 50)
        for repeat in (0, 1)
    }
    for (engine, kind, num_running, _), run_ in runs.items():
        assert run_["num_steps"] == 32
        assert run_["num_drawn"] <= run_["num_rows"]
        if kind == "steady":
            # Nobody waited, ended, or was preempted.
            assert run_["num_rows"] == run_["num_drawn"] == 32 * num_running
            assert run_["num_requests"] == num_running
        else:
            assert run_["num_requests"] > num_running
        parts = {"add", "schedule", "update"}
        if engine == "pagemill":
            parts = {"add", "schedule", "build_batch", "tokens", "bookkeeping"}
        assert set(run_["seconds_per_row"]) == parts
    assert result["failed"] == {"vLLM": "there is no vllm"}
    assert result["left_out"] == []
    assert result["environment"]["num_threads"] == 1
    assert {found["num_tokens"] for found in result["lookups"]} == {64, 256, 1024}
    assert "vLLM could not be driven: there is no vllm." in document.replace("\n", " ")
    assert "### Looking for a prefix" in document
    assert "Planning a step" in shown


def test_options_that_cannot_work_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for options, message in (
        (("--limit", "0"), "--limit must be above 0 seconds"),
        (("--vllm-python", "/nowhere/python"), "--vllm-python=/nowhere/python: there is no such"),
        (("--threads", "2"), "--threads=2: a scheduler is one thread"),
    ):
        assert run(["bench", "scheduler", *options]) == 2
        assert message in capsys.readouterr().err
