"""Runs a model's steps with the native CPU kernels, as one recorded program."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from pagemill.batch import Batch, BlockMove, StepResult
from pagemill.kernels.native import NativeLibrary, ThreadPool
from pagemill.kernels.recorded import Rows, StepArray
from pagemill.kernels.recorder import Recorder
from pagemill.kernels.row_ops_library import KVCacheStruct, StepStruct, row_ops_library
from pagemill.model_config import ModelConfig
from pagemill.models.protocol import Model
from pagemill.pooling import add_rows
from pagemill.runner.device_batch import DeviceBatch
from pagemill.runner.kv_pool import KVPool
from pagemill.runner.logits_pieces import LOGITS_ROWS, logits_pieces, sample_and_score
from pagemill.runner.swap_memory import SwapMemory
from pagemill.sampling.native import NativeVocabulary
from pagemill.sampling.vocabulary import FloatArray

if TYPE_CHECKING:
    import torch

_NOTHING = ctypes.c_char * 0
_KV_TYPES = {"float32": 0, "bfloat16": 1, "int8": 2}  # the library's numbers


def native_block_bytes(config: ModelConfig, block_size: int, kv_dtype: str) -> int:
    """Bytes of one block's keys and values over all layers."""
    return config.num_layers * int(_layer_cache(config, 1, block_size, kv_dtype).block_bytes)


def _layer_cache(
    config: ModelConfig, num_blocks: int, block_size: int, kv_dtype: str
) -> KVCacheStruct:
    """The layout of one layer's cache, without memory."""
    cache = KVCacheStruct()
    heads = (config.num_kv_heads, config.head_dim)
    row_ops_library().pagemill_kv_cache(_KV_TYPES[kv_dtype], num_blocks, block_size, *heads, cache)
    return cache


class NativeKVPool:
    """Keys and values of every layer, in the native kernels' layout (``cpu/kv_cache.hpp``).

    A layer is one piece of memory, a block one contiguous part of it. Pages that no block has been
    written to cost nothing.
    """

    def __init__(
        self, config: ModelConfig, num_blocks: int, block_size: int, kv_dtype: str = "float32"
    ) -> None:
        self._layers: list[KVCacheStruct] = []
        self._blocks: list[npt.NDArray[np.uint8]] = []
        """Of each layer, ``[num_blocks, block_bytes]``."""
        for _ in range(config.num_layers):
            cache = _layer_cache(config, num_blocks, block_size, kv_dtype)
            memory = np.zeros(num_blocks * cache.block_bytes + 64, np.uint8)
            start = -memory.ctypes.data % 64
            cache.blocks = memory.ctypes.data + start
            blocks = memory[start : start + num_blocks * cache.block_bytes]
            self._blocks.append(blocks.reshape(num_blocks, cache.block_bytes))
            self._layers.append(cache)

    def layer(self, index: int) -> KVCacheStruct:
        """Keys and values of layer ``index``."""
        return self._layers[index]

    def read_block(self, block_id: int) -> bytes:
        """A block of every layer, one after another."""
        return b"".join(blocks[block_id].tobytes() for blocks in self._blocks)

    def write_block(self, block_id: int, content: bytes) -> None:
        """Put back what `read_block` gave."""
        parts = np.frombuffer(content, np.uint8).reshape(len(self._blocks), -1)
        for blocks, part in zip(self._blocks, parts, strict=True):
            blocks[block_id] = part

    def move_blocks(
        self, threads: ThreadPool, moves: Sequence[BlockMove], swap: SwapMemory
    ) -> None:
        """Make ``moves``, as if one after another, on ``threads``."""
        layers = (KVCacheStruct * len(self._layers))(*self._layers)
        flat = np.array(moves, np.int64)
        row_ops_library().pagemill_move_blocks(
            threads.handle, layers, len(layers), flat.ctypes.data, len(moves), swap.address
        )


class _StepToRecord:
    """What a model reads of a batch, while it is recorded."""

    def __init__(self, recorder: Recorder) -> None:
        self.token_ids = StepArray(recorder, is_positions=False)
        self.positions = StepArray(recorder, is_positions=True)
        self.slot_mapping = None
        self.layout = None
        self.max_position = 0


class NativeRunner:
    """A `pagemill.batch.ModelRunner` on the native kernels; owns the KV pool and the threads.

    Args:
        model: built with packed weights.
        config: of the model.
        library: the native library.
        num_kv_blocks: blocks in the pool.
        block_size: token slots in a block.
        kv_dtype: ``float32``, ``bfloat16`` or ``int8``: how keys and values are kept.
        swap: where blocks go that are moved out of the pool.
        max_num_batched_tokens: the largest number of rows in a step.
        num_threads: that compute, the caller included.
        cpus: that the threads are pinned to, see `ThreadPool`; empty: none is pinned.
    """

    def __init__(
        self,
        model: Model,
        config: ModelConfig,
        library: NativeLibrary,
        *,
        num_kv_blocks: int,
        block_size: int,
        kv_dtype: str = "float32",
        swap: SwapMemory | None = None,
        max_num_batched_tokens: int,
        num_threads: int,
        cpus: Sequence[int] = (),
    ) -> None:
        self.vocab_size = config.vocab_size
        self._pool = ThreadPool(library, num_threads, cpus)
        self._vocabulary = NativeVocabulary(self._pool)
        self._kv = NativeKVPool(config, num_kv_blocks, block_size, kv_dtype)
        self.swap = swap or SwapMemory.none()
        """Where blocks are that were moved out of the pool."""
        self._rotations = model.rotations
        # One program computes a step up to the first piece of its logits, another one each further
        # piece: between two calls Python comes back to caches full of weights.
        self._program = Recorder(self._pool, max_num_batched_tokens)
        hidden = model.forward(
            cast("DeviceBatch", _StepToRecord(self._program)), cast("KVPool", self._kv)
        )
        self._hidden = cast("Rows", hidden)
        """Of all rows of the last step, behind the final norm."""
        _record_head(model, self._program, self._hidden)
        self._program.finish(self._hidden)
        self._head = Recorder(self._pool, min(LOGITS_ROWS, max_num_batched_tokens))
        _record_head(model, self._head, self._hidden)
        self._head.finish()
        self._logits = np.empty((0, self.vocab_size), np.float32)

    def move_blocks(self, moves: Sequence[BlockMove]) -> None:
        """Make ``moves``, as if one after another in this order."""
        self._kv.move_blocks(self._pool, moves, self.swap)

    def read_block(self, block_id: int) -> bytes:
        """The keys and values of a block in all layers."""
        return self._kv.read_block(block_id)

    def write_block(self, block_id: int, content: bytes) -> None:
        """Put back what `read_block` gave, into the same block or another."""
        self._kv.write_block(block_id, content)

    def execute(self, batch: Batch) -> StepResult:
        """Write the KV of the batch's tokens, then sample, score and pool what asks for it."""
        result = StepResult(sampled=[], scored=[])

        def use_logits(first: int, logits: FloatArray) -> None:
            sample_and_score(batch, first, logits, result, self._vocabulary)

        self.run(batch, use_logits)
        for task in batch.pooling:
            result.pooled.append(add_rows(task.total, self._hidden.array[task.rows]))
        return result

    def run(self, batch: Batch, use_logits: Callable[[int, FloatArray], None]) -> None:
        """Run a step and hand out its logits a piece at a time.

        Args:
            batch: the step.
            use_logits: called with the first row of a piece and its logits, float32
                ``[rows, vocab_size]``, in memory that the next piece is written to.
        """
        last_position = int(batch.context_lens.max(initial=1)) - 1
        for rotation in self._rotations:
            rotation.compute_to(last_position)
        step = _step_of(batch)
        if step.num_logits == 0:
            self._program.run(step, self._logits)
        indices, program = step.logits_indices, self._program
        for first, count in logits_pieces(batch):
            if len(self._logits) < count:
                self._logits = np.empty((count, self.vocab_size), np.float32)
            step.num_logits = count
            step.logits_indices = indices + first * batch.logits_indices.itemsize
            program.run(step, self._logits)
            use_logits(first, self._logits[:count])
            program = self._head

    def close(self) -> None:
        """Release programs, threads, weights and the KV pool."""
        self._program.close()
        self._head.close()
        self._pool.close()
        del self._program, self._head, self._hidden, self._kv, self.swap


def _record_head(model: Model, recorder: Recorder, hidden: Rows) -> None:
    """Record the logits of the rows that ask for them."""
    model.compute_logits(cast("torch.Tensor", recorder.gather_logits_rows(hidden)))


def _address(array: npt.NDArray[Any]) -> int:
    """Of the first element. A third of the time of ``array.ctypes.data``, at every step."""
    return ctypes.addressof(_NOTHING.from_buffer(array.data))


def _step_of(batch: Batch) -> StepStruct:
    """The batch's arrays as the library takes them; ``batch`` must outlive the result."""
    return StepStruct(
        num_tokens=batch.num_tokens,
        num_sequences=batch.num_sequences,
        num_logits=len(batch.logits_indices),
        max_blocks=batch.block_tables.shape[1],
        token_ids=_address(batch.token_ids),
        positions=_address(batch.positions),
        slot_mapping=_address(batch.slot_mapping),
        query_start_loc=_address(batch.query_start_loc),
        context_lens=_address(batch.context_lens),
        block_tables=_address(batch.block_tables),
        logits_indices=_address(batch.logits_indices),
    )
