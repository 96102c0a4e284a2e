"""One race: rounds of a scenario in which every contender runs once.

The first round tries every setting of a peer; from the second on only those run that came within
`CONTENDING` of that peer's best. A contender that failed, or took longer than the limit, is out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from pagemill.bench.environment import CpuWatch
from pagemill.bench.peers.contenders import Contender
from pagemill.bench.peers.driver import Driver, OverLimitError
from pagemill.bench.spinner import spinning_neighbour
from pagemill.bench.workload import Scenario
from pagemill.errors import BenchmarkError

CONTENDING = 0.9
"""The part of its peer's best figure that a setting must reach to run again."""
START_LIMIT_S = 900.0
"""Some engines compile before they answer."""
SETTLE_S = 0.5
"""For pools of the last engine to stop waiting actively, before the next is measured."""

Record = dict[str, Any]
"""A run as it stands in the JSON: contender, round, and figure or ``failed``."""


@dataclass
class DriverPool:
    """Processes that are kept from race to race; ended on leaving the context."""

    logs: Path
    """Directory of their logs."""
    _drivers: dict[str, Driver] = field(default_factory=dict)
    _num_started: int = 0

    def get(self, contender: Contender) -> Driver:
        """The contender's process, started if there is none.

        Raises:
            BenchmarkError: it does not start.
        """
        driver = self._drivers.get(contender.launch)
        if driver is None:
            self._num_started += 1
            driver = Driver(
                contender.name,
                contender.command(),
                contender.process_environment(),
                self.logs / f"{self._num_started:02d}-{contender.peer}.log",
            )
            self._drivers[contender.launch] = driver
            try:
                driver.wait_until_ready(START_LIMIT_S)
            except OverLimitError as error:  # which is no figure of the race
                raise BenchmarkError(str(error)) from error
            finally:
                if not driver.about:
                    self.drop(contender)
        return driver

    def drop(self, contender: Contender) -> None:
        """End the contender's process, if it has one."""
        if (driver := self._drivers.pop(contender.launch, None)) is not None:
            driver.close()

    def keep_only(self, contenders: Sequence[Contender]) -> None:
        """End all processes but those of ``contenders``."""
        kept = {contender.launch for contender in contenders}
        for launch in self._drivers.keys() - kept:
            self._drivers.pop(launch).close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.keep_only(())


@dataclass(frozen=True)
class Race:
    """A scenario and who takes part, ours first."""

    name: str
    scenario: Scenario
    contenders: Sequence[Contender]

    def run(
        self,
        drivers: DriverPool,
        *,
        repeats: int,
        limit_s: float,
        before_round: Callable[[], None] = lambda: None,
        announce: Callable[[str], None] = lambda _: None,
        report_failure: Callable[[str, BenchmarkError], None] = lambda *_: None,
    ) -> list[Record]:
        """Run all rounds.

        Args:
            drivers: where processes are taken from.
            repeats: number of rounds.
            limit_s: a run that takes longer is ended and counts as failed.
            before_round: called before each.
            announce: told what is measured now.
            report_failure: told at once, with the race's name, why a contender is out.
        """
        records: list[Record] = []
        active = list(self.contenders)
        for number in range(repeats):
            before_round()
            for contender in _rotated(active, number):
                announce(f"{self.name} {number + 1}/{repeats}: {contender.name}")
                record = {"round": number, "contender": contender.name}
                try:
                    record |= self._measure(drivers, contender, number, limit_s)
                except BenchmarkError as error:
                    drivers.drop(contender)
                    over = isinstance(error, OverLimitError)
                    record["failed"] = f"> {limit_s:g} s" if over else str(error)
                    report_failure(self.name, error)
                records.append(record)
            active = self._still_in(active, records)
        return records

    def _measure(
        self, drivers: DriverPool, contender: Contender, number: int, limit_s: float
    ) -> Record:
        driver = drivers.get(contender)
        if number == 0:
            driver.run(self.scenario.mode, self.scenario.warm_up(), limit_s)
        requests = self.scenario.requests(number)
        time.sleep(SETTLE_S)
        with self._neighbours() as neighbours, CpuWatch({driver.pid, *neighbours}) as watch:
            run = driver.run(self.scenario.mode, requests, limit_s)
        resident = driver.resident_bytes()
        return {
            "figure": self.scenario.measure(run),
            **run._asdict(),
            "resident_bytes": resident and resident[0],
            "peak_bytes": resident and resident[1],
            "cpu": watch.to_json(),
            "engine": dict(driver.about),
        }

    @contextmanager
    def _neighbours(self) -> Iterator[set[int]]:
        with spinning_neighbour() if self.scenario.name == "S5" else nullcontext() as pid:
            yield set() if pid is None else {pid}

    def _still_in(self, active: Sequence[Contender], records: Sequence[Record]) -> list[Contender]:
        failed = {record["contender"] for record in records if "failed" in record}
        first = [record for record in records if record["round"] == 0]
        figures = {record["contender"]: record["figure"] for record in first if "figure" in record}
        alive = [contender for contender in active if contender.name not in failed]
        return [c for c in alive if self._contends(c, alive, figures)]

    def _contends(
        self, contender: Contender, alive: Sequence[Contender], figures: Mapping[str, float]
    ) -> bool:
        own = figures[contender.name]
        others = [figures[c.name] for c in alive if c.peer == contender.peer]
        if self.scenario.higher_is_better:
            return own >= max(others) * CONTENDING
        return own <= min(others) / CONTENDING


def _rotated(contenders: Sequence[Contender], by: int) -> list[Contender]:
    """Another one goes first in each round, so that none always follows the same."""
    start = by % max(len(contenders), 1)
    return [*contenders[start:], *contenders[:start]]
