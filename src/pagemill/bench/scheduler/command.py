"""Drives schedulers, and times looking for prefixes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from pagemill.bench.command import BenchCommand, rounds
from pagemill.bench.progress import Progress
from pagemill.bench.report import Table
from pagemill.bench.scheduler import tables
from pagemill.bench.scheduler.contender import (
    NANO_VLLM,
    VLLM,
    Contender,
    ContenderError,
    contenders,
)
from pagemill.bench.scheduler.lookup import FAST_LENGTHS, LENGTHS, lookup
from pagemill.bench.scheduler.trace import BLOCK_SIZE, Trace, churn_trace, steady_trace

SIZES: Final = (10, 100, 1000, 10_000)
_STEPS: Final = 96
"""Six blocks of each sequence."""
_FAST_SIZES: Final = (10, 50)
_FAST_STEPS: Final = 32


@dataclass(frozen=True, kw_only=True)
class SchedulerCommand(BenchCommand):
    """A parsed ``pagemill bench scheduler``.

    Attributes:
        vllm_python: a Python that has vLLM; None leaves it out.
        nano_vllm_python: a Python that has nano-vllm; None leaves it out.
        limit_s: of one process, in seconds.
    """

    NAME: ClassVar[str] = "scheduler"

    vllm_python: Path | None = None
    nano_vllm_python: Path | None = None
    limit_s: float = 600.0

    def tables(self, result: Mapping[str, Any]) -> list[Table]:
        """See `pagemill.bench.scheduler.tables`."""
        return tables.tables(result)

    def measure(self) -> dict[str, Any]:
        """In each round one process for each engine, and every length looked for."""
        sizes, num_steps = (_FAST_SIZES, _FAST_STEPS) if self.fast else (SIZES, _STEPS)
        traces = [make(size, num_steps) for make in (steady_trace, churn_trace) for size in sizes]
        lengths = FAST_LENGTHS if self.fast else LENGTHS
        taking_part = contenders(self.vllm_python, self.nano_vllm_python)
        failed: dict[str, str] = {}
        runs: list[dict[str, Any]] = []
        lookups: list[dict[str, Any]] = []
        with Progress(self.repeats * len(taking_part)) as progress:
            for repeat, ordered in rounds(taking_part, self.repeats):
                for contender in ordered:
                    progress.doing(contender.name)
                    if contender.name not in failed:
                        runs += self._runs_of(contender, traces, repeat, failed)
                    progress.done()
                lookups += [{"repeat": repeat, **lookup(n, str(repeat))} for n in lengths]
        return {
            "block_size": BLOCK_SIZE,
            "runs": runs,
            "failed": failed,
            "left_out": [
                name
                for name in (VLLM, NANO_VLLM)
                if name not in {contender.name for contender in taking_part}
            ],
            "lookups": lookups,
        }

    def _runs_of(
        self, contender: Contender, traces: Sequence[Trace], repeat: int, failed: dict[str, str]
    ) -> Iterator[dict[str, Any]]:
        try:
            answer = contender.run(traces, self.limit_s)
        except ContenderError as error:
            failed[contender.name] = str(error)
            return
        for driven in answer["results"]:
            yield {
                "repeat": repeat,
                "engine": contender.name,
                "about": answer["about"],
                **summed(driven),
            }


def summed(driven: Mapping[str, Any]) -> dict[str, Any]:
    """Figures of the steps of one trace, as ``drivers/host.py`` has them: for each part its share
    of a row's time, in seconds.
    """
    steps: Sequence[Mapping[str, float]] = driven["steps"]
    names = [name for name in steps[0] if name not in ("rows", "drawn")]
    rows = sum(int(step["rows"]) for step in steps)
    return {
        "kind": driven["kind"],
        "num_running": driven["num_running"],
        "num_requests": driven["num_requests"],
        "num_steps": len(steps),
        "num_rows": rows,
        "num_drawn": sum(int(step["drawn"]) for step in steps),
        "seconds_per_row": {name: sum(step[name] for step in steps) / rows for name in names},
        "step_seconds": [round(sum(step[name] for name in names), 9) for step in steps],
    }
