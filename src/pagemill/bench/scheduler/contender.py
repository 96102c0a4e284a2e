"""An engine whose scheduler is driven in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pagemill
from pagemill.bench.scheduler.trace import Trace
from pagemill.errors import BenchmarkError

DRIVERS: Final = Path(__file__).parent / "drivers"
_FOREIGN: Final = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
"""Variables that would reach into another environment."""


class ContenderError(BenchmarkError):
    """The process could not do what it was asked to."""


@dataclass(frozen=True)
class Contender:
    """Which Python drives which scheduler."""

    name: str
    python: Path
    driver: str
    """A file of ``drivers/``."""

    def run(self, traces: Sequence[Trace], limit_s: float) -> dict[str, Any]:
        """Drive all traces; returns what ``drivers/host.py`` writes.

        Raises:
            ContenderError: it failed, or took longer than ``limit_s``.
        """
        command = [str(self.python), str(DRIVERS / "host.py"), str(DRIVERS / self.driver)]
        try:
            done = subprocess.run(
                command,
                input=json.dumps([trace.to_json() for trace in traces]),
                capture_output=True,
                text=True,
                timeout=limit_s,
                env=self._environment(),
            )
        except subprocess.TimeoutExpired:
            raise ContenderError(f"took longer than {limit_s:g} s and was ended") from None
        except OSError as error:
            raise ContenderError(f"{self.python} does not start: {error.strerror}") from error
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise ContenderError(lines[-1][:300])
        answer = json.loads(done.stdout)
        assert isinstance(answer, dict)
        return answer

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
        if self.name == PAGEMILL:
            kept["PYTHONPATH"] = str(Path(pagemill.__file__).parents[1])
        return kept


PAGEMILL: Final = "pagemill"
VLLM: Final = "vLLM"
NANO_VLLM: Final = "nano-vllm"


def contenders(vllm_python: Path | None, nano_vllm_python: Path | None) -> list[Contender]:
    """This engine, and those of the others that there is a Python for."""
    found = [Contender(PAGEMILL, Path(sys.executable), "driver_pagemill.py")]
    # Not resolved: a virtual environment's Python is a link, and finds its packages by its place.
    if vllm_python is not None:
        found.append(Contender(VLLM, vllm_python.absolute(), "driver_vllm.py"))
    if nano_vllm_python is not None:
        found.append(Contender(NANO_VLLM, nano_vllm_python.absolute(), "driver_nano_vllm.py"))
    return found
