"""What an engine did, for people: `MetricsCollector.stats` as two small tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group
from rich.table import Table

_DISTRIBUTIONS = (
    # key in the statistics, label, unit, multiplier, decimals
    ("ttft_seconds", "time to first token", "ms", 1e3, 1),
    ("tpot_seconds", "time per output token", "ms", 1e3, 1),
    ("itl_seconds", "between two tokens", "ms", 1e3, 1),
    ("queue_seconds", "waiting in the queue", "ms", 1e3, 1),
    ("e2e_seconds", "whole request", "s", 1.0, 2),
    ("batch_tokens_per_step", "tokens in a step", "tok", 1.0, 1),
    ("running_per_step", "running sequences", "", 1.0, 1),
    ("waiting_per_step", "waiting sequences", "", 1.0, 1),
    ("kv_usage_per_step", "KV pool in use", "%", 1e2, 2),
)


def print_stats(stats: Mapping[str, Any], console: Console) -> None:
    """Print the totals and the distributions."""
    console.print(Group("", _totals(stats), "", _distributions(stats)))


def _totals(stats: Mapping[str, Any]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.title, table.title_justify, table.title_style = "engine", "left", "bold"
    finished = stats["num_requests_finished"]
    ends = ", ".join(f"{count} {reason}" for reason, count in finished.items() if count) or "none"
    rows = (
        ("requests finished", f"{sum(finished.values())} ({ends})"),
        (
            "requests now",
            f"{stats['num_requests_running']} running, {stats['num_requests_waiting']} waiting",
        ),
        (
            "tokens",
            f"{stats['num_prompt_tokens']:,} prompt, {stats['num_generation_tokens']:,} generated, "
            f"{stats['num_computed_tokens']:,} computed in {stats['num_steps']:,} steps",
        ),
        (
            "throughput",
            f"{stats['generation_tokens_per_second']:.1f} generated tok/s, "
            f"{stats['computed_tokens_per_second']:.1f} computed tok/s "
            f"over {stats['busy_seconds']:.2f} s of steps",
        ),
        ("preemptions", f"{stats['num_preemptions_recompute']} (recompute)"),
        (
            "KV pool now",
            f"{stats['kv_usage']:.1%} in use, {stats['kv_blocks_free']:,} of "
            f"{stats['kv_blocks_total']:,} blocks free",
        ),
    )
    for label, value in rows:
        table.add_row(label, value)
    return table


def _distributions(stats: Mapping[str, Any]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), title_justify="left", header_style="bold")
    for column in ("", "unit", "count", "mean", "p50", "p95", "p99"):
        table.add_column(column, justify="left" if column in ("", "unit") else "right")
    for key, label, unit, multiplier, decimals in _DISTRIBUTIONS:
        summary = stats[key]
        values = [
            f"{summary[name] * multiplier:.{decimals}f}" if name in summary else "-"
            for name in ("mean", "p50", "p95", "p99")
        ]
        table.add_row(label, unit, f"{summary['count']:,}", *values)
    return table
