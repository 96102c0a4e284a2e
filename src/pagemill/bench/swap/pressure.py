"""Workloads that do not fit into the pool, so that sequences are preempted all the time."""

from __future__ import annotations

import random
from typing import Any, Final, NamedTuple

from pagemill.bench.shared_model import BenchRequest, SharedModel, run_to_end

MODES: Final = ("swap", "recompute", "auto")


class Workload(NamedTuple):
    """Requests that arrive at once, and how little memory there is."""

    name: str
    num_requests: int
    prompt: tuple[int, int]
    """Shortest and longest, in tokens."""
    output: tuple[int, int]
    num_kv_blocks: int
    max_num_seqs: int

    def requests(self, tag: str, model: SharedModel) -> list[BenchRequest]:
        """Random ones, that depend on ``tag`` only."""
        generator = random.Random(f"{self.name} {tag}")
        return [
            BenchRequest(
                model.random_prompt(f"{self.name} {tag} {i}", generator.randint(*self.prompt)),
                generator.randint(*self.output),
            )
            for i in range(self.num_requests)
        ]


WORKLOADS: Final = (
    Workload("short sequences", 32, (16, 64), (128, 256), 64, 24),
    Workload("long sequences", 10, (256, 512), (256, 384), 160, 8),
)
FAST_WORKLOADS: Final = (
    Workload("short sequences", 8, (8, 16), (40, 60), 14, 6),
    Workload("long sequences", 6, (32, 40), (60, 80), 18, 6),
)


def run_workload(workload: Workload, model: SharedModel, mode: str, tag: str) -> dict[str, Any]:
    """Serve all requests with one ``preemption_mode``."""
    # Recomputing, an engine has no use for the swap space of its neighbours.
    no_swap: dict[str, Any] = {"swap_space": 0, "swap_path": None} if mode == "recompute" else {}
    engine = model.engine(
        num_kv_blocks=workload.num_kv_blocks,
        max_num_seqs=workload.max_num_seqs,
        preemption_mode=mode,
        **no_swap,
    )
    seconds = run_to_end(engine, workload.requests(tag, model))
    stats = engine.stats()
    return {
        "workload": workload.name,
        "mode": mode,
        "seconds": round(seconds, 5),
        "num_preemptions_swap": stats["num_preemptions_swap"],
        "num_preemptions_recompute": stats["num_preemptions_recompute"],
        "num_output_tokens": stats["num_generation_tokens"],
        "computed_tokens": stats["num_computed_tokens"],
        "num_steps": stats["num_steps"],
    }
