"""From the start of the process to the first token on standard output, beside importing torch."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pagemill
from pagemill.bench.environment import CpuWatch
from pagemill.errors import BenchmarkError

PROMPT = "The capital of France is"


def measure_start(
    model: str,
    *,
    num_threads: int,
    repeats: int,
    announce: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Start both programs in turn, each in fresh processes; seconds.

    Raises:
        BenchmarkError: one of them printed nothing.
    """
    generate = [sys.executable, "-m", "pagemill.cli", "generate", "-m", model, "-p", PROMPT]
    generate += ["--max-tokens", "16", "--num-threads", str(num_threads)]
    importing = [sys.executable, "-c", "import torch; print('imported', flush=True)"]
    path = {"PYTHONPATH": str(Path(pagemill.__file__).parent.parent)}
    for command in (generate, importing):  # what the disk holds is in memory afterwards
        seconds_to_first_byte(command, path)
    runs: list[dict[str, Any]] = []
    for number in range(repeats):
        announce(f"start {number + 1}/{repeats}")
        with CpuWatch() as watch:
            first_token_s = seconds_to_first_byte(generate, path)
            import_torch_s = seconds_to_first_byte(importing, path)
        runs.append(
            {
                "first_token_s": first_token_s,
                "import_torch_s": import_torch_s,
                "cpu": watch.to_json(),
            }
        )
    return {
        "first_token_s": statistics.median(run["first_token_s"] for run in runs),
        "import_torch_s": statistics.median(run["import_torch_s"] for run in runs),
        "beyond_torch_s": statistics.median(
            run["first_token_s"] - run["import_torch_s"] for run in runs
        ),
        "runs": runs,
    }


def seconds_to_first_byte(command: Sequence[str], environment: Mapping[str, str]) -> float:
    """From starting a process to what it prints first; then it is waited for."""
    began = time.perf_counter()
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment},
    )
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = os.read(process.stdout.fileno(), 1)
        seconds = time.perf_counter() - began
        process.stdout.read()
        errors = process.stderr.read()
    if not first or process.returncode != 0:
        said = errors.decode(errors="replace").strip()[-500:]
        raise BenchmarkError(
            f"{' '.join(command[:4])} … ended with {process.returncode} and printed "
            f"{'something' if first else 'nothing'}: {said}"
        )
    return seconds
