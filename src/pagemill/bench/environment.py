"""What a result was measured on, and how much else the machine was doing meanwhile."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import sys
import time
from collections.abc import Collection
from importlib import metadata
from pathlib import Path
from typing import Any, Self

import pagemill

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def describe_environment(*, num_threads: int, repeats: int, seed: int | None) -> dict[str, Any]:
    """What every JSON result begins with. Imports torch.

    Args:
        num_threads: that compute.
        repeats: of each measurement.
        seed: of what was drawn; None if nothing was.
    """
    from pagemill.kernels import native

    library = native.load()
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": sys.argv[1:],
        "pagemill": pagemill.__version__,
        "commit": source_commit(),
        "cpu": cpu_model(),
        "isa": None if library is None else library.isa,
        "usable_processors": native.available_cpus(),
        "num_threads": num_threads,
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
        "numpy": metadata.version("numpy"),
        "repeats": repeats,
        "seed": seed,
    }


def source_commit() -> str | None:
    """The commit of the checkout that runs, with ``-dirty`` if files differ; None if it is none."""
    root = Path(pagemill.__file__).parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40"]
    command += ["--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name, or its architecture where the system does not tell."""
    try:
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


class CpuWatch:
    """Measures how much of the machine others used while something was measured.

        with CpuWatch() as watch:
            ...
        watch.foreign_share   # 0.0: we were alone; 0.5: others had half of all processors

    Where there is no ``/proc/stat`` the shares are None.

    Args:
        ours: processes that are not others, with all that come from them; None: this one.
        proc: for tests.
    """

    def __init__(self, ours: Collection[int] | None = None, proc: Path = Path("/proc")) -> None:
        self._ours = {os.getpid()} if ours is None else set(ours)
        self._proc = proc
        self.seconds = 0.0
        """How long it lasted."""
        self.foreign_share: float | None = None
        """Processor time of others, as a share of the time of all processors."""
        self.steal_share: float | None = None
        """The same for what the hypervisor gave to other machines."""

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._before = self._sample()
        return self

    def __exit__(self, *exc: object) -> None:
        after = self._sample()
        self.seconds = time.monotonic() - self._began
        if self._before is None or after is None:
            return
        busy, steal, own = (b - a for a, b in zip(self._before, after, strict=True))
        available = max(self.seconds, 1e-9) * (os.cpu_count() or 1)
        # Ticks are 10 ms and counted at different moments, so a short quiet time can come out
        # below zero.
        self.foreign_share = round(min(max((busy - own) / available, 0.0), 1.0), 4)
        self.steal_share = round(min(max(steal / available, 0.0), 1.0), 4)

    def to_json(self) -> dict[str, float | None]:
        """Length and shares."""
        return {
            "seconds": round(self.seconds, 3),
            "foreign_share": self.foreign_share,
            "steal_share": self.steal_share,
        }

    def _sample(self) -> tuple[float, float, float] | None:
        """Busy, stolen and own processor seconds so far."""
        try:
            first = (self._proc / "stat").read_text().splitlines()[0].split()
        except (OSError, IndexError):
            return None
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, first[1:9])
        busy = user + nice + system + irq + softirq
        own = family_cpu_ticks(self._ours, self._proc)
        return busy / _TICKS_PER_SECOND, steal / _TICKS_PER_SECOND, own / _TICKS_PER_SECOND


def family_cpu_ticks(roots: Collection[int], proc: Path = Path("/proc")) -> int:
    """Processor ticks that processes and their living and dead descendants have used."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in proc.iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            # The name in brackets may hold spaces and brackets.
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        parents[int(entry.name)] = int(fields[1])
        # utime, stime, and those of children that were waited for.
        ticks[int(entry.name)] = sum(int(field) for field in fields[11:15])
    family = set(roots)
    grew = True
    while grew:
        members = {pid for pid, parent in parents.items() if parent in family}
        grew = not members <= family
        family |= members
    return sum(ticks.get(pid, 0) for pid in family)
