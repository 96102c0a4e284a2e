"""The tables of schedulers."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pagemill.bench.command import measured_on
from pagemill.bench.figures import Run, duration, median_of, number, of
from pagemill.bench.report import Table
from pagemill.bench.scheduler.contender import NANO_VLLM, PAGEMILL, VLLM

COUNTED: Final = ("schedule", "build_batch", "bookkeeping")
"""Parts that the target is about."""
TARGET_SECONDS: Final = 1e-6
TARGET_RUNNING: Final = 1000
_TITLES: Final = {
    "steady": "steady decode",
    "churn": "requests come and go",
}


def tables(result: Mapping[str, Any]) -> list[Table]:
    """All engines, the parts of this one, and looking for prefixes."""
    runs: Sequence[Run] = result["runs"]
    return [_engines_table(result, runs), _parts_table(result, runs), _lookup_table(result)]


def seconds_per_row(runs: Sequence[Run], parts: Sequence[str] | None = None) -> float | None:
    """The sum of some parts, or of all; the median of the runs. None if there are none."""
    sums = [
        sum(
            seconds
            for name, seconds in run["seconds_per_row"].items()
            if parts is None or name in parts
        )
        for run in runs
    ]
    return statistics.median(sums) if sums else None


def _cases(runs: Sequence[Run]) -> list[tuple[str, int]]:
    return list(dict.fromkeys((run["kind"], run["num_running"]) for run in runs))


def _engines_table(result: Mapping[str, Any], runs: Sequence[Run]) -> Table:
    present = [name for name in (PAGEMILL, VLLM, NANO_VLLM) if of(runs, engine=name)]
    others = present[1:]
    rows = []
    for kind, num_running in _cases(runs):
        own = {name: of(runs, engine=name, kind=kind, num_running=num_running) for name in present}
        ours = own[PAGEMILL]
        rows.append(
            [
                _TITLES[kind],
                f"{num_running:,}",
                number(statistics.median(run["num_rows"] / run["num_steps"] for run in ours), 0),
                _microseconds(seconds_per_row(ours, COUNTED)),
                *(_microseconds(seconds_per_row(own[name])) for name in present),
                *(_times(own[name], ours) for name in others),
            ]
        )
    columns = [
        "",
        "sequences",
        "rows a step",
        "plan a row",
        *(f"all: {_with_version(of(runs, engine=name))}" for name in present),
        *(f"{name} / {PAGEMILL}" for name in others),
    ]
    notes = [
        "Microseconds for each token-row of a step. Plan: schedule, build the batch, block "
        "bookkeeping. All: also drawn tokens appended and new requests queued; the others' sums "
        "have no batch, which their model runners build. Rows a step: this engine's.",
        *_verdicts(result, runs),
        *_missing(result),
        *measured_on(result),
    ]
    return Table("Planning a step", columns, rows, notes)


def _with_version(runs: Sequence[Run]) -> str:
    about = runs[0]["about"]
    return f"{about['engine']} {about['version']}"


def _times(other: Sequence[Run], ours: Sequence[Run]) -> str:
    """The median of the ratios of each round."""
    by_round = {run["repeat"]: seconds_per_row([run]) for run in ours}
    ratios = [
        theirs / own
        for run in other
        if (theirs := seconds_per_row([run])) and (own := by_round.get(run["repeat"]))
    ]
    return f"{statistics.median(ratios):.1f}" if ratios else ""


def _verdicts(result: Mapping[str, Any], runs: Sequence[Run]) -> list[str]:
    steady = {
        n: seconds_per_row(of(runs, engine=PAGEMILL, kind="steady", num_running=n), COUNTED)
        for kind, n in _cases(runs)
        if kind == "steady"
    }
    at_target, largest = steady.get(TARGET_RUNNING), max(steady)
    if result["fast"] or at_target is None:
        return []
    verdict = "reached" if at_target < TARGET_SECONDS else "missed"
    sentence = (
        f"Target: under {_microseconds(TARGET_SECONDS)} a row with {TARGET_RUNNING:,} decoding "
        f"sequences: {verdict}."
    )
    at_largest = steady[largest]
    if largest > TARGET_RUNNING and at_largest is not None:
        sentence += (
            f" With {largest:,} a row takes {at_largest / at_target:.2f} times as long as with "
            f"{TARGET_RUNNING:,}; 1 is linear growth."
        )
    return [sentence]


def _missing(result: Mapping[str, Any]) -> list[str]:
    sentences = [f"{name} could not be driven: {why}." for name, why in result["failed"].items()]
    if result["left_out"]:
        sentences.append(f"Not measured: {', '.join(result['left_out'])}.")
    return sentences


def _parts_table(result: Mapping[str, Any], runs: Sequence[Run]) -> Table:
    ours = of(runs, engine=PAGEMILL)
    parts = list(ours[0]["seconds_per_row"])
    rows = []
    for kind, num_running in _cases(ours):
        own = of(ours, kind=kind, num_running=num_running)
        rows.append(
            [
                _TITLES[kind],
                f"{num_running:,}",
                *(_microseconds(seconds_per_row(own, [part]), 3) for part in parts),
                duration(statistics.median(statistics.median(r["step_seconds"]) for r in own)),
                duration(statistics.median(max(r["step_seconds"]) for r in own)),
            ]
        )
    titles = [part.replace("_", " ") for part in parts]
    columns = ["", "sequences", *titles, "a step", "slowest step"]
    note = "Microseconds for each token-row, and a step as a whole."
    return Table("This engine's parts", columns, rows, [note, *measured_on(result)])


def _lookup_table(result: Mapping[str, Any]) -> Table:
    lookups: Sequence[Run] = result["lookups"]
    rows = []
    for num_tokens in sorted({run["num_tokens"] for run in lookups}):
        own = of(lookups, num_tokens=num_tokens)
        num_blocks = own[0]["num_blocks"]
        row = [f"{num_tokens:,}", f"{num_blocks:,}"]
        for way in ("hit", "miss", "again"):
            seconds = median_of(own, f"{way}_seconds")
            assert seconds is not None
            row.append(f"{duration(seconds)} ({_microseconds(seconds / num_blocks)})")
        rows.append(row)
    columns = ["prompt tokens", "blocks", "all found", "nothing found", "all found, again"]
    note = (
        "In brackets microseconds a block. Again: the names of the blocks are known from the first "
        "time, as for whoever waits and looks in each step."
    )
    return Table("Looking for a prefix", columns, rows, [note, *measured_on(result)])


def _microseconds(seconds: float | None, digits: int = 2) -> str:
    return "" if seconds is None else f"{seconds * 1e6:.{digits}f}"
