"""Linear maps over packed weights, of every format.

With one row a weight is used once, so a matrix that the last level cache holds would be measured
there, where a model's next matrix never is. Copies of it, together far larger than the cache,
follow one another in one program, as the layers of a model do. A second program repeats one matrix:
what the kernel does when memory does not hold it up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, cast

import numpy as np
import torch

from pagemill import kernels
from pagemill.bench.roofline.op import Op
from pagemill.bench.roofline.peaks import Arithmetic
from pagemill.errors import ConfigError
from pagemill.kernels.native import ThreadPool
from pagemill.kernels.packing import PackedLinear, PackedWeight, empty_weight
from pagemill.kernels.recorded import Rows
from pagemill.kernels.recorder import Recorder
from pagemill.kernels.row_ops_library import StepStruct

_PACKED_NAMES: Final = {
    **{name: name for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")},
    "int8": "int8-32",
    "int8-row": "int8-row",
    "int4": "int4-32",
    "float32": "F32",
    "bfloat16": "BF16",
    "float16": "F16",
}
FORMATS: Final = tuple(_PACKED_NAMES)
_OPS_IN_CACHE: Final = 16


def formats_named(names: str | None) -> Sequence[str]:
    """The formats in a list like ``Q4_0,float32``; all for None.

    Raises:
        ConfigError: one of them does not exist.
    """
    if names is None:
        return FORMATS
    chosen = names.split(",")
    for name in chosen:
        if name not in FORMATS:
            raise ConfigError(f"--formats: no format {name!r}; there are {', '.join(FORMATS)}")
    return chosen


def has_format(format_name: str, num_cols: int) -> bool:
    """Whether rows of ``num_cols`` are whole blocks: those of the K-quants have 256 columns."""
    try:
        empty_weight(_PACKED_NAMES[format_name], 1, num_cols)
    except ValueError:
        return False
    return True


def random_weight(format_name: str, num_rows: int, num_cols: int) -> PackedWeight:
    """A matrix of some finite numbers, without the time that packing takes."""
    weight = empty_weight(_PACKED_NAMES[format_name], num_rows, num_cols)
    # Such bytes are finite numbers in every format, whatever part of it they fall on: as float16
    # scales 0.008 to 0.45, as float32 1e-19 to 1e-5.
    rng = np.random.default_rng(0)
    weight.data[:] = rng.integers(0x20, 0x38, weight.num_bytes, dtype=np.uint8)
    return weight


def arithmetic_of(weight: PackedWeight) -> Arithmetic:
    """What its products are computed in."""
    return "float32" if weight.is_float else "int8"


def activation_bytes(weight: PackedWeight, num_rows: int) -> int:
    """Bytes of the rows that a map reads, and of those that it writes."""
    columns = weight.num_cols
    if weight.reads_rows_in == 0:
        read = 4 * columns
    elif weight.reads_rows_in == 8:
        # For each 32 columns one scale, two sums and one total, of four bytes each.
        read = -(-columns // 32) * (32 + 16)
    else:
        # 14 bits in two bytes; for each 2,048 columns a scale and a sum.
        read = -(-columns // 64) * 64 * 2 + -(-columns // 2048) * 8
    return num_rows * (read + 4 * weight.num_rows)


@contextmanager
def linear_group(
    pool: ThreadPool,
    name: str,
    size: tuple[int, int],
    format_name: str,
    rows: Sequence[int],
    working_set_bytes: int,
    cache_bytes: int,
) -> Iterator[Sequence[Op]]:
    """The ops of one matrix.

    Args:
        pool: threads that compute.
        name: of the layer.
        size: N and K.
        format_name: one of `FORMATS`.
        rows: every M.
        working_set_bytes: that all copies together have at least.
        cache_bytes: a matrix up to this size is measured in the cache, too.
    """
    first = random_weight(format_name, *size)
    copies = [first]
    while len(copies) * first.num_bytes < working_set_bytes:
        copy = empty_weight(_PACKED_NAMES[format_name], *size)
        copy.data[:] = first.data
        copies.append(copy)
    programs = [(_record(pool, max(rows), copies), len(copies), False)]
    if first.num_bytes <= cache_bytes:
        programs.append((_record(pool, max(rows), [first] * _OPS_IN_CACHE), _OPS_IN_CACHE, True))
    ops = [
        Op(
            kind="linear",
            name=f"{name} {size[0]} x {size[1]}",
            format=format_name,
            num_rows=num_rows,
            num_bytes=first.num_bytes + activation_bytes(first, num_rows),
            num_macs=num_rows * size[0] * size[1],
            arithmetic=arithmetic_of(first),
            in_cache=in_cache,
            run=lambda recorder=recorder, num_rows=num_rows: recorder.run(  # type: ignore[misc]
                StepStruct(num_tokens=num_rows), None
            ),
            ops_per_run=ops_per_run,
        )
        for recorder, ops_per_run, in_cache in programs
        for num_rows in rows
    ]
    try:
        yield ops
    finally:
        for recorder, _, _ in programs:
            recorder.close()


def _record(pool: ThreadPool, max_rows: int, weights: Sequence[PackedWeight]) -> Recorder:
    """All of ``weights`` applied to the same rows, one after another."""
    recorder = Recorder(pool, max_rows)
    x = random_rows(recorder, max_rows, weights[0].num_cols)
    for weight in weights:
        kernels.linear(cast("torch.Tensor", x), PackedLinear([weight]))
    recorder.finish()
    return recorder


def random_rows(recorder: Recorder, num_rows: int, width: int) -> Rows:
    """Standard normal numbers, ``[num_rows, width]``."""
    rows = recorder.input(width)
    rows.array[:num_rows] = np.random.default_rng(1).standard_normal((num_rows, width), np.float32)
    return rows
