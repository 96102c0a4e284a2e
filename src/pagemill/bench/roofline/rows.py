"""The ops between the linear maps, each on its rows: norm, rotary embedding, activation, rounding.

Their rows were written by the op before and lie in the caches, where these are measured, too. Held
against the bandwidth of memory they may come out above 100%: the share then says how far they are
from mattering.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, NamedTuple, cast

import numpy as np
import torch

from pagemill import kernels
from pagemill.bench.roofline.attention import KV_DTYPES, Sequences, StepArrays
from pagemill.bench.roofline.linear import random_rows, random_weight
from pagemill.bench.roofline.op import Op
from pagemill.bench.roofline.shapes import Shapes
from pagemill.kernels.native import ThreadPool
from pagemill.kernels.packing import PackedLinear
from pagemill.kernels.recorded import StepArray
from pagemill.kernels.recorder import Recorder
from pagemill.kernels.row_ops_library import StepStruct
from pagemill.layers.rope import RotaryTable
from pagemill.runner.native_runner import NativeKVPool

_OPS: Final = 128
_CONTEXT: Final = 128
_EMBEDDING_FORMATS: Final = ("Q4_0", "Q8_0", "float32", "bfloat16")

Record = Callable[[Recorder], None]


class RowOp(NamedTuple):
    """How an op is recorded, and what a row of it reads and writes."""

    name: str
    format: str
    row_bytes: int
    record: Record
    """Records the op `_OPS` times."""


def row_ops(shapes: Shapes, max_rows: int) -> Iterator[RowOp]:
    """Every op of these sizes; nothing is allocated until one is recorded."""
    hidden, wide = shapes.hidden_size, shapes.intermediate_size
    yield RowOp(
        f"add and RMSNorm {hidden}", "float32", 16 * hidden, partial(_norm, max_rows, hidden)
    )
    yield RowOp(f"SiLU and multiply {wide}", "float32", 12 * wide, partial(_act, max_rows, wide))
    for width in (hidden, wide):
        yield RowOp(
            f"round to 8 bits {width}",
            "int8",
            4 * width + width * 3 // 2,
            partial(_round, max_rows, width),
        )
    heads = shapes.heads
    for kv_dtype in KV_DTYPES:
        written = Sequences(1, 1, 1).kv_bytes(shapes, kv_dtype)
        query = heads.num_heads * heads.head_dim
        read = 4 * shapes.qkv_size
        record = partial(_rotary_write, shapes, kv_dtype, max_rows)
        yield RowOp("rotate and write KV", kv_dtype, read + 4 * query + written, record)
    for format_name in _EMBEDDING_FORMATS:
        stored = random_weight(format_name, 16, hidden).num_bytes // 16
        record = partial(_embed, shapes, format_name)
        yield RowOp(f"embedding {hidden}", format_name, stored + 4 * hidden, record)


@contextmanager
def row_op_group(
    pool: ThreadPool, row_op: RowOp, rows: Sequence[int], vocab_size: int
) -> Iterator[Sequence[Op]]:
    """One op at every number of rows."""
    recorder = Recorder(pool, max(rows))
    row_op.record(recorder)
    recorder.finish()
    ops = []
    for num_rows in rows:
        arrays = StepArrays(Sequences(num_rows, _CONTEXT, 1))
        # Rows of an embedding are apart from each other.
        arrays.token_ids[:] = np.random.default_rng(2).integers(0, vocab_size, num_rows)
        ops.append(
            Op(
                kind="rows",
                name=row_op.name,
                format=row_op.format,
                num_rows=num_rows,
                num_bytes=num_rows * row_op.row_bytes,
                num_macs=0,
                arithmetic=None,
                in_cache=True,
                run=partial(_run, recorder, arrays, arrays.struct()),
                ops_per_run=_OPS,
            )
        )
    try:
        yield ops
    finally:
        recorder.close()


def _run(recorder: Recorder, arrays: StepArrays, struct: StepStruct) -> None:
    recorder.run(struct, None)
    del arrays  # held until here: the struct points into them


def _norm(max_rows: int, width: int, recorder: Recorder) -> None:
    x, residual = (random_rows(recorder, max_rows, width) for _ in range(2))
    weight = torch.ones(width)
    for _ in range(_OPS):
        kernels.add_rms_norm(cast("torch.Tensor", x), cast("torch.Tensor", residual), weight, 1e-5)


def _act(max_rows: int, width: int, recorder: Recorder) -> None:
    gate_up = random_rows(recorder, max_rows, 2 * width)
    for _ in range(_OPS):
        kernels.act_and_mul(cast("torch.Tensor", gate_up), "silu")


def _round(max_rows: int, width: int, recorder: Recorder) -> None:
    rows = random_rows(recorder, max_rows, width)
    for _ in range(_OPS):
        recorder.quantize(rows, 8)


def _rotary_write(shapes: Shapes, kv_dtype: str, max_rows: int, recorder: Recorder) -> None:
    heads, config = shapes.heads, shapes.config(1, _CONTEXT)
    assert config.rope is not None
    rotation = RotaryTable(config.rope, _CONTEXT)
    rotation.up_to(_CONTEXT - 1)
    blocks = StepArrays(Sequences(max_rows, _CONTEXT, 1)).num_blocks
    cache = NativeKVPool(config, blocks, 16, kv_dtype)
    recorder.keep(cache)
    qkv = random_rows(recorder, max_rows, shapes.qkv_size)
    for _ in range(_OPS):
        kernels.rotary_write_kv(
            cast("torch.Tensor", qkv),
            heads,
            cache.layer(0),
            cast("torch.Tensor", None),
            cast("torch.Tensor", None),
            rotation=rotation,
        )


def _embed(shapes: Shapes, format_name: str, recorder: Recorder) -> None:
    table = PackedLinear([random_weight(format_name, shapes.vocab_size, shapes.hidden_size)])
    for _ in range(_OPS):
        kernels.embedding(cast("torch.Tensor", StepArray(recorder, is_positions=False)), table)
