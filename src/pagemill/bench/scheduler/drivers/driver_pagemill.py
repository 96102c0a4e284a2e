"""This engine's scheduler, without a model. Runs in `host.py`."""

from __future__ import annotations

import time
from typing import Any

from pagemill import SamplingParams, __version__
from pagemill.admission import Admission
from pagemill.batch import SampledToken, StepResult, TokenLogprobs
from pagemill.batch_builder import build_batch
from pagemill.kvcache.manager import KVCacheManager
from pagemill.metrics import MetricsCollector
from pagemill.scheduler import FCFSPolicy, Scheduler
from pagemill.scheduler.preemption import PreemptionCosts
from pagemill.token_processor import TokenProcessor

_DRAWN = SampledToken(7, TokenLogprobs(-1.0, 1, ()))


def about() -> dict[str, Any]:
    """Version."""
    return {"engine": "pagemill", "version": __version__}


class Driven:
    """What `pagemill.engine.LLMEngine` does in a step, without a runner, and timed.

    Args:
        trace: sizes of the pool and of steps.
    """

    def __init__(self, trace: dict[str, Any]) -> None:
        self._kv = KVCacheManager(trace["num_blocks"], trace["block_size"])
        self._scheduler = Scheduler(
            self._kv,
            FCFSPolicy(),
            PreemptionCosts("recompute", 1),
            max_num_seqs=trace["num_running"],
            max_num_batched_tokens=trace["max_num_batched_tokens"],
        )
        self._admission = Admission(
            self._scheduler,
            None,
            vocab_size=1 << 20,
            max_model_len=trace["max_model_len"],
            eos_token_ids=frozenset(),
            engine_seed=0,
        )
        metrics = MetricsCollector(self._kv, self._scheduler, time.monotonic)
        self._processor = TokenProcessor(None, metrics)

    def add(self, number: int, prompt: list[int], max_tokens: int) -> None:
        """Admit and queue a request."""
        params = SamplingParams(temperature=0, max_tokens=max_tokens)
        now = time.monotonic()
        request = self._admission.admit(str(number), prompt, params, 0, None, None, now)
        request.stream = False
        self._scheduler.add(request)

    def step(self) -> tuple[int, int, list[int], dict[str, float]]:
        """One step, in parts."""
        times = [time.perf_counter()]
        plan = self._scheduler.schedule()
        times.append(time.perf_counter())
        batch = build_batch(plan, self._kv.block_size)
        times.append(time.perf_counter())
        result = StepResult([_DRAWN] * len(batch.sampling), [])
        before = time.perf_counter()
        applied = self._processor.apply(plan, result, time.monotonic())
        between = time.perf_counter()
        self._scheduler.advance(plan, applied.decoded)
        for seq in applied.ended:
            self._scheduler.finish(seq)
        after = time.perf_counter()
        parts = {
            "schedule": times[1] - times[0],
            "build_batch": times[2] - times[1],
            "tokens": between - before,
            "bookkeeping": after - between,
        }
        ended = [int(seq.request.request_id) for seq in applied.ended]
        return plan.num_tokens, len(batch.sampling), ended, parts
