"""Results of ``pagemill bench peers`` as tables. Pure functions over the JSON.

Several results, of some scenarios each, make one set of tables; what two of them measured is the
later one's.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pagemill.bench.peers import conditions, summary
from pagemill.bench.peers.contenders import OURS
from pagemill.bench.peers.installed import PEERS
from pagemill.bench.peers.summary import TARGETS, RaceSummary, Standing
from pagemill.bench.report import Table

Result = Mapping[str, Any]
_ABSENT = "-"
_SHORT_FAILURE = "> "


def all_tables(results: Sequence[Result]) -> dict[str, Table]:
    """Tables by the name of their place in a document; only those that have content."""
    tables = {}
    if any(result["races"] for result in results):
        tables["peers"] = compare(results)
        tables["peers-settings"] = settings(results)
    for name, key, make in (("peers-memory", "memory", memory), ("peers-start", "start", start)):
        having = [result for result in results if result[key] is not None]
        if having:
            tables[name] = make(having[-1])
    return tables


def _races(results: Sequence[Result]) -> Iterator[tuple[Result, RaceSummary]]:
    for number, result in enumerate(results):
        later = {name for other in results[number + 1 :] for name in other["races"]}
        for name, race in result["races"].items():
            if name not in later:
                yield result, summary.summarize(race)


def compare(results: Sequence[Result]) -> Table:
    """Each scenario: ours, each peer's best, the ratio to the best of them, the target."""
    peers = [peer for peer in PEERS if any(peer in result["peers"] for result in results)]
    columns = ("scenario", OURS, *peers, "ours / best peer", "target", "")
    rows = []
    for result, race in _races(results):
        if race.name == "S5":
            quiet = summary.summarize(result["races"]["S3"])
            rows.append(_neighbour_row(race, quiet, result, peers))
        else:
            rows.append(_race_row(race, result, peers))
        if race.name == "S1" and result["bandwidth"] is not None:
            rows.append(_bandwidth_row(race, result["bandwidth"], len(peers)))
    notes = [conditions.of_races(result) for result in results if result["races"]]
    return Table("Beside other engines", columns, rows, notes)


def settings(results: Sequence[Result]) -> Table:
    """Every setting that ran."""
    columns = ("race", "engine", "setting", "median", "lowest to highest", "rounds")
    rows = []
    for _, race_summary in _races(results):
        for s in race_summary.standings:
            span = _ABSENT
            if s.figures:
                low, high = min(s.figures.values()), max(s.figures.values())
                span = f"{_number(low)} to {_number(high)}"
            row = (race_summary.name, s.peer, s.setting, _figure(s, race_summary.unit), span)
            ratio = _ABSENT if s.ratio is None else f"{s.ratio:.2f}"
            rows.append((*row, str(len(s.figures)), ratio, conditions.percent(s.foreign_share)))
    return Table(
        "Every setting",
        (*columns, "ours / this", "others' CPU"),
        rows,
        (
            "A setting that reached at least "
            f"{results[0]['options']['contending']:.0%} of its engine's best in the first round "
            "ran in all of them. Others' CPU: the largest share of the machine that processes "
            "which were not being measured had during a run.",
        ),
    )


def memory(result: Result) -> Table:
    """Resident memory of ours beside what is allowed, and of the peers after S3."""
    found = result["memory"]
    allowed = found["weight_bytes"] + found["kv_pool_bytes"] + summary.ALLOWED_BYTES
    is_met = found["resident_bytes"] <= allowed
    rows = [
        (
            OURS,
            _megabytes(found["resident_bytes"]),
            _megabytes(found["peak_bytes"]),
            f"<= {_megabytes(allowed)}: weights as stored {_megabytes(found['weight_bytes'])}, "
            f"KV pool {_megabytes(found['kv_pool_bytes'])}, and "
            f"{_megabytes(summary.ALLOWED_BYTES)}",
            _verdict(is_met),
        )
    ]
    race = result["races"].get("S3")
    for name, about in race["contenders"].items() if race else ():
        runs = [run for run in race["runs"] if run["contender"] == name and "figure" in run]
        if about["peer"] == OURS or not runs or runs[0]["resident_bytes"] is None:
            continue
        resident = max(run["resident_bytes"] for run in runs)
        peak = max(run["peak_bytes"] for run in runs)
        rows.append((name, _megabytes(resident), _megabytes(peak), "", ""))
    columns = ("engine", "resident", "peak", "target", "")
    return Table("Memory after S3", columns, rows, (conditions.of_memory(result),))


def start(result: Result) -> Table:
    """From process start to first token."""
    found = result["start"]
    first_s, beyond_s = found["first_token_s"], found["beyond_torch_s"]
    rows = [
        (
            "`pagemill generate`, process start to first token",
            f"{first_s:.2f} s",
            f"< {summary.MAX_START_S:g} s",
            _verdict(first_s < summary.MAX_START_S),
        ),
        ("Python importing torch, likewise", f"{found['import_torch_s']:.2f} s", "", ""),
        (
            "the difference, median of pairs",
            f"{beyond_s:.2f} s",
            f"< {summary.MAX_BEYOND_TORCH_S:g} s",
            _verdict(beyond_s < summary.MAX_BEYOND_TORCH_S),
        ),
    ]
    return Table(
        "Process start", ("", "median", "target", ""), rows, (conditions.of_start(result),)
    )


def _race_row(race: RaceSummary, result: Result, peers: list[str]) -> tuple[str, ...]:
    best = race.best_peer()
    ratio = _ABSENT
    if best is not None and best.ratio is not None:
        ratio = f"{best.ratio:.2f} x {best.peer}"
    target = TARGETS[race.name]
    asked = f"{'<=' if target.is_upper else '>='} {target.bound:g} x"
    asked += f" {' and '.join(target.peers)}" if target.peers else ""
    asked += " at 4 or 8 bits" if target.weights else ""
    return (race.title, *_cells(race, result, peers), ratio, asked, _verdict(race.met()))


def _neighbour_row(
    noisy: RaceSummary, quiet: RaceSummary, result: Result, peers: list[str]
) -> tuple[str, ...]:
    shares = summary.quiet_shares(noisy, quiet)
    cells = []
    for engine in (OURS, *peers):
        best = noisy.best_of(engine)
        cell = _cell(best, engine, noisy.unit, result)
        if best is not None and best.name in shares:
            cell = f"{conditions.percent(shares[best.name])} of its quiet figure ({cell})"
        cells.append(cell)
    ours = noisy.ours
    share = None if ours is None else shares.get(ours.name)
    met = None if ours is None else share is not None and share >= summary.MIN_NEIGHBOUR_SHARE
    asked = f">= {summary.MIN_NEIGHBOUR_SHARE:.0%} of our quiet figure"
    return (noisy.title, *cells, _ABSENT, asked, _verdict(met))


def _bandwidth_row(race: RaceSummary, found: Mapping[str, Any], num_peers: int) -> tuple[str, ...]:
    share = summary.bandwidth_share(race, found)
    cell = _ABSENT if share is None else conditions.percent(share)
    met = share is not None and share >= summary.MIN_BANDWIDTH_SHARE
    speed = statistics.median(found["read_bytes_per_second"])
    title = (
        f"S1 as a share of the read bandwidth: {_megabytes(found['bytes_per_token'])} a token, "
        f"{speed / 1e9:.1f} GB/s"
    )
    asked = f">= {summary.MIN_BANDWIDTH_SHARE:.0%}"
    return (title, cell, *[_ABSENT] * num_peers, _ABSENT, asked, _verdict(met))


def _cells(race: RaceSummary, result: Result, peers: list[str]) -> list[str]:
    return [
        _cell(race.best_of(engine), engine, race.unit, result, with_setting=True)
        for engine in (OURS, *peers)
    ]


def _cell(
    best: Standing | None, engine: str, unit: str, result: Result, *, with_setting: bool = False
) -> str:
    if best is None:
        return "not installed" if engine in result["missing"] else _ABSENT
    figure = _figure(best, unit)
    return f"{figure} ({best.setting})" if with_setting else figure


def _figure(standing: Standing, unit: str) -> str:
    if standing.median is not None:
        return f"{_number(standing.median)} {unit}"
    if standing.failed is not None and standing.failed.startswith(_SHORT_FAILURE):
        return standing.failed
    return "failed"


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def _megabytes(num_bytes: float) -> str:
    return f"{num_bytes / 1e6:,.0f} MB"


def _verdict(met: bool | None) -> str:
    return {True: "met", False: "missed", None: ""}[met]
