"""A runner without a model, which notices every wrong block.

Its KV pool holds one 64-bit hash a slot: of the token, its position, and the slot before it in the
sequence. The next token is a hash over *every* slot that the block table names, weighted by
position. So a block that is wrong, stale, in the wrong order, or shared by mistake changes the
tokens that come out, and a test that compares two schedules of the same requests sees it in
milliseconds. Time is virtual: each step moves a clock by a cost model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pagemill.batch import (
    Batch,
    BlockMove,
    MoveKind,
    PoolingTask,
    SampledToken,
    SamplingTask,
    StepResult,
    TokenLogprobs,
)
from pagemill.pooling import FloatArray, add_rows

_MASK = 2**64 - 1
_UNWRITTEN = 0xDEAD_BEEF_DEAD_BEEF
_FIRST = 0x5EED
_HIDDEN_SIZE = 8
_ONE_UINT64 = np.uint64(1)


class VirtualClock:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        """The time now, in seconds."""
        return self.seconds

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.seconds += seconds


@dataclass(frozen=True)
class LinearCost:
    """Seconds of a step: a constant, plus so much for each token computed."""

    per_step_seconds: float = 0.010
    per_token_seconds: float = 0.0001
    per_move_seconds: float = 0.0001
    """For each block moved."""

    def step_seconds(self, batch: Batch) -> float:
        """Duration of ``batch``."""
        return self.per_step_seconds + self.per_token_seconds * batch.num_tokens


class SimulatedRunner:
    """A `ModelRunner` whose model is a hash function.

    Args:
        num_kv_blocks: blocks in the pool.
        block_size: token slots in a block.
        num_swap_slots: blocks outside the pool.
        vocab_size: tokens are drawn from 0 to this.
        clock: moved by each step; None lets no time pass.
        cost: how far it is moved.
    """

    def __init__(
        self,
        *,
        num_kv_blocks: int,
        block_size: int,
        num_swap_slots: int = 0,
        vocab_size: int = 1000,
        clock: VirtualClock | None = None,
        cost: LinearCost | None = None,
    ) -> None:
        self.vocab_size = vocab_size
        self.block_size = block_size
        self._slots = np.full(num_kv_blocks * block_size, _UNWRITTEN, np.uint64)
        self._swapped = np.full((num_swap_slots, block_size), _UNWRITTEN, np.uint64)
        self._clock = clock
        self._cost = cost or LinearCost()

    def move_blocks(self, moves: Sequence[BlockMove]) -> None:
        """Copy the hashes of whole blocks."""
        pool, outside = self._slots.reshape(-1, self.block_size), self._swapped
        for kind, source, target in moves:
            if kind is MoveKind.COPY:
                pool[target] = pool[source]
            elif kind is MoveKind.SWAP_OUT:
                outside[target] = pool[source]
            else:
                pool[target] = outside[source]
        if self._clock is not None:
            self._clock.advance(self._cost.per_move_seconds * len(moves))

    def read_block(self, block_id: int) -> bytes:
        """The hashes of a block."""
        return bytes(self._slots.reshape(-1, self.block_size)[block_id])

    def write_block(self, block_id: int, content: bytes) -> None:
        """Put hashes back."""
        self._slots.reshape(-1, self.block_size)[block_id] = np.frombuffer(content, np.uint64)

    def execute(self, batch: Batch) -> StepResult:
        """Write the slots of all rows, then draw, score and pool those that it is asked to."""
        self._write(batch)
        contexts = self._context_hashes(batch, batch.logits_indices)
        if self._clock is not None:
            self._clock.advance(self._cost.step_seconds(batch))
        return StepResult(
            sampled=[self._draw(contexts[task.logits_row], task) for task in batch.sampling],
            scored=[
                _logprobs(_mix(contexts[task.logits_row], task.token_id), task.num_logprobs)
                for task in batch.scoring
            ],
            pooled=[add_rows(task.total, self._hidden(batch, task)) for task in batch.pooling],
        )

    def close(self) -> None:
        """Nothing to release."""

    def _write(self, batch: Batch) -> None:
        for i in range(batch.num_sequences):
            first, last = batch.query_start_loc[i], batch.query_start_loc[i + 1]
            start = int(batch.positions[first])
            before = _FIRST
            if start > 0:
                before = int(self._slots[self._slot(batch.block_tables[i], start - 1)])
            for row in range(first, last):
                before = _mix(before, int(batch.token_ids[row]), int(batch.positions[row]))
                self._slots[batch.slot_mapping[row]] = before

    def _context_hashes(self, batch: Batch, rows: npt.NDArray[np.int64]) -> list[int]:
        """For each of these rows, a hash of all slots up to that row's position."""
        sequences = np.searchsorted(batch.query_start_loc, rows, side="right") - 1
        hashes = []
        for row, i in zip(rows, sequences, strict=True):
            length = int(batch.positions[row]) + 1
            positions = np.arange(length)
            table = batch.block_tables[i]
            slots = table[positions // self.block_size] * self.block_size
            values = self._slots[slots + positions % self.block_size]
            hashes.append(_mix(_weighted_sum(values), length))
        return hashes

    def _hidden(self, batch: Batch, task: PoolingTask) -> FloatArray:
        """Numbers from the context of each row of ``task``, so different in size that the order
        in which they are added shows.
        """
        contexts = self._context_hashes(batch, np.arange(batch.num_tokens)[task.rows])
        mixed = [[_mix(context, i) for i in range(_HIDDEN_SIZE)] for context in contexts]
        numbers = [[math.ldexp((m >> 40) - 2**23, -(m & 31)) for m in row] for row in mixed]
        return np.array(numbers, np.float32)

    def _slot(self, block_table: npt.NDArray[np.int64], position: int) -> int:
        block = int(block_table[position // self.block_size])
        return block * self.block_size + position % self.block_size

    def _draw(self, context: int, task: SamplingTask) -> SampledToken:
        """A token from the context and from what sampling may depend on, and nothing else."""
        params = task.params
        generated = task.output_token_ids
        mixed = context
        if not params.greedy:
            mixed = _mix(mixed, task.seed, len(generated))
        if params.needs_penalties:
            for token_id in generated:
                mixed = _mix(mixed, token_id)
        return SampledToken(self._choose(mixed, task), _logprobs(mixed, params.logprobs or 0))

    def _choose(self, mixed: int, task: SamplingTask) -> int | None:
        """Map a hash to a token that the request's constraints allow; None if there is none."""
        params = task.params
        must_go_on = len(task.output_token_ids) < params.min_tokens and task.end_token_ids
        if params.allowed_token_ids is None and not must_go_on:
            return mixed % self.vocab_size
        allowed = sorted(params.allowed_token_ids or range(self.vocab_size))
        if must_go_on:
            allowed = [token_id for token_id in allowed if token_id not in task.end_token_ids]
        return allowed[mixed % len(allowed)] if allowed else None


def _logprobs(mixed: int, num_logprobs: int) -> TokenLogprobs:
    """Numbers that depend on every bit of ``mixed``; they are no distribution."""
    top = tuple((_mix(mixed, i) % 1000, -float(i)) for i in range(num_logprobs))
    return TokenLogprobs(-(mixed >> 11) / 2**53, 1, top)


def _weighted_sum(values: npt.NDArray[np.uint64]) -> int:
    """Sum of value times an odd weight of its place, modulo 2**64: order matters."""
    weights = (np.arange(len(values), dtype=np.uint64) << _ONE_UINT64) | _ONE_UINT64
    return int((values * weights).sum(dtype=np.uint64))


def _mix(*values: int) -> int:
    """Hash integers to 64 bits, by the finalizer of SplitMix64 (Steele et al., 2014)."""
    state = 0
    for value in values:
        state = (state ^ (value & _MASK)) + 0x9E3779B97F4A7C15 & _MASK
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state
