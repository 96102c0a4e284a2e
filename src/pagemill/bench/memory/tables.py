"""The table of contiguous and paged memory."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pagemill.bench.command import measured_on
from pagemill.bench.figures import Run, median_of, model_name, number, of, percent, ratio_of
from pagemill.bench.memory.run import ACCOUNTINGS, PAGED
from pagemill.bench.report import Table

TARGET: Final = 0.9
"""Of the allocated slots that the paged cache uses, at a block size of 16."""
TARGET_BLOCK_SIZE: Final = 16


def tables(result: Mapping[str, Any]) -> list[Table]:
    """One table: a row for each accounting."""
    runs = {name: of(result["runs"], accounting=name) for name in ACCOUNTINGS}
    speed = "output_tokens_per_second"
    rows = [
        [
            name,
            percent(median_of(own, "utilization_mean")),
            percent(median_of(own, "utilization_min")),
            percent(median_of(own, "pool_share_used")),
            number(median_of(own, "num_running_mean")),
            number(median_of(own, "num_running_max"), 0),
            number(median_of(own, speed)),
            number(ratio_of(own, runs[PAGED], speed), 2),
            number(median_of(own, "num_preemptions"), 0),
        ]
        for name, own in runs.items()
    ]
    columns = [
        "",
        "used of allocated, mean",
        "lowest",
        "used of the pool",
        "requests at once",
        "most",
        "output tok/s",
        "of paged's",
        "preemptions",
    ]
    notes = [_workload(result), *_verdict(result, runs[PAGED]), *measured_on(result)]
    return [Table("KV memory: contiguous against paged", columns, rows, notes)]


def _workload(result: Mapping[str, Any]) -> str:
    lengths: Sequence[Sequence[int]] = result["lengths"]
    return (
        f"{model_name(result)}, {len(lengths)} requests at once with the lengths of ShareGPT "
        f"conversations (mean {statistics.fmean(pair[0] for pair in lengths):.0f} in, "
        f"{statistics.fmean(pair[1] for pair in lengths):.0f} out), a context of "
        f"{result['max_model_len']}, a pool of {result['pool_slots']} token slots "
        f"({result['pool_bytes'] / (1 << 20):.0f} MiB), blocks of {result['block_size']}. "
        f"Used: slots that hold a computed token, after each step; of the pool, and requests at "
        f"once: while others waited."
    )


def _verdict(result: Mapping[str, Any], paged: Sequence[Run]) -> list[str]:
    if result["fast"] or result["block_size"] != TARGET_BLOCK_SIZE:
        return []
    utilization = median_of(paged, "utilization_mean")
    assert utilization is not None
    verdict = "reached" if utilization > TARGET else "missed"
    return [f"Target: paged uses more than {TARGET:.0%} of what is allocated: {verdict}."]
