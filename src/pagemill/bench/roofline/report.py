"""The tables of a roofline."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pagemill.bench.figures import duration
from pagemill.bench.report import Table

Result = Mapping[str, Any]
"""An op as `OpResult.to_json` has it."""

_CELL_NOTE: Final = (
    "Time of one op, then its share in percent of what binds it: m the read bandwidth, a the "
    "arithmetic peak; the share of the other in brackets. M is the number of rows."
)


def tables(result: Mapping[str, Any]) -> list[Table]:
    """The machine's peaks, the targets, and each kind of op."""
    ops: Sequence[Result] = result["ops"]
    linear = [op for op in ops if op["kind"] == "linear"]
    made = [_peaks_table(result)]
    if linear:
        made.append(_targets_table(linear))
    memory = [op for op in linear if not op["in_cache"]]
    cached = [op for op in linear if op["in_cache"]]
    for title, chosen in (
        ("Linear maps, weights from memory", memory),
        ("Linear maps, weights from the cache", cached),
        ("Attention", [op for op in ops if op["kind"] == "attention"]),
        ("Row ops, rows in the cache", [op for op in ops if op["kind"] == "rows"]),
    ):
        if chosen:
            made.append(_ops_table(title, chosen))
    return made


def markdown(result: Mapping[str, Any]) -> str:
    """All tables with their titles, for between two markers of a document."""
    return "\n\n".join(f"### {table.title}\n\n{table.markdown()}" for table in tables(result))


def _peaks_table(result: Mapping[str, Any]) -> Table:
    environment, peaks = result["environment"], result["peaks"]
    threads = sorted(peaks, key=int)
    rows = [
        [title, *(_rate(peaks[count][field], unit) for count in threads)]
        for title, field, unit in (
            ("read bandwidth", "read_bytes", "GB/s"),
            ("8-bit multiply-adds", "int8_macs", "GMAC/s"),
            ("float32 multiply-adds", "float32_macs", "GMAC/s"),
        )
    ]
    columns = ["", *(f"{count} thread{'s' if count != '1' else ''}" for count in threads)]
    return Table("What the machine allows", columns, rows, _notes(environment, result))


def _notes(environment: Mapping[str, Any], result: Mapping[str, Any]) -> list[str]:
    memory, watch = result["memory"], result["watch"]
    cache_bytes = memory["last_level_cache_bytes"]
    cache = "of unknown size" if cache_bytes is None else f"of {_mebibytes(cache_bytes)}"
    notes = [
        f"Median, and the best in brackets. {environment['cpu']}, {environment['isa']}, "
        f"{environment['num_threads']} threads, {environment['repeats']} repeats, "
        f"{environment['date'][:10]}, commit {str(environment['commit'])[:12]}.",
        f"Last level cache {cache}; weights, keys and values from memory take turns in "
        f"{_mebibytes(memory['working_set_bytes'])}.",
    ]
    if cache_bytes is not None and memory["working_set_bytes"] < 2 * cache_bytes:
        notes.append(
            "That is less than twice the cache, which memory did not allow: some of it may have "
            "come from the cache, and shares of the bandwidth may be too high."
        )
    if watch["foreign_share"] is not None:
        notes.append(
            f"Meanwhile other processes had {watch['foreign_share']:.0%} of the processors, the "
            f"hypervisor {watch['steal_share']:.0%}."
        )
    return notes


def _targets_table(linear: Sequence[Result]) -> Table:
    """What the linear maps are meant to reach, and the worst and the middle of what they do."""

    def is_wide(op: Result, arithmetic: str) -> bool:
        return bool(op["num_rows"] >= 32 and op["arithmetic"] == arithmetic)

    goals: list[tuple[str, str, Callable[[Result], bool], str]] = [
        ("one row: share of the bandwidth", "85%", _one_row_from_memory, "bandwidth_share"),
    ]
    for arithmetic, title in (("int8", "8-bit"), ("float32", "float32")):
        for in_cache, place in ((False, "memory"), (True, "cache")):

            def chosen(op: Result, kind: str = arithmetic, cached: bool = in_cache) -> bool:
                return is_wide(op, kind) and op["in_cache"] is cached

            goals.append(
                (
                    f"32 rows and more, weights from {place}: share of the {title} peak",
                    "70%",
                    chosen,
                    "arithmetic_share",
                )
            )
    rows = []
    for title, target, is_meant, field in goals:
        meant = [op for op in linear if is_meant(op)]
        if meant:
            worst = min(meant, key=lambda op: op[field])
            middle = statistics.median(op[field] for op in meant)
            what = f"{worst['name']}, {worst['format']}, M = {worst['num_rows']}"
            rows.append([title, target, f"{middle:.0%}", f"{worst[field]:.0%} ({what})"])
    return Table("Linear maps against their targets", ["", "target", "median", "lowest"], rows)


def _one_row_from_memory(op: Result) -> bool:
    return bool(op["num_rows"] == 1 and not op["in_cache"])


def _ops_table(title: str, ops: Sequence[Result]) -> Table:
    """A line for each name and format, a column for each number of rows."""
    counts = sorted({op["num_rows"] for op in ops})
    lines: dict[tuple[str, str], dict[int, str]] = {}
    for op in ops:
        lines.setdefault((op["name"], op["format"]), {})[op["num_rows"]] = _cell(op)
    columns = ["", "format", *(f"M = {count}" for count in counts)]
    rows = [[*line, *(cells.get(count, "") for count in counts)] for line, cells in lines.items()]
    return Table(title, columns, rows, [_CELL_NOTE])


def _cell(op: Result) -> str:
    memory, arithmetic = op["bandwidth_share"], op["arithmetic_share"]
    time = duration(op["seconds"])
    if arithmetic is None:
        return f"{time}, m {_percent(memory)}"
    if op["bound"] == "memory":
        return f"{time}, m {_percent(memory)} (a {_percent(arithmetic)})"
    return f"{time}, a {_percent(arithmetic)} (m {_percent(memory)})"


def _percent(share: float) -> str:
    return f"{100 * share:.0f}"


def _rate(figures: Mapping[str, float], unit: str) -> str:
    return f"{figures['median'] / 1e9:.1f} ({figures['best'] / 1e9:.1f}) {unit}"


def _mebibytes(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 20):.0f} MiB"
