"""The sentence below a table: what was measured on what, with what, when, and how quiet it was."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pagemill.bench.peers import summary

Result = Mapping[str, Any]


def of_races(result: Result) -> str:
    """For the races of a result."""
    races = result["races"]
    others = "".join(f", {peer} {version}" for peer, version in result["versions"].items())
    rounds = _times(result["environment"]["repeats"], "round")
    if "S5" in races:
        rounds += f" ({result['options']['neighbour_repeats']} of S5)"
    shares = (s.foreign_share for r in races.values() for s in summary.summarize(r).standings)
    return (
        f"{', '.join(races)}: {_machine(result)}{others}. "
        f"Medians of {rounds}; {_quiet(shares)} during a run."
    )


def of_memory(result: Result) -> str:
    """For the memory that a result measured."""
    return f"{_machine(result)}."


def of_start(result: Result) -> str:
    """For the starts that a result measured."""
    runs = result["start"]["runs"]
    shares = (run["cpu"]["foreign_share"] for run in runs)
    return f"{_machine(result)}. Medians of {_times(len(runs), 'start')}; {_quiet(shares)}."


def percent(share: float | None) -> str:
    """A share for people."""
    return "unknown" if share is None else f"{share:.0%}"


def _machine(result: Result) -> str:
    environment, model = result["environment"], result["model"]
    parts = [
        environment["date"][:10],
        f"{model['name']} ({model['file_type']})",
        environment["cpu"],
        _times(environment["num_threads"], "thread"),
        environment["isa"] or "no native kernels",
        f"pagemill {environment['pagemill']}{_commit(environment['commit'])}",
        f"torch {environment['torch']}",
    ]
    return ", ".join(parts)


def _commit(commit: str | None) -> str:
    if commit is None:
        return ""
    changed = " with changes" if commit.endswith("-dirty") else ""
    return f" at {commit[:12]}{changed}"


def _quiet(shares: Iterable[float | None]) -> str:
    known = [share for share in shares if share is not None]
    return f"other processes had at most {percent(max(known, default=None))} of the machine"


def _times(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
