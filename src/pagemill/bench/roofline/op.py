"""An op to be timed, and how it is timed.

The speed of a machine drifts, above all where neighbours share its memory. So the peaks are
measured right before and after each sample of an op, and its shares are of their mean.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from pagemill.bench.roofline.peaks import Arithmetic, PeakMeter, Peaks

_SAMPLE_SECONDS: Final = 0.01


@dataclass(frozen=True, kw_only=True)
class Op:
    """One op at one number of rows."""

    kind: str
    """``linear``, ``attention`` or ``rows``."""
    name: str
    format: str
    """Of weights, or of keys and values."""
    num_rows: int
    num_bytes: int
    """Read and written; each weight, key and value once."""
    num_macs: int
    arithmetic: Arithmetic | None
    """The peak that ``num_macs`` is held against; None: there are no products to speak of."""
    in_cache: bool
    """Where weights, keys and values come from: the caches, or memory."""
    run: Callable[[], None] = field(repr=False)
    """Runs the op ``ops_per_run`` times, as a recorded program."""
    ops_per_run: int


class Sample(NamedTuple):
    """One measurement of an op."""

    seconds: float
    peaks: Peaks
    """Of that moment."""


@dataclass(frozen=True)
class OpResult:
    """What `measure` found of one op."""

    op: Op
    samples: Sequence[Sample]

    @property
    def seconds(self) -> float:
        """Of one op; the median."""
        return statistics.median(sample.seconds for sample in self.samples)

    @property
    def bandwidth_share(self) -> float:
        """Time that reading its bytes takes at the peak, as a share of the op's; the median."""
        op = self.op
        return statistics.median(
            op.num_bytes / s.peaks.read_bytes / s.seconds for s in self.samples
        )

    @property
    def arithmetic_share(self) -> float | None:
        """The same for its multiply-adds; None if it has none."""
        kind, macs = self.op.arithmetic, self.op.num_macs
        if kind is None:
            return None
        return statistics.median(macs / s.peaks.macs(kind) / s.seconds for s in self.samples)

    @property
    def bound(self) -> str:
        """``memory`` or ``arithmetic``: what the op would take the longer for."""
        arithmetic = self.arithmetic_share
        return (
            "memory" if arithmetic is None or self.bandwidth_share >= arithmetic else "arithmetic"
        )

    def to_json(self) -> dict[str, Any]:
        """Figures, and the samples that they come from."""
        op = self.op
        return {
            "kind": op.kind,
            "name": op.name,
            "format": op.format,
            "num_rows": op.num_rows,
            "in_cache": op.in_cache,
            "num_bytes": op.num_bytes,
            "num_macs": op.num_macs,
            "arithmetic": op.arithmetic,
            "seconds": self.seconds,
            "bandwidth_share": round(self.bandwidth_share, 4),
            "arithmetic_share": _rounded(self.arithmetic_share),
            "bound": self.bound,
            "samples": [
                {"seconds": s.seconds, "read_bytes": s.peaks.read_bytes}
                | ({} if op.arithmetic is None else {"macs": s.peaks.macs(op.arithmetic)})
                for s in self.samples
            ],
        }


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 4)


Group = Callable[[], AbstractContextManager[Sequence[Op]]]
"""Makes ops that share weights or keys and values, and frees those when it is left."""


def measure(group: Group, meter: PeakMeter, repeats: int) -> Iterator[OpResult]:
    """Time each op of a group ``repeats`` times: peaks, op, peaks, next op, peaks ..."""
    with group() as ops:
        for op in ops:
            op.run()  # pages, threads
        samples: list[list[Sample]] = [[] for _ in ops]
        for _ in range(repeats):
            before = meter.sample()
            for op, own in zip(ops, samples, strict=True):
                seconds = _seconds_of(op)
                after = meter.sample()
                own.append(Sample(seconds, before.mean_with(after)))
                before = after
        yield from map(OpResult, ops, samples)


def _seconds_of(op: Op) -> float:
    if op.in_cache:
        op.run()  # measuring the peaks has emptied the caches
    runs, began = 0, time.perf_counter()
    while True:
        op.run()
        runs += 1
        elapsed = time.perf_counter() - began
        if elapsed >= _SAMPLE_SECONDS:
            return elapsed / (runs * op.ops_per_run)
