"""What `Recorder.finish` makes of a recording: who writes what, and where."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pagemill.kernels import native
from pagemill.kernels.native import ThreadPool
from pagemill.kernels.packing import PackedLinear, StoredRows, StoredType, pack_rows
from pagemill.kernels.recorded import Buffer, RecordedOp, Rows, lay_out
from pagemill.kernels.recorder import Recorder
from pagemill.kernels.row_ops_library import StepStruct
from tests.unit.native.packing_helpers import random_blocks

SIZE = 96
needs_library = pytest.mark.skipif(native.load() is None, reason="no native library")


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    library = native.load()
    assert library is not None
    pool = ThreadPool(library, 2)
    recorder = Recorder(pool, 8)
    yield recorder
    recorder.close()
    pool.close()


def quantized_weight() -> PackedLinear:
    return pack_rows([StoredRows(StoredType.Q8_0, random_blocks(StoredType.Q8_0, 40, SIZE), SIZE)])


def float_weight() -> PackedLinear:
    dense = torch.randn(40, SIZE, generator=torch.Generator().manual_seed(1))
    return pack_rows([StoredRows.of_tensor(dense)])


def norm(recorder: Recorder, x: Rows) -> Rows:
    weight = torch.linspace(0.5, 2, SIZE)
    return recorder.norm(x, None, weight, None, 1e-5, subtract_mean=False)[0]


def linear(recorder: Recorder, x: Rows, weight: PackedLinear) -> Rows:
    out = recorder.linear(x, weight, None)
    assert isinstance(out, Rows)
    return out


def run(recorder: Recorder, x: Rows) -> None:
    x.array[:] = np.random.default_rng(0).standard_normal(x.array.shape, np.float32)
    recorder.run(StepStruct(num_tokens=len(x.array)), None)


def kinds_of(recorder: Recorder) -> list[str]:
    """The method of the recorder that recorded each op."""
    return [op.emit.__qualname__.split(".")[1] for op in recorder._ops]


@needs_library
def test_rows_that_only_quantized_maps_read_are_never_written_as_floats(
    recorder: Recorder,
) -> None:
    x = recorder.input(SIZE)
    normed = norm(recorder, x)
    out = linear(recorder, normed, quantized_weight())
    again = linear(recorder, normed, quantized_weight())
    assert kinds_of(recorder) == ["norm", "linear", "linear"]
    recorder.finish(out, again)
    assert normed.floats.arrays == []
    run(recorder, x)
    assert np.array_equal(out.array, again.array)
    assert np.abs(out.array).min() > 0


@needs_library
def test_rows_that_maps_of_both_kinds_read_are_written_twice(recorder: Recorder) -> None:
    x = recorder.input(SIZE)
    normed = norm(recorder, x)
    outs = [linear(recorder, normed, weight()) for weight in (quantized_weight, float_weight)]
    recorder.finish(*outs)
    assert len(normed.floats.arrays) == 1
    assert len(normed.in_bits[8].arrays) == 5
    run(recorder, x)
    assert all(np.abs(out.array).min() > 0 for out in outs)


@needs_library
def test_rows_that_float_maps_alone_read_are_not_rounded(recorder: Recorder) -> None:
    normed = norm(recorder, recorder.input(SIZE))
    recorder.finish(linear(recorder, normed, float_weight()))
    assert all(buffer.arrays == [] for buffer in normed.in_bits.values())


@needs_library
def test_an_op_that_cannot_round_is_followed_by_one_that_does_and_the_bits_are_the_same(
    recorder: Recorder,
) -> None:
    x = recorder.input(SIZE)
    normed = norm(recorder, x)
    fused = linear(recorder, normed, quantized_weight())
    copied = recorder.add(normed, zeros := recorder.input(SIZE))
    apart = [linear(recorder, copied, quantized_weight()) for _ in range(2)]
    assert kinds_of(recorder) == ["norm", "linear", "add", "quantize", "linear", "linear"]
    recorder.finish(fused, *apart)
    assert not zeros.array.any()
    run(recorder, x)
    assert np.array_equal(fused.array, apart[0].array)
    assert np.array_equal(fused.array, apart[1].array)


@needs_library
@pytest.mark.parametrize(("head_dim", "is_rounded"), [(32, True), (48, False)])
def test_attention_rounds_if_no_group_crosses_heads(
    recorder: Recorder, head_dim: int, is_rounded: bool
) -> None:
    from pagemill.kernels.row_ops_library import KVCacheStruct, row_ops_library

    cache = KVCacheStruct()
    row_ops_library().pagemill_kv_cache(0, 1, 16, 1, head_dim, cache)
    num_heads = SIZE // head_dim
    qkv = recorder.input((num_heads + 2) * head_dim)
    attended = recorder.attention(qkv, num_heads, cache, 1.0, None, None)
    linear(recorder, attended, quantized_weight())
    rounding = [] if is_rounded else ["quantize"]
    assert kinds_of(recorder) == ["attention", *rounding, "linear"]
    recorder.finish()
    assert (attended.floats.arrays == []) is is_rounded


@needs_library
def test_a_sum_takes_the_place_of_its_residual(recorder: Recorder) -> None:
    x, residual = recorder.input(SIZE), recorder.input(SIZE)
    weight = torch.ones(SIZE)
    out, total = recorder.norm(x, residual, weight, None, 1e-5, subtract_mean=False)
    # The sum must survive the ops that need memory in between.
    kept = linear(recorder, norm(recorder, out), float_weight())
    twice = recorder.add(total, total)
    recorder.finish(kept, twice)
    residual.array[:] = 1.0
    run(recorder, x)
    assert np.array_equal(twice.array, 2 * (x.array + 1.0))


def test_a_buffer_without_readers_has_no_memory_unless_it_is_all_that_an_op_writes() -> None:
    used, unused, alone, second = (Buffer((4, np.float32)) for _ in range(4))
    ops = [
        RecordedOp(lambda: None, reads=[], writes=[unused, used]),
        RecordedOp(lambda: None, reads=[used], writes=[alone, second]),
    ]
    lay_out(ops, [], 3)
    assert [len(buffer.arrays) for buffer in (used, unused, alone, second)] == [1, 0, 1, 0]


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[RecordedOp], list[Buffer]]:
    """Ops that read what earlier ones have written, and some buffers to keep."""
    ops: list[RecordedOp] = []
    written: list[Buffer] = []
    for _ in range(draw(st.integers(1, 15))):
        reads = draw(st.lists(st.sampled_from(written), max_size=3)) if written else []
        widths = draw(st.lists(st.sampled_from([4, 8]), min_size=1, max_size=2))
        writes = [Buffer((width, np.float32), (width, np.int8)) for width in widths]
        written += writes
        ops.append(RecordedOp(lambda: None, reads, writes))
    return ops, draw(st.lists(st.sampled_from(written), max_size=2, unique=True))


@given(programs())
def test_buffers_share_memory_only_when_their_lives_do_not_overlap(
    program: tuple[list[RecordedOp], list[Buffer]],
) -> None:
    ops, kept = program
    lay_out(ops, kept, 3)
    lives: dict[Buffer, tuple[int, int]] = {}
    for i, op in enumerate(ops):
        lives.update((buffer, (i, i)) for buffer in op.writes if buffer.arrays)
        for buffer in op.reads:
            assert buffer.arrays, "an op reads what has no memory"
            lives[buffer] = (lives[buffer][0], i)
    lives.update((buffer, (lives[buffer][0], len(ops))) for buffer in kept)
    for (a, (a_first, a_last)), (b, (b_first, b_last)) in combinations(lives.items(), 2):
        if a_first <= b_last and b_first <= a_last:
            assert not memory_of(a) & memory_of(b)


def memory_of(buffer: Buffer) -> set[Any]:
    return {array.ctypes.data for array in buffer.arrays}


def test_memory_is_used_again() -> None:
    chain = [Buffer((4, np.float32)) for _ in range(10)]
    ops = [RecordedOp(lambda: None, [], chain[:1])]
    ops += [RecordedOp(lambda: None, [a], [b]) for a, b in pairwise(chain)]
    lay_out(ops, chain[-1:], 3)
    assert len(set().union(*map(memory_of, chain))) == 2
