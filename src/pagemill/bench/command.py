"""What the benchmarks of the KV memory have in common: measure or read a result, then report it."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pagemill.bench.environment import CpuWatch, describe_environment
from pagemill.bench.report import Table, check_places, read_json, replace_generated, write_json

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class BenchCommand(ABC):
    """A parsed ``pagemill bench NAME``; call it to run it.

    Attributes:
        num_threads: that compute.
        repeats: of each measurement.
        fast: a short version, to see that it works.
        json: where everything goes.
        docs: the document whose tables are replaced.
        from_json: report this result and measure nothing.
    """

    NAME: ClassVar[str]
    SEED: ClassVar[int | None] = 0
    """Of what is drawn; it is in the result."""

    num_threads: int
    repeats: int
    fast: bool = False
    json: Path | None = None
    docs: Path | None = None
    from_json: Path | None = None

    @abstractmethod
    def measure(self) -> dict[str, Any]:
        """The benchmark's own fields of the result."""

    @abstractmethod
    def tables(self, result: Mapping[str, Any]) -> list[Table]:
        """What people read."""

    def __call__(self) -> int:
        """Measure, or read what was; print and write; returns the exit code."""
        if self.docs is not None:
            check_places(self.docs, [self.NAME])
        result = self._result() if self.from_json is None else read_json(self.from_json, self.NAME)
        if self.json is not None:
            write_json(self.json, result)
        tables = self.tables(result)
        if self.docs is not None:
            text = "\n\n".join(f"### {table.title}\n\n{table.markdown()}" for table in tables)
            replace_generated(self.docs, self.NAME, text)
        for table in tables:
            table.print()
            sys.stdout.write("\n")
        return 0

    def _result(self) -> dict[str, Any]:
        environment = describe_environment(
            num_threads=self.num_threads, repeats=self.repeats, seed=self.SEED
        )
        with CpuWatch() as watch:
            measured = self.measure()
        return {
            "benchmark": self.NAME,
            "environment": environment,
            "fast": self.fast,
            "watch": watch.to_json(),
            **measured,
        }


def rounds(contenders: Sequence[T], repeats: int) -> Iterator[tuple[int, Sequence[T]]]:
    """Rounds in which every contender runs once, each time another one first: a machine that gets
    slower, or warmer, does so for all of them.
    """
    for repeat in range(repeats):
        first = repeat % len(contenders)
        yield repeat, [*contenders[first:], *contenders[:first]]


def measured_on(result: Mapping[str, Any]) -> list[str]:
    """Sentences for below a table: what it was measured on, and what disturbed it."""
    environment, watch = result["environment"], result["watch"]
    num_threads = environment["num_threads"]
    about = [environment["cpu"], f"{num_threads} thread{'s' if num_threads != 1 else ''}"]
    if environment["isa"] is not None:
        about.insert(1, environment["isa"])
    commit = "" if environment["commit"] is None else f", commit {environment['commit'][:12]}"
    notes = [
        f"Medians of {environment['repeats']} repeats. {', '.join(about)}; "
        f"{environment['date'][:10]}{commit}."
    ]
    if result["fast"]:
        notes.append("A short run (--fast), to see that the command works: no measurement.")
    if watch["foreign_share"] is not None:
        notes.append(
            f"Meanwhile other processes had {watch['foreign_share']:.0%} of the processors, the "
            f"hypervisor {watch['steal_share']:.0%}."
        )
    return notes
