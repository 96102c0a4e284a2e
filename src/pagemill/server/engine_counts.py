"""`EngineCounts`: the counters of an engine and of those before it that failed."""

from __future__ import annotations

from collections import Counter
from typing import Any

from pagemill.engine import LLMEngine
from pagemill.server.histogram import (
    BATCH_BOUNDS_TOKENS,
    LATENCY_BOUNDS_SECONDS,
    TOKEN_BOUNDS_SECONDS,
    Histogram,
)

FINISH_REASONS = ("stop", "length", "abort")
ADDED_UP = (
    "num_steps",
    "num_prompt_tokens",
    "num_generation_tokens",
    "num_computed_tokens",
    "num_preemptions_recompute",
    "num_preemptions_swap",
    "prefix_cache_query_tokens",
    "prefix_cache_hit_tokens",
    "cow_copies",
    "busy_seconds",
    *(f"num_requests_finished_{reason}" for reason in FINISH_REASONS),
)
"""Those that only grow, and go on from one engine to the next."""


class EngineCounts:
    """Reads an engine's counters when it is asked to, from any thread.

    Latencies are counted into buckets on the engine's thread as they are observed.
    """

    def __init__(self) -> None:
        self._source: tuple[Counter[str], LLMEngine | None] = (Counter(), None)
        self.ttft_seconds = Histogram(LATENCY_BOUNDS_SECONDS)
        self.itl_seconds = Histogram(TOKEN_BOUNDS_SECONDS)
        self.tpot_seconds = Histogram(TOKEN_BOUNDS_SECONDS)
        self.e2e_seconds = Histogram(LATENCY_BOUNDS_SECONDS)
        self.queue_seconds = Histogram(LATENCY_BOUNDS_SECONDS)
        self.batch_tokens = Histogram(BATCH_BOUNDS_TOKENS)

    def follow(self, engine: LLMEngine) -> None:
        """Count what ``engine`` does from now on, added to what earlier ones did."""
        metrics = engine.metrics
        for observed, histogram in (
            (metrics.ttft_seconds, self.ttft_seconds),
            (metrics.itl_seconds, self.itl_seconds),
            (metrics.tpot_seconds, self.tpot_seconds),
            (metrics.e2e_seconds, self.e2e_seconds),
            (metrics.queue_seconds, self.queue_seconds),
            (metrics.batch_tokens, self.batch_tokens),
        ):
            observed.listener = histogram.observe
        before = self.read()
        self._source = (Counter({name: before[name] for name in ADDED_UP}), engine)

    def read(self) -> Counter[str]:
        """The counters of `MetricsCollector.counters`, flat; 0 where there has been no engine."""
        before, engine = self._source
        now: Counter[str] = Counter()
        if engine is not None:
            now.update(_flat(engine.metrics.counters()))
        now.update(before)
        now["num_preemptions"] = now["num_preemptions_recompute"] + now["num_preemptions_swap"]
        return now


def _flat(counters: dict[str, Any]) -> dict[str, Any]:
    finished = counters.pop("num_requests_finished")
    return counters | {f"num_requests_finished_{reason}": n for reason, n in finished.items()}
