"""``pagemill bench serving``: rounds, figures and tables."""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

from pagemill.bench.command import BenchCommand, measured_on, rounds
from pagemill.bench.figures import duration, median_of, model_name, number, of, percent, ratio_of
from pagemill.bench.progress import Progress
from pagemill.bench.report import Table
from pagemill.bench.serving.processes import Processes
from pagemill.bench.serving.requests import FAST, FULL, Draw, Timed, of_kind
from pagemill.bench.workload import WARM_UP_TOKENS, Request
from pagemill.config import DEFAULT_MODEL, EngineConfig

WORKLOADS = {"steady": "64 streams from first to last", "mixed": "as in S3 of performance.md"}
OFFLINE, SERVED = "`LLM.generate`", "served, streamed"
ALONE, WITHOUT, BESIDE = "the long prompt alone", "without", "beside"


@dataclass(frozen=True, kw_only=True)
class ServingCommand(BenchCommand):
    """A parsed ``pagemill bench serving``.

    Attributes:
        model: what is served.
        kv_cache_memory: of each engine.
    """

    NAME: ClassVar[str] = "serving"

    model: str = DEFAULT_MODEL
    kv_cache_memory: str = "768MiB"

    def measure(self) -> dict[str, Any]:
        """Everything, in turn, ``repeats`` times."""
        scale = FAST if self.fast else FULL
        settings = {
            "model": self.model,
            "num_threads": self.num_threads,
            "max_num_seqs": scale.num_streams,
            "kv_cache_memory": self.kv_cache_memory,
        }
        EngineConfig.from_kwargs(**settings)  # refuses what neither process could start with
        with (
            tempfile.TemporaryDirectory(prefix="pagemill-bench-") as logs,
            Processes(settings, Path(logs)) as processes,
        ):
            draw = Draw(scale, int(processes.about["vocab_size"]))
            runs = self._throughput(processes, draw)
            waits = self._beside_long(processes, draw)
            step_tokens = processes.about["step_tokens"]
        return {
            "model": self.model,
            "settings": settings,
            "num_streams": scale.num_streams,
            "long_tokens": scale.long_tokens,
            "step_tokens": step_tokens,
            "runs": runs,
            "waits": waits,
        }

    def _throughput(self, processes: Processes, draw: Draw) -> list[dict[str, Any]]:
        runs = []
        with Progress(len(WORKLOADS) * (self.repeats + 1) * 2) as progress:
            for workload in WORKLOADS:
                for repeat, turn in rounds((OFFLINE, SERVED), self.repeats + 1):
                    # Others' prompts each time, or the second would find those of the first.
                    requests = draw.throughput(workload, str(repeat))
                    if not repeat:  # warms up
                        requests = [
                            Request(r.prompt_token_ids, min(r.max_tokens, WARM_UP_TOKENS))
                            for r in requests
                        ]
                    for contender in turn:
                        progress.doing(f"{workload}, {contender}")
                        if contender == OFFLINE:
                            told = processes.generate(requests)
                        else:
                            told = _summed_up(processes.serve([Timed(r) for r in requests]))
                        tokens = sum(request.max_tokens for request in requests)
                        run = {"workload": workload, "contender": contender, "repeat": repeat - 1}
                        run |= told | {"output_tokens_per_s": tokens / told["total_s"]}
                        if repeat:
                            runs.append(run)
                        progress.done()
        return runs

    def _beside_long(self, processes: Processes, draw: Draw) -> list[dict[str, Any]]:
        waits = []
        situations = (ALONE, WITHOUT, BESIDE)
        with Progress(self.repeats * len(situations)) as progress:
            for repeat, turn in rounds(situations, self.repeats):
                for situation in turn:
                    progress.doing(situation)
                    tag = f"{repeat}-{situation}"
                    if situation == ALONE:
                        timed = [draw.long(tag)]
                    else:
                        timed = draw.beside_long(tag, with_long=situation == BESIDE)
                    streams = processes.serve(timed)["streams"]
                    waits.append(
                        {
                            "situation": situation,
                            "repeat": repeat,
                            "long_ttft_s": [_ttft_s(s) for s in of_kind(timed, streams, "long")],
                            "short_ttft_s": [_ttft_s(s) for s in of_kind(timed, streams, "short")],
                            "gaps_s": [
                                gap
                                for stream in of_kind(timed, streams, "stream")
                                for gap in _gaps_s(stream)
                            ],
                        }
                    )
                    progress.done()
        return waits

    def tables(self, result: Mapping[str, Any]) -> list[Table]:
        """Throughput, then waiting."""
        return [_throughput_table(result), _waits_table(result)]


def _summed_up(told: Mapping[str, Any]) -> dict[str, Any]:
    streams = told["streams"]
    ttft_s = sorted(_ttft_s(stream) for stream in streams)
    gaps_s = sorted(gap for stream in streams for gap in _gaps_s(stream))
    return {
        "total_s": told["total_s"],
        "engine_cpu_s": told["engine_cpu_s"],
        "client_cpu_s": told["cpu_s"],
        "events": sum(stream["events"] for stream in streams),
        "ttft_s": {"median": statistics.median(ttft_s), "p99": quantile(ttft_s, 0.99)},
        "itl_s": {"median": statistics.median(gaps_s), "p99": quantile(gaps_s, 0.99)},
    }


def _ttft_s(stream: Mapping[str, Any]) -> float:
    return float(stream["times_s"][0] - stream["at_s"])


def _gaps_s(stream: Mapping[str, Any]) -> list[float]:
    times = stream["times_s"]
    return [later - earlier for earlier, later in pairwise(times)] or [0.0]


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest of ``values`` that at least ``share`` of them do not exceed."""
    return sorted(values)[math.ceil(share * len(values)) - 1]


def _throughput_table(result: Mapping[str, Any]) -> Table:
    rows = []
    for workload, description in WORKLOADS.items():
        offline = of(result["runs"], workload=workload, contender=OFFLINE)
        served = of(result["runs"], workload=workload, contender=SERVED)
        for contender, runs in ((OFFLINE, offline), (SERVED, served)):
            ratio = ratio_of(runs, offline, "output_tokens_per_s")
            rows.append(
                [
                    f"{workload}: {description}",
                    contender,
                    number(median_of(runs, "output_tokens_per_s"), 0),
                    f"{ratio:.3f}" if runs is served else "",
                    duration(median_of(runs, "engine_cpu_s")),
                    duration(median_of(runs, "client_cpu_s")) if runs is served else "",
                    _both(runs, "ttft_s") if runs is served else "",
                    _both(runs, "itl_s") if runs is served else "",
                ]
            )
    columns = ["workload", "", "output tok/s", "ratio", "CPU of the engine's process"]
    columns += ["CPU of the client", "TTFT p50, p99", "ITL p50, p99"]
    notes = [
        f"{model_name(result)}, {result['num_streams']} streams at once, greedy. *Ratio* is the "
        f"median of the rounds' ratios. The client is one process that reads all streams, on the "
        f"same processors.",
        *measured_on(result),
    ]
    return Table("What HTTP costs", columns, rows, notes)


def _both(runs: Sequence[Mapping[str, Any]], field: str) -> str:
    values = (statistics.median(run[field][name] for run in runs) for name in ("median", "p99"))
    return ", ".join(map(duration, values))


def _waits_table(result: Mapping[str, Any]) -> Table:
    waits = result["waits"]
    num_steps = math.ceil(result["long_tokens"] / result["step_tokens"])
    step_s = statistics.median(
        seconds / num_steps for run in of(waits, situation=ALONE) for seconds in run["long_ttft_s"]
    )
    rows = []
    for situation in (WITHOUT, BESIDE):
        runs = of(waits, situation=situation)
        ttft_s = [seconds for run in runs for seconds in run["short_ttft_s"]]
        gaps_s = [seconds for run in runs for seconds in run["gaps_s"]]
        long_s = [seconds for run in runs for seconds in run["long_ttft_s"]]
        rows.append(
            [
                f"{situation} a prompt of {result['long_tokens']:,} tokens",
                duration(statistics.median(ttft_s)),
                *_with_steps(quantile(ttft_s, 0.99), step_s),
                *_with_steps(max(ttft_s), step_s),
                duration(quantile(gaps_s, 0.99)),
                *_with_steps(max(gaps_s), step_s),
                duration(statistics.median(long_s)) if long_s else "",
            ]
        )
    columns = ["", "TTFT p50", "p99", "in chunk-steps", "max", "in chunk-steps"]
    columns += ["ITL p99", "max", "in chunk-steps", "TTFT of the long prompt"]
    notes = [
        f"TTFT of short requests that come one after another, ITL of streams that run meanwhile. A "
        f"*chunk-step* computes {result['step_tokens']:,} tokens of the long prompt when it is "
        f"alone: {duration(step_s)}, {percent(1 / num_steps, 0)} of its TTFT."
    ]
    return Table("Beside a long prompt", columns, rows, notes)


def _with_steps(seconds: float, step_s: float) -> tuple[str, str]:
    return duration(seconds), f"{seconds / step_s:.2f}"
