"""Runs a roofline and reports it."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from pagemill.bench.environment import CpuWatch, describe_environment
from pagemill.bench.progress import Progress
from pagemill.bench.report import read_json, replace_generated, write_json
from pagemill.bench.roofline import report
from pagemill.bench.roofline.attention import (
    CONTEXTS,
    KV_DTYPES,
    PREFILL_CONTEXTS,
    PREFILL_ROWS,
    Sequences,
    attention_group,
)
from pagemill.bench.roofline.linear import formats_named, has_format, linear_group
from pagemill.bench.roofline.op import Group, measure
from pagemill.bench.roofline.peaks import (
    PeakMeter,
    available_memory_bytes,
    last_level_cache_bytes,
    measure_peaks,
    read_buffer_bytes,
)
from pagemill.bench.roofline.rows import row_op_group, row_ops
from pagemill.bench.roofline.shapes import NUM_ROWS, Shapes, shapes_named
from pagemill.errors import ConfigError, EngineError
from pagemill.kernels import native
from pagemill.kernels.native import NativeLibrary, ThreadPool

NAME: Final = "roofline"
_SMALLEST_WORKING_SET_BYTES: Final = 128 << 20
_PEAK_SAMPLES: Final = 15


def measured_read_bandwidth(num_threads: int) -> float:
    """Bytes a second that ``num_threads`` of our threads read from memory: the median of 15 times.

    Raises:
        EngineError: there is no native library.
    """
    with PeakMeter(_library(), num_threads) as meter:
        return statistics.median(meter.read() for _ in range(_PEAK_SAMPLES))


def _library() -> NativeLibrary:
    library = native.load()
    if library is None:
        raise EngineError(f"a roofline is of the native kernels: {native.unavailable_reason()}")
    return library


@dataclass(frozen=True)
class Limits:
    """How much memory the ops may use."""

    working_set_bytes: int
    """That copies of weights, keys or values take turns in."""
    cache_bytes: int
    """Weights up to this size are measured in the cache, too: half of the last level's."""
    largest_bytes: int
    """Steps whose keys and values are larger are left out."""

    @classmethod
    def of_this_machine(cls) -> Limits:
        """By the size of the cache, within a quarter of the memory."""
        cache = last_level_cache_bytes() or 0
        most = available_memory_bytes() // 4
        wanted = max(_SMALLEST_WORKING_SET_BYTES, 4 * cache)
        return cls(min(wanted, most), cache // 2, min(4 * wanted, most))


@dataclass(frozen=True, kw_only=True)
class RooflineCommand:
    """A parsed ``pagemill bench roofline``; call it to run it.

    Attributes:
        num_threads: that compute.
        repeats: samples of each op.
        shapes: ``smollm2``, ``large`` or ``all``.
        formats: of weights, separated by commas; None: all.
        json: where everything goes.
        docs: the document whose tables are replaced.
        from_json: report this result and measure nothing.

    Raises:
        ConfigError: there are no such shapes or formats, or a result is to be read and written.
    """

    num_threads: int
    repeats: int
    shapes: str = "smollm2"
    formats: str | None = None
    json: Path | None = None
    docs: Path | None = None
    from_json: Path | None = None

    def __post_init__(self) -> None:
        shapes_named(self.shapes)
        formats_named(self.formats)
        if self.from_json is not None and self.json is not None:
            raise ConfigError("--from-json measures nothing that --json could write; drop one")

    def __call__(self) -> int:
        """Measure, or read what was; print and write; returns the exit code."""
        result = self._measure() if self.from_json is None else read_json(self.from_json, NAME)
        if self.json is not None:
            write_json(self.json, result)
        if self.docs is not None:
            replace_generated(self.docs, NAME, report.markdown(result))
        for table in report.tables(result):
            table.print()
            sys.stdout.write("\n")
        return 0

    def _measure(self) -> dict[str, Any]:
        library, limits = _library(), Limits.of_this_machine()
        environment = describe_environment(
            num_threads=self.num_threads, repeats=self.repeats, seed=None
        )
        counts = sorted({1, self.num_threads})
        peaks = {
            str(count): measure_peaks(library, count, max(self.repeats, _PEAK_SAMPLES))
            for count in counts
        }
        with CpuWatch() as watch, PeakMeter(library, self.num_threads) as meter:
            ops = list(self._measure_ops(meter, limits))
        return {
            "benchmark": NAME,
            "environment": environment,
            "watch": watch.to_json(),
            "memory": {
                "last_level_cache_bytes": last_level_cache_bytes(),
                "read_buffer_bytes": read_buffer_bytes(),
                "working_set_bytes": limits.working_set_bytes,
            },
            "peaks": peaks,
            "ops": ops,
        }

    def _measure_ops(self, meter: PeakMeter, limits: Limits) -> Iterator[dict[str, Any]]:
        groups = [
            (title, group)
            for shapes in shapes_named(self.shapes)
            for title, group in all_groups(shapes, formats_named(self.formats), meter.pool, limits)
        ]
        with Progress(len(groups)) as progress:
            for title, group in groups:
                progress.doing(title)
                for op in measure(group, meter, self.repeats):
                    yield op.to_json()
                progress.done()


def all_groups(
    shapes: Shapes, formats: Sequence[str], pool: ThreadPool, limits: Limits
) -> Iterator[tuple[str, Group]]:
    """Everything that is measured of one size, with a title; nothing is allocated yet."""
    for name, num_rows, num_cols in shapes.linears:
        for format_name in formats:
            if has_format(format_name, num_cols):
                yield (
                    f"{name} {format_name}",
                    partial(
                        linear_group,
                        pool,
                        name,
                        (num_rows, num_cols),
                        format_name,
                        NUM_ROWS,
                        limits.working_set_bytes,
                        limits.cache_bytes,
                    ),
                )
    for kv_dtype in KV_DTYPES:
        for sequences in _all_sequences():
            if sequences.kv_bytes(shapes, kv_dtype) <= limits.largest_bytes:
                group = partial(
                    attention_group, pool, shapes, kv_dtype, sequences, limits.working_set_bytes
                )
                yield f"attention {kv_dtype} {sequences.name}", group
    for row_op in row_ops(shapes, max(NUM_ROWS)):
        yield row_op.name, partial(row_op_group, pool, row_op, NUM_ROWS, shapes.vocab_size)


def _all_sequences() -> Iterator[Sequences]:
    for context in CONTEXTS:
        for num_rows in NUM_ROWS:
            yield Sequences(num_rows, context, 1)
    for context in PREFILL_CONTEXTS:
        yield Sequences(1, context, PREFILL_ROWS)
