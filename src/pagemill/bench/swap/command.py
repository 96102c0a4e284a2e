"""Runs the comparison of swapping and recomputing."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final

from pagemill.bench.command import BenchCommand, rounds
from pagemill.bench.progress import Progress
from pagemill.bench.report import Table
from pagemill.bench.shared_model import SharedModel
from pagemill.bench.swap import tables
from pagemill.bench.swap.costs import recompute_seconds, swap_seconds, swap_seconds_on_disk
from pagemill.bench.swap.pressure import FAST_WORKLOADS, MODES, WORKLOADS, Workload, run_workload
from pagemill.config import DEFAULT_MODEL, EngineConfig
from pagemill.kvcache.manager import blocks_for_tokens

LENGTHS: Final = tuple(2**i for i in range(4, 13))
_FAST_LENGTHS: Final = (16, 32, 64)
BLOCK_SIZE: Final = 16
_SWAP_SPACE: Final = "512MiB"
_FAST_SWAP_SPACE: Final = "8MiB"
MEMORY, FILE = "memory", "file"


@dataclass(frozen=True, kw_only=True)
class SwapCommand(BenchCommand):
    """A parsed ``pagemill bench swap``.

    Attributes:
        model: what is run.
        swap_dir: where the swap file is created; None: the directory for temporary files.
    """

    NAME: ClassVar[str] = "swap"

    model: str = DEFAULT_MODEL
    swap_dir: Path | None = None

    def tables(self, result: Mapping[str, Any]) -> list[Table]:
        """See `pagemill.bench.swap.tables`."""
        return tables.tables(result)

    def measure(self) -> dict[str, Any]:
        """Costs by length, then the workloads; in each round everything once."""
        lengths = _FAST_LENGTHS if self.fast else LENGTHS
        workloads = FAST_WORKLOADS if self.fast else WORKLOADS
        config = EngineConfig(
            model=self.model,
            num_threads=self.num_threads,
            block_size=BLOCK_SIZE,
            num_kv_blocks=max(
                blocks_for_tokens(max(lengths), BLOCK_SIZE), *(w.num_kv_blocks for w in workloads)
            ),
            swap_space=_FAST_SWAP_SPACE if self.fast else _SWAP_SPACE,
        )
        directory = self.swap_dir or Path(tempfile.gettempdir())
        swap_path = directory / f"pagemill-bench-swap-{os.getpid()}"
        with (
            SharedModel(config) as memory,
            SharedModel(replace(config, swap_path=str(swap_path))) as file,
        ):
            fitting = [length for length in lengths if _fits(length, memory)]
            costs = list(self._measure_costs(fitting, memory, file))
            runs = list(self._run_workloads(workloads, memory, file))
            return {
                "model": self.model,
                "block_size": BLOCK_SIZE,
                "block_bytes": memory.block_bytes,
                "max_num_batched_tokens": config.max_num_batched_tokens,
                "swap_file_system": file_system_of(directory),
                "costs": costs,
                "workloads": [workload._asdict() for workload in workloads],
                "runs": runs,
            }

    def _measure_costs(
        self, lengths: Sequence[int], memory: SharedModel, file: SharedModel
    ) -> Iterator[dict[str, Any]]:
        # Pages of the pools and the swap spaces that are written for the first time cost more.
        longest = memory.random_prompt("warm-up", max(lengths))
        for model in (memory, file):
            recompute_seconds(model, longest)
            swap_seconds(model, blocks_for_tokens(len(longest), BLOCK_SIZE))
        with Progress(self.repeats * len(lengths)) as progress:
            for repeat, ordered in rounds(lengths, self.repeats):
                for length in ordered:
                    progress.doing(f"{length} tokens")
                    yield {"repeat": repeat, **_costs(length, repeat, memory, file)}
                    progress.done()

    def _run_workloads(
        self, workloads: Sequence[Workload], memory: SharedModel, file: SharedModel
    ) -> Iterator[dict[str, Any]]:
        places = [(MEMORY, memory), (FILE, file)]
        with Progress(self.repeats * len(workloads) * len(places) * len(MODES)) as progress:
            for workload in workloads:
                for place, model in places:
                    for repeat, modes in rounds(MODES, self.repeats):
                        for mode in modes:
                            progress.doing(f"{workload.name}, {mode}, {place}")
                            run = run_workload(workload, model, mode, str(repeat))
                            yield {"repeat": repeat, "swap_to": place, **run}
                            progress.done()


def _fits(length: int, model: SharedModel) -> bool:
    num_blocks = blocks_for_tokens(length, BLOCK_SIZE)
    return length < model.max_model_len and num_blocks <= model.num_swap_slots


def _costs(length: int, repeat: int, memory: SharedModel, file: SharedModel) -> dict[str, Any]:
    num_blocks = blocks_for_tokens(length, BLOCK_SIZE)
    recompute = recompute_seconds(memory, memory.random_prompt(f"cost {repeat}", length))
    ways = {
        MEMORY: swap_seconds(memory, num_blocks),
        FILE: swap_seconds(file, num_blocks),
        "disk": swap_seconds_on_disk(file, num_blocks),
    }
    costs: dict[str, Any] = {
        "num_tokens": length,
        "num_blocks": num_blocks,
        "num_bytes": num_blocks * memory.block_bytes,
        "recompute_seconds": recompute,
    }
    for way, seconds in ways.items():
        out, back = (None, None) if seconds is None else seconds
        costs[f"{way}_out_seconds"], costs[f"{way}_in_seconds"] = out, back
        costs[f"{way}_seconds"] = None if seconds is None else sum(seconds)
    return costs


def file_system_of(directory: Path, mounts: Path = Path("/proc/mounts")) -> str | None:
    """The kind of file system that a directory is on; None where the system does not tell."""
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return None
    best, kind = "", None
    resolved = str(directory.resolve())
    for line in lines:
        _, place, name, *_ = line.split()
        inside = resolved == place or resolved.startswith(place.rstrip("/") + "/")
        if inside and len(place) >= len(best):
            best, kind = place, name
    return kind
