"""Attention over a paged cache: decodes at several contexts, and a chunk of a prompt.

Keys and values are written by the engine's own op, into blocks in random order. As of weights there
are copies (layers) until all together are far larger than the last level cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple, cast

import numpy as np
import torch

from pagemill import kernels
from pagemill.batch import IntArray
from pagemill.bench.roofline.linear import random_rows
from pagemill.bench.roofline.op import Op
from pagemill.bench.roofline.shapes import Shapes
from pagemill.kernels import AttentionLayout
from pagemill.kernels.native import ThreadPool
from pagemill.kernels.recorder import Recorder
from pagemill.kernels.row_ops_library import KVCacheStruct, StepStruct
from pagemill.runner.native_runner import NativeKVPool

KV_DTYPES: Final = ("float32", "bfloat16", "int8")
CONTEXTS: Final = (128, 1024, 4096)
"""Of decodes."""
PREFILL_ROWS: Final = 256
PREFILL_CONTEXTS: Final = (256, 1024, 4096)
_BLOCK_SIZE: Final = 16
_ROWS_WRITTEN_AT_ONCE: Final = 1024


class Sequences(NamedTuple):
    """What a step attends with."""

    num_sequences: int
    context: int
    """Tokens of each, those of this step included."""
    rows_each: int
    """The last so many of them."""

    @property
    def num_rows(self) -> int:
        """M."""
        return self.num_sequences * self.rows_each

    @property
    def name(self) -> str:
        """For people."""
        if self.rows_each == 1:
            return f"decode, context {self.context}"
        return f"chunk of {self.rows_each}, context {self.context}"

    def kv_bytes(self, shapes: Shapes, kv_dtype: str) -> int:
        """Keys and values of one layer that the step reads."""
        head_dim = shapes.heads.head_dim
        number = {"float32": 4 * head_dim, "bfloat16": 2 * head_dim, "int8": head_dim + 4}
        return self.num_sequences * self.context * shapes.heads.num_kv_heads * 2 * number[kv_dtype]

    def num_macs(self, shapes: Shapes) -> int:
        """Two products of ``head_dim`` for each query head and token that a row sees."""
        seen = sum(self.context - i for i in range(self.rows_each)) * self.num_sequences
        return 2 * shapes.heads.num_heads * shapes.heads.head_dim * seen


class StepArrays:
    """The arrays of a step, and their `StepStruct`.

    Each sequence has its own blocks; ``seed`` shuffles them.
    """

    def __init__(self, sequences: Sequences, seed: int = 0) -> None:
        count, context, rows_each = sequences
        blocks_each = -(-context // _BLOCK_SIZE)
        self.num_blocks = count * blocks_each
        order = np.random.default_rng(seed).permutation(self.num_blocks)
        self.block_tables: IntArray = order.astype(np.int64).reshape(count, blocks_each)
        last = np.arange(context - rows_each, context, dtype=np.int64)
        self.positions: IntArray = np.tile(last, count)
        owners = np.repeat(np.arange(count), rows_each)
        self.slot_mapping = self.slots(owners, self.positions)
        self.query_start_loc: IntArray = np.arange(count + 1, dtype=np.int64) * rows_each
        self.context_lens: IntArray = np.full(count, context, np.int64)
        self.token_ids: IntArray = np.zeros(len(self.positions), np.int64)

    def slots(self, owners: IntArray, positions: IntArray) -> IntArray:
        """Where sequence ``owners[i]`` has its token at ``positions[i]``."""
        blocks = self.block_tables[owners, positions // _BLOCK_SIZE]
        found: IntArray = blocks * _BLOCK_SIZE + positions % _BLOCK_SIZE
        return found

    def struct(self) -> StepStruct:
        """As the library takes it; these arrays must outlive it."""
        return StepStruct(
            num_tokens=len(self.positions),
            num_sequences=len(self.context_lens),
            max_blocks=self.block_tables.shape[1],
            token_ids=self.token_ids.ctypes.data,
            positions=self.positions.ctypes.data,
            slot_mapping=self.slot_mapping.ctypes.data,
            query_start_loc=self.query_start_loc.ctypes.data,
            context_lens=self.context_lens.ctypes.data,
            block_tables=self.block_tables.ctypes.data,
        )


@contextmanager
def attention_group(
    pool: ThreadPool,
    shapes: Shapes,
    kv_dtype: str,
    sequences: Sequences,
    working_set_bytes: int,
) -> Iterator[Sequence[Op]]:
    """Attention of one step over the layers of a cache.

    Args:
        pool: threads that compute.
        shapes: its heads.
        kv_dtype: one of `KV_DTYPES`.
        sequences: that the step has.
        working_set_bytes: of keys and values over all layers, at least.
    """
    kv_bytes = sequences.kv_bytes(shapes, kv_dtype)
    num_layers = -(-working_set_bytes // kv_bytes)
    arrays = StepArrays(sequences)
    config = shapes.config(1, sequences.context)
    kv_pool = NativeKVPool(config, num_layers * arrays.num_blocks, _BLOCK_SIZE, kv_dtype)
    caches = _layers(kv_pool.layer(0), num_layers)
    _write_tokens(pool, shapes, caches, arrays, sequences)
    heads = shapes.heads
    recorder = Recorder(pool, sequences.num_rows)
    qkv = random_rows(recorder, sequences.num_rows, shapes.qkv_size)
    for cache in caches:
        kernels.paged_attention(
            cast("torch.Tensor", qkv),
            heads,
            cache,
            cast("AttentionLayout", None),
            scale=config.attention_scale,
        )
    recorder.finish()
    struct = arrays.struct()
    row_bytes = 2 * 4 * heads.num_heads * heads.head_dim
    try:
        yield [
            Op(
                kind="attention",
                name=sequences.name,
                format=kv_dtype,
                num_rows=sequences.num_rows,
                num_bytes=kv_bytes + sequences.num_rows * row_bytes,
                num_macs=sequences.num_macs(shapes),
                arithmetic="float32",
                in_cache=False,
                run=lambda: recorder.run(struct, None),
                ops_per_run=num_layers,
            )
        ]
    finally:
        recorder.close()
        del kv_pool  # its memory must live until here


def _layers(pool: KVCacheStruct, count: int) -> list[KVCacheStruct]:
    """One pool cut into the caches of ``count`` layers.

    The memory of an engine's layer is large enough for the system to give it huge pages, which that
    of a few sequences is not.
    """
    layers = []
    for index in range(count):
        layer = KVCacheStruct.from_buffer_copy(pool)
        layer.num_blocks = pool.num_blocks // count
        layer.blocks = pool.blocks + index * layer.num_blocks * pool.block_bytes
        layers.append(layer)
    return layers


def _write_tokens(
    pool: ThreadPool,
    shapes: Shapes,
    caches: Sequence[KVCacheStruct],
    arrays: StepArrays,
    sequences: Sequences,
) -> None:
    """Random keys and values for every token of every sequence, in all layers."""
    heads = shapes.heads
    count, context, _ = sequences
    at_once = min(_ROWS_WRITTEN_AT_ONCE, count * context)
    recorder = Recorder(pool, at_once)
    qkv = random_rows(recorder, at_once, shapes.qkv_size)
    for cache in caches:
        kernels.rotary_write_kv(
            cast("torch.Tensor", qkv),
            heads,
            cache,
            cast("torch.Tensor", None),
            cast("torch.Tensor", None),
        )
    recorder.finish()
    owners = np.repeat(np.arange(count), context)
    positions = np.tile(np.arange(context, dtype=np.int64), count)
    all_slots = arrays.slots(owners, positions)
    for begin in range(0, len(all_slots), at_once):
        slots = np.ascontiguousarray(all_slots[begin : begin + at_once])
        step = StepStruct(
            num_tokens=len(slots),
            positions=positions[begin:].ctypes.data,
            slot_mapping=slots.ctypes.data,
        )
        recorder.run(step, None)
    recorder.close()
