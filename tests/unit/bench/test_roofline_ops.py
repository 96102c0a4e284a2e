"""The ops that a roofline times are the engine's, on the data that they are said to read."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from pagemill import kernels
from pagemill.bench.roofline import attention
from pagemill.bench.roofline.attention import KV_DTYPES, Sequences, StepArrays, attention_group
from pagemill.bench.roofline.linear import FORMATS, has_format, linear_group, random_weight
from pagemill.bench.roofline.rows import row_op_group, row_ops
from pagemill.bench.roofline.shapes import Shapes
from pagemill.kernels import HeadShape, native
from pagemill.kernels.native import ThreadPool
from pagemill.kernels.packing import PackedLinear
from pagemill.runner.native_runner import NativeKVPool

pytestmark = pytest.mark.skipif(native.load() is None, reason="no native library")

TINY = Shapes("tiny", (("out", 32, 64),), HeadShape(4, 2, 16), 64, 96, 100)


@pytest.fixture
def pool() -> Iterator[ThreadPool]:
    library = native.load()
    assert library is not None
    pool = ThreadPool(library, 2)
    yield pool
    pool.close()


@pytest.mark.parametrize("format_name", FORMATS)
def test_random_weights_are_numbers_in_every_format(format_name: str) -> None:
    weight = random_weight(format_name, 40, 512)
    values = weight.dequantize()
    assert np.isfinite(values).all()
    assert len(np.unique(values)) > 4
    assert has_format(format_name, 96) is not format_name.endswith("_K")


@pytest.mark.parametrize("format_name", ["Q4_0", "float32"])
def test_every_copy_of_a_matrix_is_multiplied_in_a_run(
    pool: ThreadPool, monkeypatch: pytest.MonkeyPatch, format_name: str
) -> None:
    multiplied: list[PackedLinear] = []
    compute = kernels.linear

    def counting(x: torch.Tensor, weight: PackedLinear) -> torch.Tensor:
        multiplied.append(weight)
        return compute(x, weight)

    monkeypatch.setattr(kernels, "linear", counting)
    size = (48, 64)
    one = random_weight(format_name, *size).num_bytes
    with linear_group(pool, "out", size, format_name, (1, 5), 10 * one - 1, one) as ops:
        from_memory = [op for op in ops if not op.in_cache]
        assert [op.num_rows for op in from_memory] == [1, 5]
        assert {op.ops_per_run for op in from_memory} == {10}
        addresses = {w.segments[0].weight.data.ctypes.data for w in multiplied[:10]}
        assert len(addresses) == 10
        assert len({w.segments[0].weight.data.ctypes.data for w in multiplied[10:]}) == 1
        read = 4 * 64 if format_name == "float32" else 64 + 2 * 16
        assert [op.num_bytes for op in from_memory] == [
            one + count * (read + 4 * 48) for count in (1, 5)
        ]
        assert [op.num_macs for op in from_memory] == [48 * 64, 5 * 48 * 64]
        for op in ops:
            op.run()
    with linear_group(pool, "out", size, format_name, (1,), one, one - 1) as ops:
        assert [op.in_cache for op in ops] == [False], "too large for the cache"


def test_sequences_have_blocks_of_their_own() -> None:
    arrays = StepArrays(Sequences(5, 40, 2))
    blocks = arrays.block_tables.ravel().tolist()
    assert sorted(blocks) == list(range(5 * 3))
    assert blocks != sorted(blocks), "in random order, as in a pool that was in use"
    assert arrays.positions.tolist() == [38, 39] * 5
    slots = arrays.slots(np.repeat(np.arange(5), 40), np.tile(np.arange(40), 5))
    assert len(np.unique(slots)) == 5 * 40
    assert arrays.slot_mapping.tolist() == [
        int(arrays.block_tables[i][2]) * 16 + position - 32
        for i in range(5)
        for position in (38, 39)
    ]


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_all_keys_and_values_are_there_before_attention_is_timed(
    pool: ThreadPool, monkeypatch: pytest.MonkeyPatch, kv_dtype: str
) -> None:
    """A page that nobody wrote to is the system's one page of zeros, which any cache holds."""
    pools = []

    class Watched(NativeKVPool):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            pools.append(self)

    monkeypatch.setattr(attention, "NativeKVPool", Watched)
    monkeypatch.setattr(attention, "_ROWS_WRITTEN_AT_ONCE", 7)
    sequences = Sequences(3, 32, 1)
    kv_bytes = sequences.kv_bytes(TINY, kv_dtype)
    with attention_group(pool, TINY, kv_dtype, sequences, 3 * kv_bytes) as (op,):
        assert op.ops_per_run == 3
        assert op.num_bytes == kv_bytes + 3 * 2 * 4 * 4 * 16
        op.run()
        (whole,) = pools
        # Zeros are what rounds to 0, and what aligns.
        assert np.count_nonzero(whole._blocks[0]) > 0.9 * 3 * kv_bytes
        layers = attention._layers(whole.layer(0), 3)
        starts = [layer.blocks - layers[0].blocks for layer in layers]
        assert starts == [0, 6 * layers[0].block_bytes, 12 * layers[0].block_bytes]
        assert {layer.num_blocks for layer in layers} == {6}


def test_each_row_op_runs_at_every_number_of_rows(pool: ThreadPool) -> None:
    names = set()
    for row_op in row_ops(TINY, 3):
        names.add((row_op.name, row_op.format))
        with partial(row_op_group, pool, row_op, (1, 3), 100)() as ops:
            assert [op.num_bytes for op in ops] == [row_op.row_bytes, 3 * row_op.row_bytes]
            for op in ops:
                op.run()
    assert ("add and RMSNorm 64", "float32") in names
    assert {("rotate and write KV", kv_dtype) for kv_dtype in KV_DTYPES} <= names
    # 64 columns: 4 bytes in, 1 out, and for each 32 a scale, two sums and a total.
    rounding = next(r for r in row_ops(TINY, 3) if r.name == "round to 8 bits 64")
    assert rounding.row_bytes == 64 * 5 + 2 * 16
