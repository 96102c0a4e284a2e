"""Figures of several runs, and how people read them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

Run = Mapping[str, Any]
"""What was measured of one contender in one round, and which round (``repeat``)."""

_UNITS: Final = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def of(runs: Iterable[Run], **fields: Any) -> list[Run]:
    """Those whose fields have these values, in order of their rounds."""
    chosen = [run for run in runs if all(run[name] == value for name, value in fields.items())]
    return sorted(chosen, key=lambda run: int(run["repeat"]))


def median_of(runs: Sequence[Run], field: str) -> float | None:
    """Over the runs that have the figure; None if none has."""
    values = [float(run[field]) for run in runs if run[field] is not None]
    return statistics.median(values) if values else None


def ratio_of(runs: Sequence[Run], others: Sequence[Run], field: str) -> float:
    """The median of the ratios of each round: what disturbs a round, disturbs both."""
    pairs = zip(runs, others, strict=True)
    return statistics.median(float(a[field]) / float(b[field]) for a, b in pairs)


def percent(share: float | None, digits: int = 1) -> str:
    """``12.5%``; nothing for None."""
    return "" if share is None else f"{100 * share:.{digits}f}%"


def number(value: float | None, digits: int = 1) -> str:
    """``12.5``; nothing for None."""
    return "" if value is None else f"{value:.{digits}f}"


def duration(seconds: float | None) -> str:
    """``1.23 ms``: three digits and a unit; nothing for None."""
    if seconds is None:
        return ""
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.2g} ns"


def model_name(result: Mapping[str, Any]) -> str:
    """What was run: an alias, or the last part of a path or a hub id."""
    return str(result["model"]).rstrip("/").rpartition("/")[2]
