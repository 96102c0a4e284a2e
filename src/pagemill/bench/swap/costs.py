"""Seconds that a preemption costs, by length of the sequence."""

from __future__ import annotations

import mmap
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from pagemill.batch import Batch, BlockMove, MoveKind
from pagemill.bench.shared_model import SharedModel
from pagemill.kvcache.manager import blocks_for_tokens
from pagemill.runner.native_runner import NativeRunner
from pagemill.runner.torch_runner import TorchRunner

_MADV_PAGEOUT: Final = 21
"""Of Linux 5.4 and later; the module mmap has no name for it."""


def prefill_batches(token_ids: Sequence[int], block_size: int, budget: int) -> list[Batch]:
    """Compute all of ``token_ids``, in the first blocks of the pool; draw no token."""
    length = len(token_ids)
    table = np.arange(blocks_for_tokens(length, block_size))
    batches = []
    for start in range(0, length, budget):
        end = min(start + budget, length)
        batches.append(
            Batch(
                token_ids=np.array(token_ids[start:end], np.int64),
                positions=np.arange(start, end),
                slot_mapping=np.arange(start, end),
                query_start_loc=np.array([0, end - start]),
                context_lens=np.array([end]),
                block_tables=table[None, :].copy(),
                logits_indices=np.empty(0, np.int64),
            )
        )
    return batches


def recompute_seconds(model: SharedModel, token_ids: Sequence[int]) -> float:
    """Computing the keys and values of these tokens."""
    config = model.config
    batches = prefill_batches(token_ids, config.block_size, config.max_num_batched_tokens)

    def compute() -> None:
        for batch in batches:
            model.runner.execute(batch)

    return _seconds(compute)


def swap_seconds(model: SharedModel, num_blocks: int) -> tuple[float, float]:
    """Moving the first blocks of the pool out, and in again."""
    return _move(model, MoveKind.SWAP_OUT, num_blocks), _move(model, MoveKind.SWAP_IN, num_blocks)


def swap_seconds_on_disk(model: SharedModel, num_blocks: int) -> tuple[float, float] | None:
    """The same with what was moved out written to the disk, and not in memory any more.

    None where the system cannot do that.
    """
    out = _move(model, MoveKind.SWAP_OUT, num_blocks)
    written = _seconds(lambda: _flush(model))
    if not _page_out(model):
        return None
    return out + written, _move(model, MoveKind.SWAP_IN, num_blocks)


def _move(model: SharedModel, kind: MoveKind, num_blocks: int) -> float:
    moves = [BlockMove(kind, i, i) for i in range(num_blocks)]
    return _seconds(lambda: model.runner.move_blocks(moves))


def _seconds(do: Callable[[], object]) -> float:
    began = time.perf_counter()
    do()
    return time.perf_counter() - began


def _slots(model: SharedModel) -> Any:
    assert isinstance(model.runner, NativeRunner | TorchRunner)
    return model.runner.swap.slots


def _flush(model: SharedModel) -> None:
    slots = _slots(model)
    assert isinstance(slots, np.memmap), "only a file can be written to the disk"
    slots.flush()


def _page_out(model: SharedModel) -> bool:
    """Let the system forget the pages of the swap file; returns whether it did."""
    mapping = _slots(model).base
    if sys.platform != "linux" or not isinstance(mapping, mmap.mmap):
        return False
    try:
        mapping.madvise(_MADV_PAGEOUT)
    except OSError:
        return False
    return True
