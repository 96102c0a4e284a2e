"""The machine's own limits, measured with our loops on our threads."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Self

import numpy as np

from pagemill.errors import EngineError
from pagemill.kernels import peaks_library
from pagemill.kernels.native import NativeLibrary, ThreadPool

Arithmetic = Literal["int8", "float32"]

_SAMPLE_SECONDS: Final = 0.004
_ROUNDS: Final = 4096
_SMALLEST_BUFFER_BYTES: Final = 256 << 20
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


@dataclass(frozen=True)
class Peaks:
    """What the machine did in a second, at one moment or as the median of several."""

    read_bytes: float
    int8_macs: float
    float32_macs: float

    def macs(self, arithmetic: Arithmetic) -> float:
        """Multiply-adds a second of one kind."""
        return self.int8_macs if arithmetic == "int8" else self.float32_macs

    def mean_with(self, other: Peaks) -> Peaks:
        """Halfway between two moments."""
        return Peaks(
            (self.read_bytes + other.read_bytes) / 2,
            (self.int8_macs + other.int8_macs) / 2,
            (self.float32_macs + other.float32_macs) / 2,
        )

    @classmethod
    def over(cls, samples: list[Peaks], choose: Callable[[list[float]], float]) -> Peaks:
        """The median, or the largest, of each."""
        return cls(
            choose([peaks.read_bytes for peaks in samples]),
            choose([peaks.int8_macs for peaks in samples]),
            choose([peaks.float32_macs for peaks in samples]),
        )


class PeakMeter:
    """Measures `Peaks` in some 25 ms, with a pool of its own; close it.

    Args:
        library: the native library; its instruction set in use is what is measured.
        num_threads: the caller included.
        buffer_bytes: what is read, `read_buffer_bytes` by default.
    """

    def __init__(
        self, library: NativeLibrary, num_threads: int, buffer_bytes: int | None = None
    ) -> None:
        size = read_buffer_bytes() if buffer_bytes is None else buffer_bytes
        size -= size % peaks_library.READ_MULTIPLE_BYTES
        self.pool = ThreadPool(library, num_threads)
        # Written, so that there is memory behind each page.
        self._words = np.arange(size // 4, dtype=np.uint32)
        self._sum = int(self._words.sum(dtype=np.uint64)) % 2**32
        self._num_chunks = {"int8": num_threads, "float32": num_threads}
        first = self.sample()
        for kind, macs in (("int8", first.int8_macs), ("float32", first.float32_macs)):
            chunk_macs = self._multiply(kind)[0] / self._num_chunks[kind]
            wanted = round(macs * _SAMPLE_SECONDS / chunk_macs)
            self._num_chunks[kind] = max(4 * num_threads, wanted)

    def sample(self) -> Peaks:
        """Measure all three, once.

        Raises:
            EngineError: a loop's result is wrong, so that its time means nothing.
        """
        rates = []
        for kind in ("int8", "float32"):
            num_macs, seconds = self._multiply(kind)
            rates.append(num_macs / seconds)
        return Peaks(self.read(), *rates)

    def read(self) -> float:
        """Bytes read in a second, measured once."""
        began = time.perf_counter()
        found = peaks_library.read_words(self.pool, self._words)
        seconds = time.perf_counter() - began
        _check("read", found, self._sum)
        return self._words.nbytes / seconds

    def _multiply(self, kind: str) -> tuple[int, float]:
        """How many multiply-adds in how many seconds."""
        chunks, began = self._num_chunks[kind], time.perf_counter()
        if kind == "int8":
            done = peaks_library.multiply_bytes(self.pool, chunks, _ROUNDS, 3, 5)
            seconds = time.perf_counter() - began
            _check(kind, done.checksum, done.num_macs * 15 % 2**32)
        else:
            done = peaks_library.multiply_floats(self.pool, chunks, _ROUNDS, 3.0, 0.5)
            seconds = time.perf_counter() - began
            _check(kind, done.checksum, done.num_macs * 1.5)
        return done.num_macs, seconds

    def close(self) -> None:
        """End the threads."""
        self.pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _check(loop: str, found: float, expected: float) -> None:
    if found != expected:
        raise EngineError(f"the {loop} loop computed {found} instead of {expected}")


def measure_peaks(
    library: NativeLibrary, num_threads: int, num_samples: int
) -> dict[str, dict[str, float]]:
    """Medians and best of ``num_samples``, on a pool of ``num_threads``."""
    with PeakMeter(library, num_threads) as meter:
        samples = [meter.sample() for _ in range(num_samples)]
    median, best = Peaks.over(samples, statistics.median), Peaks.over(samples, max)
    return {
        name: {"median": getattr(median, name), "best": getattr(best, name)}
        for name in ("read_bytes", "int8_macs", "float32_macs")
    }


def last_level_cache_bytes(caches: Path = _CACHES) -> int | None:
    """Size of the largest cache as the system states it; None where it does not.

    A virtual machine may state its host's, most of which belongs to neighbours.
    """
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    sizes = []
    for path in caches.glob("index*/size"):
        text = path.read_text().strip()
        if text[-1:] in units and text[:-1].isdecimal():
            sizes.append(int(text[:-1]) * units[text[-1]])
    return max(sizes, default=None)


def available_memory_bytes(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Memory that can be had without swapping; a quarter of all where the system does not tell."""
    try:
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4


def read_buffer_bytes() -> int:
    """256 MiB, or eight times the largest cache; at most a quarter of the memory there is."""
    cache_bytes = last_level_cache_bytes() or 0
    return min(max(_SMALLEST_BUFFER_BYTES, 8 * cache_bytes), available_memory_bytes() // 4)
