"""``pagemill bench swap``: each way on its own, where they cross, and whole workloads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pagemill.bench.swap import tables
from pagemill.bench.swap.command import file_system_of
from pagemill.bench.swap.costs import prefill_batches
from pagemill.cli.app import run
from pagemill.runner.simulated import SimulatedRunner
from tests.core_helpers import prompt_of
from tests.unit.bench.conftest import Benchmark, result_of


def test_prefill_batches_compute_a_prompt_as_the_engine_would() -> None:
    prompt = prompt_of(70)
    whole, chunked = (SimulatedRunner(num_kv_blocks=5, block_size=16) for _ in range(2))
    (batch,) = prefill_batches(prompt, 16, 128)
    result = whole.execute(batch)
    assert result.sampled == []
    batches = prefill_batches(prompt, 16, 32)
    assert [batch.num_tokens for batch in batches] == [32, 32, 6]
    for batch in batches:
        chunked.execute(batch)
    # A slot's hash is over all tokens before it.
    for block_id in range(5):
        assert whole.read_block(block_id) == chunked.read_block(block_id)
    assert np.array_equal(batches[2].block_tables, [[0, 1, 2, 3, 4]])


def a_cost(num_tokens: int, recompute: float, **ways: float | None) -> dict[str, Any]:
    cost: dict[str, Any] = {"repeat": 0, "num_tokens": num_tokens, "recompute_seconds": recompute}
    for way in ("memory", "file", "disk"):
        seconds = ways.get(way)
        cost[f"{way}_seconds"] = seconds
        cost[f"{way}_out_seconds"] = cost[f"{way}_in_seconds"] = seconds and seconds / 2
    return cost


def test_they_cross_where_swapping_is_cheaper_from_there_on() -> None:
    costs = [a_cost(n, 1.0, memory=s) for n, s in ((16, 0.5), (32, 2.0), (64, 1.0), (128, 0.5))]
    assert tables.crossover(costs, "memory") == 64
    assert tables.crossover(costs[:2], "memory") is None
    assert tables.crossover(costs[2:], "memory") == 64


def made_up(fast: bool = False, auto: float = 1.0) -> dict[str, Any]:
    costs = [
        a_cost(16, 1e-3, memory=1e-3, file=2e-3, disk=None),
        a_cost(1024, 1.0, memory=0.1, file=0.25, disk=None),
    ]
    seconds = {"swap": (1.0, 10.0, 1.0), "recompute": (2.0, 20.0, 2.0), "auto": (auto, 11.0, auto)}
    runs = [
        {
            "repeat": repeat,
            "workload": "long",
            "swap_to": "file",
            "mode": mode,
            "seconds": all_seconds[repeat],
            "num_preemptions_swap": 3,
            "num_preemptions_recompute": 4,
            "computed_tokens": 500,
        }
        for mode, all_seconds in seconds.items()
        for repeat in range(3)
    ]
    workloads = [
        {
            "name": "long",
            "num_requests": 8,
            "prompt": [10, 20],
            "output": [30, 40],
            "num_kv_blocks": 9,
        }
    ]
    return result_of(
        "swap",
        fast=fast,
        block_bytes=2048,
        max_num_batched_tokens=1024,
        swap_file_system="ext4",
        costs=costs,
        workloads=workloads,
        runs=runs,
    )


def test_a_length_has_both_ways_and_their_share_of_recomputing() -> None:
    table, _ = tables.tables(made_up())
    assert table.rows == [
        ["16", "1 ms", "500 µs + 500 µs (100.0%)", "1 ms + 1 ms (200.0%)", ""],
        ["1,024", "1 s", "50 ms + 50 ms (10.0%)", "125 ms + 125 ms (25.0%)", ""],
    ]
    assert table.notes[1] == (
        "To memory: swapping is cheaper at every length measured. To a file: swapping is cheaper "
        "from 1,024 tokens on. To a file, on disk: could not be measured here."
    )


def test_a_workload_is_held_against_the_better_mode() -> None:
    _, table = tables.tables(made_up(auto=1.1))
    assert [row[:4] for row in table.rows] == [
        ["long, to a file", "swap", "1 s", "1.00"],
        ["long, to a file", "recompute", "2 s", "2.00"],
        ["long, to a file", "auto", "1.1 s", "1.10"],
    ]
    assert "8 requests of 10-20 in and 30-40 out, 9 blocks" in table.notes[0]
    assert table.notes[1].endswith("at worst 1.10: reached.")
    assert tables.tables(made_up(auto=1.2))[1].notes[1].endswith("at worst 1.20: missed.")
    assert "Target" not in " ".join(tables.tables(made_up(fast=True))[1].notes)


def test_the_file_system_is_that_of_the_innermost_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    inner = tmp_path.resolve() / "inner"
    inner.mkdir()
    mounts.write_text(f"a / ext4 rw 0 0\nb {inner} tmpfs rw 0 0\nc {inner}ne xfs rw 0 0\n")
    assert file_system_of(inner, mounts) == "tmpfs"
    assert file_system_of(tmp_path, mounts) == "ext4"
    assert file_system_of(tmp_path, tmp_path / "none") is None


def test_each_mode_preempts_in_its_own_way(
    benchmark: Benchmark, tiny_model: Path, tmp_path: Path
) -> None:
    options = ("--fast", "--repeats", "2", "--swap-dir", str(tmp_path))
    result, shown, document = benchmark("swap", str(tiny_model), *options)
    costs = {(cost["num_tokens"], cost["repeat"]): cost for cost in result["costs"]}
    assert set(costs) == {(length, repeat) for length in (16, 32, 64) for repeat in (0, 1)}
    for (length, _), cost in costs.items():
        assert cost["num_blocks"] == length // 16
        assert cost["num_bytes"] == length // 16 * result["block_bytes"]
        assert cost["recompute_seconds"] > 0
        for way in ("memory", "file"):
            out, back = cost[f"{way}_out_seconds"], cost[f"{way}_in_seconds"]
            assert min(out, back) > 0
            assert cost[f"{way}_seconds"] == pytest.approx(out + back)
    assert len(result["runs"]) == 2 * 2 * 3 * 2
    for run_ in result["runs"]:
        swapped, given_up = run_["num_preemptions_swap"], run_["num_preemptions_recompute"]
        assert swapped + given_up > 0
        assert run_["mode"] != "swap" or given_up == 0
        assert run_["mode"] != "recompute" or swapped == 0
    for name in ("short sequences", "long sequences"):
        computed = {
            run_["mode"]: run_["computed_tokens"]
            for run_ in result["runs"]
            if run_["workload"] == name and run_["repeat"] == 0
        }
        assert computed["swap"] < computed["recompute"]
    assert not list(tmp_path.glob("*swap*"))
    assert "A preemption by length" in shown
    assert "### Workloads under memory pressure" in document


def test_a_directory_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "swap", "--swap-dir", "/nowhere/at/all"]) == 2
    assert "--swap-dir=/nowhere/at/all is no directory" in capsys.readouterr().err
