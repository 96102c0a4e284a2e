"""The tables of swapping and recomputing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pagemill.bench.command import measured_on
from pagemill.bench.figures import (
    Run,
    duration,
    median_of,
    model_name,
    number,
    of,
    percent,
    ratio_of,
)
from pagemill.bench.report import Table

WAYS: Final = {"memory": "memory", "file": "file", "disk": "file, on disk"}
MODES: Final = ("swap", "recompute", "auto")
WORST_AUTO: Final = 1.1
"""Auto's time, at most, in times of the better one."""


def tables(result: Mapping[str, Any]) -> list[Table]:
    """Costs by length, then the workloads."""
    return [_costs_table(result), _workloads_table(result)]


def crossover(costs: Sequence[Run], way: str) -> int | None:
    """The length from which on swapping was the cheaper one; None if it was not in the end."""
    found = None
    for length in sorted({cost["num_tokens"] for cost in costs}, reverse=True):
        own = of(costs, num_tokens=length)
        swap, recompute = median_of(own, f"{way}_seconds"), median_of(own, "recompute_seconds")
        if swap is None or recompute is None or swap > recompute:
            break
        found = length
    return found


def _costs_table(result: Mapping[str, Any]) -> Table:
    costs: Sequence[Run] = result["costs"]
    rows = []
    for length in sorted({cost["num_tokens"] for cost in costs}):
        own = of(costs, num_tokens=length)
        recompute = median_of(own, "recompute_seconds")
        assert recompute is not None
        row = [f"{length:,}", duration(recompute)]
        for way in WAYS:
            swap = median_of(own, f"{way}_seconds")
            if swap is None:
                row.append("")
                continue
            out, back = (median_of(own, f"{way}_{part}_seconds") for part in ("out", "in"))
            row.append(f"{duration(out)} + {duration(back)} ({percent(swap / recompute)})")
        rows.append(row)
    columns = ["tokens", "recompute", *WAYS.values()]
    note = (
        f"{model_name(result)}, blocks of {result['block_size']} tokens and "
        f"{result['block_bytes'] / 1024:.0f} KiB, at most {result['max_num_batched_tokens']} "
        f"tokens a step. Out + in, and in brackets the sum as a share of recomputing. The swap "
        f"file was on {result['swap_file_system'] or 'an unknown file system'}."
    )
    verdicts = [_crossover_sentence(costs, way, title) for way, title in WAYS.items()]
    return Table(
        "A preemption by length", columns, rows, [note, " ".join(verdicts), *measured_on(result)]
    )


def _crossover_sentence(costs: Sequence[Run], way: str, title: str) -> str:
    if all(cost[f"{way}_seconds"] is None for cost in costs):
        return f"To a {title}: could not be measured here."
    found, shortest = crossover(costs, way), min(cost["num_tokens"] for cost in costs)
    to = f"To {'a ' if title != 'memory' else ''}{title}:"
    if found is None:
        return f"{to} recomputing is cheaper at the greatest length."
    if found == shortest:
        return f"{to} swapping is cheaper at every length measured."
    return f"{to} swapping is cheaper from {found:,} tokens on."


def _workloads_table(result: Mapping[str, Any]) -> Table:
    runs: Sequence[Run] = result["runs"]
    rows, worst = [], 0.0
    for workload, place in dict.fromkeys((run["workload"], run["swap_to"]) for run in runs):
        by_mode = {mode: of(runs, workload=workload, swap_to=place, mode=mode) for mode in MODES}
        better = min(MODES[:2], key=lambda mode: median_of(by_mode[mode], "seconds") or 0.0)
        for mode, own in by_mode.items():
            ratio = ratio_of(own, by_mode[better], "seconds")
            if mode == "auto":
                worst = max(worst, ratio)
            rows.append(
                [
                    f"{workload}, to {'a ' if place == 'file' else ''}{place}",
                    mode,
                    duration(median_of(own, "seconds")),
                    number(ratio, 2),
                    number(median_of(own, "num_preemptions_swap"), 0),
                    number(median_of(own, "num_preemptions_recompute"), 0),
                    number(median_of(own, "computed_tokens"), 0),
                ]
            )
    columns = [
        "workload",
        "mode",
        "wall time",
        "of the better one's",
        "swapped out",
        "given up",
        "tokens computed",
    ]
    shapes = "; ".join(
        f"{w['name']}: {w['num_requests']} requests of {w['prompt'][0]}-{w['prompt'][1]} in and "
        f"{w['output'][0]}-{w['output'][1]} out, {w['num_kv_blocks']} blocks"
        for w in result["workloads"]
    )
    verdict = "reached" if worst <= WORST_AUTO else "missed"
    notes = [f"{shapes}. Swapped out and given up: preemptions, by what became of the blocks."]
    if not result["fast"]:
        notes.append(
            f"Target: auto takes at most {WORST_AUTO:.2f} times as long as the better one; at "
            f"worst {worst:.2f}: {verdict}."
        )
    return Table("Workloads under memory pressure", columns, rows, [*notes, *measured_on(result)])
