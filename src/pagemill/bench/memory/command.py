"""Runs the comparison of contiguous and paged memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from pagemill.bench.command import BenchCommand, rounds
from pagemill.bench.memory import tables
from pagemill.bench.memory.lengths import SHAREGPT, Lengths, shortened
from pagemill.bench.memory.run import ACCOUNTINGS, run_under
from pagemill.bench.progress import Progress
from pagemill.bench.report import Table
from pagemill.bench.shared_model import BenchRequest, SharedModel
from pagemill.config import DEFAULT_MODEL, EngineConfig
from pagemill.errors import ConfigError

MOST_REQUESTS: Final = len(SHAREGPT)
_FAST_REQUESTS: Final = 24
_FAST_DIVISOR: Final = 16
_LONGEST_IN_POOL: Final = 4
"""So many of the longest requests fit into the pool, side by side."""


@dataclass(frozen=True, kw_only=True)
class MemoryCommand(BenchCommand):
    """A parsed ``pagemill bench memory``.

    Attributes:
        model: what is run.
        num_requests: of the built-in lengths.
        max_model_len: the context, which the first baseline reserves; all requests fit into 2,048.
        block_size: token slots in a block.

    Raises:
        ConfigError: there are not as many lengths.
    """

    NAME: ClassVar[str] = "memory"

    model: str = DEFAULT_MODEL
    num_requests: int = 64
    max_model_len: int = 2048
    block_size: int = 16

    def __post_init__(self) -> None:
        if not 1 <= self.num_requests <= MOST_REQUESTS:
            raise ConfigError(
                f"--requests must be between 1 and {MOST_REQUESTS}, the number of built-in "
                f"lengths, got {self.num_requests}"
            )

    def tables(self, result: Mapping[str, Any]) -> list[Table]:
        """See `pagemill.bench.memory.tables`."""
        return tables.tables(result)

    def measure(self) -> dict[str, Any]:
        """Every accounting once in each round."""
        lengths, max_model_len = self._workload()
        config = EngineConfig(
            model=self.model,
            num_threads=self.num_threads,
            block_size=self.block_size,
            max_model_len=max_model_len,
            num_kv_blocks=-(-_LONGEST_IN_POOL * max_model_len // self.block_size),
            # Nothing is shared here, and a contiguous cache could not share it.
            enable_prefix_caching=False,
        )
        runs = []
        with SharedModel(config) as model, Progress(self.repeats * len(ACCOUNTINGS)) as progress:
            for repeat, names in rounds(ACCOUNTINGS, self.repeats):
                requests = [
                    BenchRequest(model.random_prompt(f"memory {repeat} {i}", prompt), output)
                    for i, (prompt, output) in enumerate(lengths)
                ]
                for name in names:
                    progress.doing(name)
                    run = run_under(name, model, requests, max_model_len)
                    runs.append({"repeat": repeat, **run.to_json()})
                    progress.done()
            return {
                "model": self.model,
                "max_model_len": max_model_len,
                "block_size": self.block_size,
                "pool_slots": model.num_kv_blocks * self.block_size,
                "pool_bytes": model.num_kv_blocks * model.block_bytes,
                "lengths": [list(pair) for pair in lengths],
                "runs": runs,
            }

    def _workload(self) -> tuple[Sequence[Lengths], int]:
        """Lengths of the requests, and the context."""
        if self.fast:
            lengths = shortened(SHAREGPT[:_FAST_REQUESTS], _FAST_DIVISOR)
            return lengths, self.max_model_len // _FAST_DIVISOR
        return SHAREGPT[: self.num_requests], self.max_model_len
