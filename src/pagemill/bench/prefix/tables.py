"""The tables of shared prefixes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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

_CACHES = {
    "off": "cache off",
    "on": "cache on, empty",
    "known": "cache on, prefix known",
}


def tables(result: Mapping[str, Any]) -> list[Table]:
    """A long prefix with the cache on and off; short ones with and without partial hits."""
    runs: Sequence[Run] = result["runs"]
    long = [run for run in runs if run["cache"] in _CACHES]
    short = [run for run in runs if run["cache"] not in _CACHES]
    return [_long_table(result, long), _short_table(result, short)]


def _long_table(result: Mapping[str, Any], runs: Sequence[Run]) -> Table:
    off = of(runs, cache="off")
    rows = []
    for cache, title in _CACHES.items():
        own = of(runs, cache=cache)
        rows.append(
            [
                title,
                number(median_of(own, "prompt_tokens"), 0),
                number(median_of(own, "prefilled_tokens"), 0),
                percent(median_of(own, "hit_rate")),
                duration(median_of(own, "seconds")),
                number(ratio_of(own, off, "seconds"), 2),
            ]
        )
    columns = ["", "prompt tokens", "prefilled", "saved", "wall time", "of cache off's"]
    first = runs[0]
    note = (
        f"{model_name(result)}: {first['num_requests']} requests at once, {first['num_shared']} "
        f"tokens in common, {first['num_own']} own, {first['num_output']} answered; blocks of "
        f"{result['block_size']}. Prefilled: prompt tokens that were computed."
    )
    title = f"A shared prefix of {first['num_shared']} tokens"
    return Table(title, columns, rows, [note, *measured_on(result)])


def _short_table(result: Mapping[str, Any], runs: Sequence[Run]) -> Table:
    rows = []
    for num_shared, cache in dict.fromkeys(
        (run["num_shared"], run["cache"]) for run in _sorted(runs)
    ):
        own = of(runs, num_shared=num_shared, cache=cache)
        whole = of(runs, num_shared=num_shared, cache="whole blocks")
        rows.append(
            [
                f"{num_shared} + {own[0]['num_own']}",
                cache,
                number(median_of(own, "hit_tokens"), 0),
                percent(median_of(own, "hit_rate")),
                percent(own[0]["possible_hit_rate"]),
                number(median_of(own, "prefilled_tokens"), 0),
                duration(median_of(own, "seconds")),
                number(ratio_of(own, whole, "seconds"), 2),
            ]
        )
    columns = [
        "shared + own",
        "cache",
        "hit tokens",
        "hit rate",
        "possible",
        "prefilled",
        "wall time",
        "of whole blocks'",
    ]
    note = (
        f"{runs[0]['num_requests']} requests at once. Possible: if all but the first found "
        f"everything that they share. Wall time: until all have their first token."
    )
    return Table("Hits inside a block", columns, rows, [note, *measured_on(result)])


def _sorted(runs: Sequence[Run]) -> list[Run]:
    order = ["whole blocks", "partial hits"]
    return sorted(runs, key=lambda run: (run["num_shared"], order.index(run["cache"])))
