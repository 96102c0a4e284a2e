"""What an engine did, for people: `MetricsCollector.stats` as two small tables, and one answer.

All of it fits a terminal of 80 columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group
from rich.table import Table

from pagemill.engine import LLMEngine
from pagemill.kvcache.manager import blocks_for_tokens
from pagemill.outputs import RequestOutput

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


def describe_answer(output: RequestOutput, engine: LLMEngine) -> str:
    """Speed and memory of one answer (the first sample), in a few lines."""
    times = output.metrics
    num_tokens = len(output.outputs[0].token_ids)
    num_prompt_tokens = len(output.prompt_token_ids)
    lines = [f"{num_prompt_tokens:,} tokens of prompt, {num_tokens:,} of answer"]
    if times.ttft_seconds is not None and times.e2e_seconds is not None:
        decoding_seconds = times.e2e_seconds - times.ttft_seconds
        lines.append(f"first token after {times.ttft_seconds:.2f} s")
        if num_tokens > 1 and decoding_seconds > 0:
            lines[-1] += f", then {(num_tokens - 1) / decoding_seconds:.1f} tok/s"
    # The last token was never computed: its key and value are not in the cache.
    num_blocks = blocks_for_tokens(num_prompt_tokens + num_tokens - 1, engine.kv.block_size)
    share = num_blocks / engine.kv.num_blocks
    lines.append(f"KV cache: {num_blocks:,} of {engine.kv.num_blocks:,} blocks ({share:.1%})")
    return "\n".join(lines)


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
            f"{stats['num_computed_tokens']:,} computed",
        ),
        ("steps", f"{stats['num_steps']:,} in {stats['busy_seconds']:.2f} s"),
        (
            "throughput",
            f"{stats['generation_tokens_per_second']:.1f} generated tok/s, "
            f"{stats['computed_tokens_per_second']:.1f} computed tok/s",
        ),
        (
            "preemptions",
            f"{stats['num_preemptions_recompute']} computed again, "
            f"{stats['num_preemptions_swap']} swapped",
        ),
        (
            "prefix cache",
            f"{stats['prefix_cache_hit_tokens']:,} of {stats['prefix_cache_query_tokens']:,} "
            f"prompt tokens hit, {stats['cow_copies']} blocks copied on write",
        ),
        (
            "KV pool now",
            f"{stats['kv_usage']:.1%} in use; of {stats['kv_blocks_total']:,} blocks "
            f"{stats['kv_blocks_free']:,} free, {stats['kv_blocks_cached']:,} cached",
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
            _number(summary[name] * multiplier, decimals) if name in summary else "-"
            for name in ("mean", "p50", "p95", "p99")
        ]
        table.add_row(label, unit, f"{summary['count']:,}", *values)
    return table


def _number(value: float, decimals: int) -> str:
    """Large numbers need no decimals, and the columns need the room."""
    return f"{value:.{0 if value >= 1e4 else decimals}f}"
