"""``pagemill bench prefix``: what is found, of what could be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pagemill.bench.prefix import tables
from pagemill.bench.prefix.command import LONG, SHORT, Sharing
from tests.unit.bench.conftest import Benchmark, result_of


def test_the_possible_rate_is_that_of_all_but_the_first() -> None:
    assert Sharing(30, 48, 16, 1).possible_hit_rate == 29 * 48 / (30 * 64)
    assert (LONG.num_requests, LONG.num_shared, LONG.num_own, LONG.num_output) == (32, 512, 32, 32)
    assert [(s.num_requests, s.num_shared, s.num_own) for s in SHORT] == [
        (30, 48, 16),
        (30, 53, 16),
    ]


def test_everything_that_is_shared_is_found(benchmark: Benchmark, tiny_model: Path) -> None:
    result, shown, document = benchmark("prefix", str(tiny_model), "--fast", "--repeats", "2")
    assert result["block_size"] == 16
    # Six requests share 64 tokens, or 48, or 53: three whole blocks and five tokens.
    hits = {
        (64, "off"): 0,
        (64, "on"): 5 * 64,
        (64, "known"): 6 * 64,
        (48, "whole blocks"): 5 * 48,
        (48, "partial hits"): 5 * 48,
        (53, "whole blocks"): 5 * 48,
        (53, "partial hits"): 5 * 53,
    }
    runs = {(run["num_shared"], run["cache"], run["repeat"]): run for run in result["runs"]}
    assert set(runs) == {(*case, repeat) for case in hits for repeat in (0, 1)}
    for (num_shared, cache, _), run in runs.items():
        prompt_tokens = 6 * (num_shared + run["num_own"])
        assert run["prompt_tokens"] == prompt_tokens
        assert run["hit_tokens"] == hits[num_shared, cache]
        assert run["prefilled_tokens"] == prompt_tokens - hits[num_shared, cache]
        # Each of the six draws its first token from its prompt's last row.
        assert run["computed_tokens"] == run["prefilled_tokens"] + 6 * (run["num_output"] - 1)
        assert run["seconds"] > 0
    partial = runs[53, "partial hits", 0]
    assert partial["hit_rate"] == partial["possible_hit_rate"] == round(5 * 53 / (6 * 69), 5)
    assert "A shared prefix of 64 tokens" in shown
    assert "| 53 + 16 | whole blocks | 240 |" in document


def a_run(
    num_shared: int, cache: str, repeat: int, seconds: float, **fields: Any
) -> dict[str, Any]:
    return {
        "repeat": repeat,
        "num_requests": 30,
        "num_shared": num_shared,
        "num_own": 16,
        "num_output": 1,
        "cache": cache,
        "seconds": seconds,
        "prompt_tokens": 1000,
        "hit_tokens": 250,
        "prefilled_tokens": 750,
        "hit_rate": 0.25,
        "possible_hit_rate": 0.5,
    } | fields


def test_wall_times_are_held_against_the_cache_off_in_the_same_round() -> None:
    runs = [
        a_run(512, cache, repeat, seconds)
        for cache, all_seconds in (("off", (1.0, 10.0)), ("on", (0.5, 5.0)), ("known", (0.2, 2.0)))
        for repeat, seconds in enumerate(all_seconds)
    ]
    # In any order.
    runs += [a_run(53, "partial hits", 0, 0.9), a_run(53, "whole blocks", 0, 1.0)]
    long, short = tables.tables(result_of("prefix", runs=runs))
    assert long.title == "A shared prefix of 512 tokens"
    assert [row[0] for row in long.rows] == [
        "cache off",
        "cache on, empty",
        "cache on, prefix known",
    ]
    assert long.rows[1][1:] == ["1000", "750", "25.0%", "2.75 s", "0.50"]
    assert [row[:2] for row in short.rows] == [
        ["53 + 16", "whole blocks"],
        ["53 + 16", "partial hits"],
    ]
    assert short.rows[1][2:] == ["250", "25.0%", "50.0%", "750", "900 ms", "0.90"]
