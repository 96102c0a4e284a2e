"""``pagemill bench memory``: the baseline is a real one, and all are counted alike."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest

from pagemill.bench.memory import tables
from pagemill.bench.memory.command import MemoryCommand
from pagemill.bench.memory.contiguous import ContiguousAllocator, ContiguousKVCacheManager
from pagemill.bench.memory.lengths import SHAREGPT, Lengths, shortened
from pagemill.bench.memory.run import ACCOUNTINGS, MemoryRun, Sample
from pagemill.cli.app import run
from pagemill.engine import LLMEngine
from pagemill.errors import ConfigError, RequestTooLargeError
from pagemill.runner.simulated import SimulatedRunner
from pagemill.sampling_params import SamplingParams
from tests.core_helpers import generate_all, prompt_of, simulated_engine, tokens
from tests.unit.bench.conftest import Benchmark, result_of


def contiguous_engine(num_kv_blocks: int, reserved_tokens: int | None) -> LLMEngine:
    """The simulated engine with another accounting, audited after every step."""
    like = simulated_engine(num_kv_blocks=num_kv_blocks)
    return LLMEngine(
        like.config,
        SimulatedRunner(num_kv_blocks=num_kv_blocks, block_size=16),
        None,
        num_kv_blocks=num_kv_blocks,
        max_model_len=1024,
        kv=ContiguousKVCacheManager(num_kv_blocks, 16, reserved_tokens),
    )


def test_a_piece_is_the_first_run_of_neighbours_that_is_long_enough() -> None:
    allocator = ContiguousAllocator(10)
    first, second, third = allocator.take(3), allocator.take(2), allocator.take(4)
    assert (first, second, third) == ([0, 1, 2], [3, 4], [5, 6, 7, 8])
    assert allocator.longest_run == 1
    allocator.release(second)
    assert allocator.longest_run == 2
    # Three blocks are free, and no three of them in one piece.
    assert allocator.num_free_blocks == 3
    allocator.release(first)
    assert allocator.longest_run == 5
    assert allocator.take(4) == [0, 1, 2, 3]
    assert allocator.take(0) == []
    allocator.audit([[0, 1, 2, 3], third])


@pytest.mark.parametrize("reserved_tokens", [128, None])
def test_requests_in_one_piece_get_the_same_tokens_as_in_blocks(
    reserved_tokens: int | None,
) -> None:
    requests = [
        (str(i), prompt_of(10 + 7 * i, i), SamplingParams(temperature=0, max_tokens=5 + 3 * i))
        for i in range(8)
    ]
    paged = generate_all(simulated_engine(), requests)
    engine = contiguous_engine(24, reserved_tokens)
    most_at_once = 0
    for request_id, prompt, params in requests:
        engine.add_request(request_id, prompt, params)
    found = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            found[output.request_id] = tokens(output)
        running = list(engine.scheduler.running)
        most_at_once = max(most_at_once, len(running))
        for seq in running:
            table = seq.blocks.table
            assert table == list(range(table[0], table[0] + len(table)))
            needed = reserved_tokens or seq.request.num_prompt_tokens + seq.request.max_tokens - 1
            assert len(table) == -(-needed // 16)
    assert found == {request_id: tokens(output) for request_id, output in paged.items()}
    assert most_at_once == (3 if reserved_tokens else 7)
    assert engine.stats()["num_preemptions_recompute"] == 0


def test_a_request_waits_for_a_piece_though_its_blocks_are_free() -> None:
    engine = contiguous_engine(7, None)
    for i, max_tokens in enumerate((2, 40, 2)):  # blocks 0 and 1; 2, 3 and 4; 5 and 6
        engine.add_request(str(i), prompt_of(20 if max_tokens == 2 else 5, i), greedy(max_tokens))
    while len(engine.scheduler.running) != 1:
        engine.step()
    assert engine.kv.num_free_blocks == 4
    engine.add_request("large", prompt_of(40), greedy(8))  # three blocks, and no piece of them
    engine.step()
    assert [seq.request.request_id for seq in engine.scheduler.running] == ["1"]
    while engine.has_unfinished_requests():
        engine.step()
    assert engine.stats()["num_requests_finished"]["length"] == 4


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens)


def test_a_request_longer_than_its_piece_or_the_pool_is_refused() -> None:
    engine = contiguous_engine(6, 32)
    engine.add_request("fits", prompt_of(20), greedy(13))
    with pytest.raises(RequestTooLargeError):
        engine.add_request("too long", prompt_of(20), greedy(14))
    with pytest.raises(RequestTooLargeError):
        contiguous_engine(1, 32).add_request("no piece", prompt_of(2), greedy(1))


def test_the_lengths_are_what_their_description_says() -> None:
    assert len(SHAREGPT) == 128
    assert round(statistics.fmean(pair.prompt for pair in SHAREGPT)) == 213
    assert round(statistics.fmean(pair.output for pair in SHAREGPT)) == 215
    assert all(4 <= pair.prompt <= 1024 and pair.output >= 4 for pair in SHAREGPT)
    assert max(map(sum, SHAREGPT)) <= 2048
    assert shortened([Lengths(17, 1), Lengths(16, 160)], 16) == [(2, 1), (1, 10)]


def test_utilization_is_used_of_allocated_and_of_the_pool_while_others_wait() -> None:
    samples = [Sample(10, 40, 2, 3), Sample(30, 40, 2, 1), Sample(20, 40, 1, 0), Sample(0, 0, 0, 0)]
    figures = MemoryRun("paged", 100, 2.0, 50, 4, samples).to_json()
    assert figures["utilization_mean"] == 0.5
    assert figures["utilization_min"] == 0.25
    assert figures["pool_share_used"] == 0.2
    assert figures["pool_share_allocated"] == 0.4
    assert figures["num_running_mean"] == 2.0
    assert figures["num_running_max"] == 2
    assert figures["output_tokens_per_second"] == 25.0
    assert figures["samples"] == [list(sample) for sample in samples]
    assert figures["sampled_every"] == 1
    nobody_waits = MemoryRun("paged", 100, 2.0, 50, 4, samples[2:]).to_json()
    assert nobody_waits["pool_share_used"] is None
    many = MemoryRun("paged", 100, 2.0, 50, 4, samples[:1] * 600).to_json()
    assert (many["sampled_every"], len(many["samples"])) == (3, 200)


def made_up(paged_utilization: float, **fields: Any) -> dict[str, Any]:
    speeds = {ACCOUNTINGS[0]: [1.0, 10.0], ACCOUNTINGS[1]: [3.0, 30.0], ACCOUNTINGS[2]: [4.0, 40.0]}
    runs = [
        {
            "repeat": repeat,
            "accounting": name,
            "utilization_mean": paged_utilization if name == "paged" else 0.2,
            "utilization_min": 0.1,
            "pool_share_used": None,
            "num_running_mean": 3.5,
            "num_running_max": 4,
            "output_tokens_per_second": speed,
            "num_preemptions": 2,
        }
        for name, all_speeds in speeds.items()
        for repeat, speed in enumerate(all_speeds)
    ]
    lengths = [[10, 20], [30, 40]]
    sizes = {"max_model_len": 2048, "pool_slots": 8192, "pool_bytes": 3 << 20}
    return result_of("memory", runs=runs, lengths=lengths, **sizes, **fields)


def test_a_row_has_medians_and_the_speed_as_a_share_of_pageds_in_the_same_round() -> None:
    (table,) = tables.tables(made_up(0.95))
    assert [row[0] for row in table.rows] == list(ACCOUNTINGS)
    assert table.rows[0][1:] == ["20.0%", "10.0%", "", "3.5", "4", "5.5", "0.25", "2"]
    assert table.rows[2][1:] == ["95.0%", "10.0%", "", "3.5", "4", "22.0", "1.00", "2"]
    assert "(mean 20 in, 30 out)" in table.notes[0]
    assert "8192 token slots (3 MiB)" in table.notes[0]


def test_the_target_is_of_a_measurement_at_a_block_size_of_16() -> None:
    assert "more than 90% of what is allocated: reached" in tables.tables(made_up(0.91))[0].notes[1]
    assert "missed" in tables.tables(made_up(0.9))[0].notes[1]
    for fields in ({"fast": True}, {"block_size": 32}):
        assert "Target" not in " ".join(tables.tables(made_up(0.95, **fields))[0].notes)


def test_more_requests_than_there_are_lengths_are_refused() -> None:
    with pytest.raises(ConfigError, match="--requests must be between 1 and 128"):
        MemoryCommand(num_threads=1, repeats=1, num_requests=129)
    assert run(["bench", "memory", "--requests", "0"]) == 2


def test_every_accounting_serves_the_same_requests(benchmark: Benchmark, tiny_model: Path) -> None:
    result, shown, document = benchmark("memory", str(tiny_model), "--fast", "--repeats", "2")
    assert result["max_model_len"] == 128
    assert result["pool_slots"] == 4 * 128
    assert len(result["lengths"]) == 24
    runs = {(run["accounting"], run["repeat"]): run for run in result["runs"]}
    assert set(runs) == {(name, repeat) for name in ACCOUNTINGS for repeat in (0, 1)}
    assert {run["num_output_tokens"] for run in runs.values()} == {
        sum(output for _, output in result["lengths"])
    }
    longest, exact, paged = (runs[name, 0] for name in ACCOUNTINGS)
    assert longest["num_running_max"] == 4
    assert longest["utilization_mean"] < exact["utilization_mean"] < paged["utilization_mean"]
    assert longest["num_running_mean"] < exact["num_running_mean"] < paged["num_running_mean"]
    # What was counted does not depend on time.
    assert paged["samples"] == runs["paged", 1]["samples"]
    assert "no measurement" in shown
    assert "| contiguous, max_model_len |" in document
