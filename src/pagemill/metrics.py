"""`MetricsCollector`: what an engine did, counted as it happens.

Definitions (`docs/metrics.md`): TTFT is from arrival to a request's first token; ITL is the time
between two consecutive tokens of a sequence; TPOT is, for one sequence, the time from first to last
token divided by the tokens after the first. All seconds are of the engine's one monotonic clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from pagemill.kvcache.manager import KVCacheManager
from pagemill.request import Request, Sequence, SequenceStatus
from pagemill.scheduler.scheduler import Scheduler
from pagemill.scheduler.scheduler_output import SchedulerOutput

WINDOW = 4096
"""Latency percentiles are over this many most recent observations, so memory stays bounded."""


class Distribution:
    """Count and mean of all observations, percentiles of the most recent `WINDOW`."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self.listener: Callable[[float], None] | None = None
        """Told of every observation, on the engine's thread."""

    def observe(self, value: float) -> None:
        """Add one observation."""
        self.count += 1
        self.total += value
        self._recent.append(value)
        if self.listener is not None:
            self.listener(value)

    def summary(self) -> dict[str, float]:
        """``count``, ``mean``, ``p50``, ``p95``, ``p99``; without observations only the count."""
        if not self.count:
            return {"count": 0}
        ordered = sorted(self._recent)
        return {
            "count": self.count,
            "mean": self.total / self.count,
            "p50": percentile(ordered, 50),
            "p95": percentile(ordered, 95),
            "p99": percentile(ordered, 99),
        }


def percentile(ordered: list[float], percent: float) -> float:
    """Percentile of a sorted, non-empty list, linear between the two nearest observations."""
    at = (len(ordered) - 1) * percent / 100
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


class MetricsCollector:
    """Counters and distributions of one engine.

    Args:
        kv: asked for the state of the pool.
        scheduler: asked for the lengths of its queues.
        clock: monotonic seconds.
    """

    def __init__(
        self, kv: KVCacheManager, scheduler: Scheduler, clock: Callable[[], float]
    ) -> None:
        self._kv = kv
        self._scheduler = scheduler
        self._clock = clock
        self._busy_seconds = 0.0
        self.num_steps = 0
        self.num_prompt_tokens = 0
        self.num_generation_tokens = 0
        self.num_computed_tokens = 0
        self.num_preemptions_recompute = 0
        self.num_preemptions_swap = 0
        self.prefix_cache_query_tokens = 0
        self.prefix_cache_hit_tokens = 0
        self.num_requests_finished: dict[str, int] = {"stop": 0, "length": 0, "abort": 0}
        self.kv_usage = Distribution()
        self.batch_tokens = Distribution()
        self.num_running = Distribution()
        self.num_waiting = Distribution()
        self.ttft_seconds = Distribution()
        self.tpot_seconds = Distribution()
        self.itl_seconds = Distribution()
        self.e2e_seconds = Distribution()
        self.queue_seconds = Distribution()

    def on_scheduled(self, plan: SchedulerOutput) -> None:
        """Note what a step is going to do."""
        now = self._clock()
        for request in plan.started:
            if request.times.first_scheduled_seconds is None:
                request.times.first_scheduled_seconds = now
                self.prefix_cache_query_tokens += request.num_prompt_tokens
                self.prefix_cache_hit_tokens += request.num_cached_tokens or 0
        self.num_steps += 1
        self.num_computed_tokens += plan.num_tokens
        for seq in plan.preempted:
            if seq.status is SequenceStatus.SWAPPED:
                self.num_preemptions_swap += 1
            else:
                self.num_preemptions_recompute += 1
        self.batch_tokens.observe(plan.num_tokens)
        self.kv_usage.observe(self._kv.usage)
        self.num_running.observe(len(self._scheduler.running))
        self.num_waiting.observe(len(self._scheduler.waiting))

    def on_step_done(self, started_seconds: float) -> None:
        """Note that the step that began then is over."""
        self._busy_seconds += self._clock() - started_seconds

    def on_token(self, seq: Sequence, now: float) -> None:
        """Count a token that ``seq`` is about to gain, and the wait for it."""
        times = seq.request.times
        self.num_generation_tokens += 1
        if seq.last_token_seconds is None:
            seq.first_token_seconds = now
        else:
            self.itl_seconds.observe(now - seq.last_token_seconds)
        seq.last_token_seconds = now
        if times.first_token_seconds is None:
            times.first_token_seconds = now
            self.num_prompt_tokens += seq.request.num_prompt_tokens
            self.ttft_seconds.observe(now - times.arrival_seconds)

    def on_prompt_only(self, seq: Sequence) -> None:
        """Count the prompt of a request that generates nothing, which is computed now."""
        if seq.index == 0:
            self.num_prompt_tokens += seq.request.num_prompt_tokens

    def on_finished(self, request: Request) -> None:
        """Count a request that has ended."""
        times = request.times
        reason = request.sequences[0].finish_reason
        assert reason is not None
        assert times.finished_seconds is not None
        self.num_requests_finished[reason] += 1
        self.e2e_seconds.observe(times.finished_seconds - times.arrival_seconds)
        if times.first_scheduled_seconds is not None:
            self.queue_seconds.observe(times.first_scheduled_seconds - times.arrival_seconds)
        for seq in request.sequences:
            if seq.tpot_seconds is not None:
                self.tpot_seconds.observe(seq.tpot_seconds)

    @property
    def generation_tokens_per_second(self) -> float:
        """Generated tokens over the seconds in which steps were running."""
        return self.num_generation_tokens / self._busy_seconds if self._busy_seconds else 0.0

    def counters(self) -> dict[str, Any]:
        """What `stats` says in plain numbers; cheap, and may be asked for on any thread."""
        kv, scheduler = self._kv, self._scheduler
        return {
            "num_requests_running": len(scheduler.running),
            "num_requests_waiting": len(scheduler.waiting),
            "num_steps": self.num_steps,
            "num_prompt_tokens": self.num_prompt_tokens,
            "num_generation_tokens": self.num_generation_tokens,
            "num_computed_tokens": self.num_computed_tokens,
            "num_preemptions_recompute": self.num_preemptions_recompute,
            "num_preemptions_swap": self.num_preemptions_swap,
            "prefix_cache_query_tokens": self.prefix_cache_query_tokens,
            "prefix_cache_hit_tokens": self.prefix_cache_hit_tokens,
            "cow_copies": kv.num_cow_copies,
            "kv_blocks_total": kv.num_blocks,
            "kv_blocks_free": kv.num_free_blocks - kv.num_cached_blocks,
            "kv_blocks_cached": kv.num_cached_blocks,
            "kv_blocks_referenced": kv.num_blocks - kv.num_free_blocks,
            "kv_blocks_swapped": kv.num_swapped_blocks,
            "kv_usage": kv.usage,
            "busy_seconds": self._busy_seconds,
            "num_requests_finished": dict(self.num_requests_finished),
        }

    def stats(self) -> dict[str, Any]:
        """Everything as one dictionary of plain numbers, ready for JSON."""
        busy = self._busy_seconds
        return {
            **self.counters(),
            "kv_usage_per_step": self.kv_usage.summary(),
            "running_per_step": self.num_running.summary(),
            "waiting_per_step": self.num_waiting.summary(),
            "batch_tokens_per_step": self.batch_tokens.summary(),
            "generation_tokens_per_second": self.generation_tokens_per_second,
            "computed_tokens_per_second": self.num_computed_tokens / busy if busy else 0.0,
            "ttft_seconds": self.ttft_seconds.summary(),
            "tpot_seconds": self.tpot_seconds.summary(),
            "itl_seconds": self.itl_seconds.summary(),
            "e2e_seconds": self.e2e_seconds.summary(),
            "queue_seconds": self.queue_seconds.summary(),
        }
