"""One run of the requests under one accounting, watched step by step."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pagemill.bench.memory.contiguous import ContiguousKVCacheManager
from pagemill.bench.shared_model import BenchRequest, SharedModel, run_to_end
from pagemill.engine import LLMEngine
from pagemill.kvcache.manager import KVCacheManager

PAGED = "paged"
CONTIGUOUS_LONGEST = "contiguous, max_model_len"
CONTIGUOUS_EXACT = "contiguous, prompt + max_tokens"
ACCOUNTINGS = (CONTIGUOUS_LONGEST, CONTIGUOUS_EXACT, PAGED)
_MOST_SAMPLES_WRITTEN = 250


class Sample(NamedTuple):
    """The pool after a step."""

    used: int
    """Token slots that hold a computed token."""
    allocated: int
    """Token slots that belong to a request."""
    num_running: int
    num_waiting: int


@dataclass(frozen=True)
class MemoryRun:
    """What came out of a run."""

    accounting: str
    pool_slots: int
    """Token slots in the pool."""
    seconds: float
    """In steps."""
    num_output_tokens: int
    num_preemptions: int
    samples: Sequence[Sample]
    """One for each step, the last one empty."""

    @property
    def utilizations(self) -> list[float]:
        """Used of the allocated slots, after each step that left anything allocated."""
        return [sample.used / sample.allocated for sample in self.samples if sample.allocated]

    @property
    def crowded(self) -> list[Sample]:
        """Of the steps after which requests waited for memory."""
        return [sample for sample in self.samples if sample.num_waiting]

    def to_json(self) -> dict[str, Any]:
        """The figures, and the samples, thinned out evenly if they are many."""
        crowded = self.crowded
        every = -(-len(self.samples) // _MOST_SAMPLES_WRITTEN)
        return {
            "accounting": self.accounting,
            "seconds": round(self.seconds, 4),
            "num_steps": len(self.samples),
            "num_output_tokens": self.num_output_tokens,
            "num_preemptions": self.num_preemptions,
            "output_tokens_per_second": round(self.num_output_tokens / self.seconds, 3),
            "utilization_mean": round(statistics.fmean(self.utilizations), 5),
            "utilization_min": round(min(self.utilizations), 5),
            "pool_share_used": _mean([sample.used / self.pool_slots for sample in crowded]),
            "pool_share_allocated": _mean(
                [sample.allocated / self.pool_slots for sample in crowded]
            ),
            "num_running_mean": _mean([sample.num_running for sample in crowded]),
            "num_running_max": max(sample.num_running for sample in self.samples),
            "sampled_every": every,
            "samples": [list(sample) for sample in self.samples[::every]],
        }


def _mean(values: Sequence[float]) -> float | None:
    return round(statistics.fmean(values), 5) if values else None


def accounting_named(name: str, model: SharedModel, max_model_len: int) -> KVCacheManager | None:
    """The accounting of the pool; None: the engine's own."""
    if name == PAGED:
        return None
    reserved = max_model_len if name == CONTIGUOUS_LONGEST else None
    return ContiguousKVCacheManager(model.num_kv_blocks, model.config.block_size, reserved)


def run_under(
    name: str, model: SharedModel, requests: Sequence[BenchRequest], max_model_len: int
) -> MemoryRun:
    """Serve all requests, which arrive at once."""
    engine = model.engine(kv=accounting_named(name, model, max_model_len))
    samples: list[Sample] = []

    def look(engine: LLMEngine) -> None:
        report = engine.memory_report()
        samples.append(
            Sample(
                report.used_tokens,
                report.used_tokens + report.fragmented_tokens,
                len(engine.scheduler.running),
                len(engine.scheduler.waiting),
            )
        )

    seconds = run_to_end(engine, requests, look)
    stats = engine.stats()
    return MemoryRun(
        accounting=name,
        pool_slots=model.num_kv_blocks * model.config.block_size,
        seconds=seconds,
        num_output_tokens=stats["num_generation_tokens"],
        num_preemptions=stats["num_preemptions_recompute"] + stats["num_preemptions_swap"],
        samples=samples,
    )
