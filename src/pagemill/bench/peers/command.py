"""``pagemill bench peers``: measure, write down, show."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pagemill.bench import report
from pagemill.bench.environment import describe_environment
from pagemill.bench.peers import bandwidth, summary
from pagemill.bench.peers.contenders import OURS, Contender, Setup
from pagemill.bench.peers.driver import OverLimitError
from pagemill.bench.peers.installed import PEERS, find_installed
from pagemill.bench.peers.memory import measure_memory
from pagemill.bench.peers.race import CONTENDING, DriverPool, Race
from pagemill.bench.peers.show import BENCHMARK, TABLES, show
from pagemill.bench.peers.start_time import measure_start
from pagemill.bench.progress import Progress
from pagemill.bench.roofline import measured_read_bandwidth
from pagemill.bench.workload import SCENARIOS, Scenario
from pagemill.cli.model_report import describe_model
from pagemill.cli.opening import note
from pagemill.config import EngineConfig
from pagemill.errors import BenchmarkError, ConfigError
from pagemill.kernels import native
from pagemill.loading.sources import resolve_model

RACES = ("S1", "S2", "S3", "S4", "S5", "S1-float32", "S3-float32", "S1-bfloat16", "S3-bfloat16")
MEASUREMENTS = (*RACES, "memory", "start")
"""What ``--scenarios`` may name, in the order in which it is measured."""
_BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


@dataclass(kw_only=True)
class PeersCommand:
    """A parsed ``pagemill bench peers``; call it to run it."""

    model: str
    peers_dir: Path | None
    measurements: Sequence[str] = MEASUREMENTS
    peers: Sequence[str] = PEERS
    repeats: int = 5
    neighbour_repeats: int = 3
    num_threads: int
    limit_s: float = 300.0
    json: Path | None = None
    docs: Path | None = None
    _has_failed: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if "S5" in self.measurements and "S3" not in self.measurements:
            raise ConfigError("--scenarios: S5 is held against S3; add S3")
        if self.docs is not None:
            report.check_places(self.docs, TABLES)

    def __call__(self) -> int:
        """Run to the end; returns the exit code, 1 if anything could not be measured.

        Raises:
            ConfigError, ModelError: nothing can be measured so.
        """
        setup, result = self._prepare()
        logs = Path(tempfile.mkdtemp(prefix="pagemill-bench-"))
        with DriverPool(logs) as drivers, Progress(len(self.measurements)) as progress:
            self._run_races(setup, drivers, progress, result)
            if "memory" in self.measurements:
                progress.doing("memory")
                result["memory"] = self._measure_memory(setup, drivers, result)
                progress.done()
            if "start" in self.measurements:
                result["start"] = self._measure_start(progress)
                progress.done()
        self._write_json(result)
        show([result], self.docs)
        if self._has_failed:
            note(f"logs are in {logs}")
            return 1
        shutil.rmtree(logs)
        return 0

    def _prepare(self) -> tuple[Setup, dict[str, Any]]:
        path = resolve_model(self.model)
        facts = describe_model(EngineConfig(model=str(path)))
        stored_as = facts["weights"]["stored_as"]
        # The most common type, but for the vectors that every file has in floats.
        file_type = next((name for name in stored_as if name not in ("F32", "F16")), "F32")
        installed = find_installed(self.peers_dir, Path(self.model).name.removesuffix(".gguf"))
        setup = Setup(installed, path, file_type, self.num_threads)
        for name, why in installed.missing.items():
            note(f"not installed: {name}: {why}")
        result = {
            "benchmark": BENCHMARK,
            "environment": describe_environment(
                num_threads=self.num_threads, repeats=self.repeats, seed=None
            ),
            "options": {
                "neighbour_repeats": self.neighbour_repeats,
                "limit_s": self.limit_s,
                "contending": CONTENDING,
            },
            "model": {
                "name": self.model,
                "file_type": file_type,
                "stored_as": stored_as,
                "weight_bytes": facts["weights"]["memory_bytes"],
                "kv_bytes_per_token": facts["kv_pool"]["bytes_per_token"],
            },
            "peers": list(self.peers),
            "missing": dict(installed.missing),
            "versions": {},
            "races": {},
            "bandwidth": None,
            "memory": None,
            "start": None,
        }
        return setup, result

    def _run_races(
        self, setup: Setup, drivers: DriverPool, progress: Progress, result: dict[str, Any]
    ) -> None:
        names = [name for name in RACES if name in self.measurements]
        entries = {name: self._contenders(setup, name) for name in names}
        for position, name in enumerate(names):
            contenders = entries[name]
            if name == "S5":
                contenders = _best_of_each(contenders, result["races"]["S3"])
            race = Race(name, _BY_NAME[name.partition("-")[0]], contenders)
            records = race.run(
                drivers,
                repeats=self.neighbour_repeats if name == "S5" else self.repeats,
                limit_s=self.limit_s,
                before_round=self._bandwidth_meter(result) if name == "S1" else _nothing,
                announce=progress.doing,
                report_failure=self._report_failure,
            )
            for record in records:
                version = record.get("engine", {}).get("version")
                if version is not None:
                    result["versions"][_peer_of(record, contenders)] = version
            result["races"][name] = _race_json(race, records)
            self._write_json(result)
            progress.done()
            coming = [c for later in names[position + 1 :] for c in entries[later]]
            drivers.keep_only(coming)

    def _bandwidth_meter(self, result: dict[str, Any]) -> Callable[[], None]:
        """What is called before each round of S1: measures what the machine reads a second."""
        if native.load() is None:
            return _nothing
        (request,) = _BY_NAME["S1"].requests(0)
        context = bandwidth.mean_context(len(request.prompt_token_ids), request.max_tokens)
        kv_bytes = result["model"]["kv_bytes_per_token"] * context
        weight_bytes = bandwidth.decode_weight_bytes(self.model)
        speeds: list[float] = []
        result["bandwidth"] = {
            "bytes_per_token": weight_bytes + kv_bytes,
            "read_bytes_per_second": speeds,
        }
        return lambda: speeds.append(measured_read_bandwidth(self.num_threads))

    def _contenders(self, setup: Setup, race: str) -> list[Contender]:
        contenders = setup.contenders(race)
        return [c for c in contenders if c.peer == OURS or c.peer in self.peers]

    def _measure_memory(
        self, setup: Setup, drivers: DriverPool, result: dict[str, Any]
    ) -> dict[str, Any] | None:
        try:
            return measure_memory(
                setup,
                drivers,
                _BY_NAME["S3"],
                weight_bytes=result["model"]["weight_bytes"],
                limit_s=self.limit_s,
            )
        except BenchmarkError as error:
            self._report_failure("memory", error)
            return None

    def _measure_start(self, progress: Progress) -> dict[str, Any] | None:
        try:
            return measure_start(
                self.model,
                num_threads=self.num_threads,
                repeats=self.repeats,
                announce=progress.doing,
            )
        except BenchmarkError as error:
            self._report_failure("start", error)
            return None

    def _report_failure(self, doing: str, error: BenchmarkError) -> None:
        # That an engine takes too long is a result.
        self._has_failed |= not isinstance(error, OverLimitError)
        note(f"{doing}: {error}")

    def _write_json(self, result: dict[str, Any]) -> None:
        """After each race: what took an hour should not be lost to what comes after."""
        if self.json is not None:
            report.write_json(self.json, result)


def _nothing() -> None:
    pass


def _race_json(race: Race, records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        "name": race.name,
        "title": title_of(race.name, race.scenario),
        "unit": race.scenario.unit,
        "contenders": {
            c.name: {"peer": c.peer, "setting": c.setting, "weights": c.weights}
            for c in race.contenders
        },
        "runs": list(records),
    }


def title_of(race: str, scenario: Scenario) -> str:
    """For people."""
    _, _, dtype = race.partition("-")
    return f"{scenario.title}; {dtype} weights" if dtype else scenario.title


def _best_of_each(contenders: Sequence[Contender], race: dict[str, Any]) -> list[Contender]:
    """Each engine in the setting that was its best in a race; none that failed there."""
    found = summary.summarize(race)
    best = [found.best_of(peer) for peer in {c.peer: None for c in contenders}]
    names = {s.name for s in best if s is not None and s.median is not None}
    return [c for c in contenders if c.name in names]


def _peer_of(record: dict[str, Any], contenders: Sequence[Contender]) -> str:
    return next(c.peer for c in contenders if c.name == record["contender"])
