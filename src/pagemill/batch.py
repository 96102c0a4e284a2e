"""What a step hands to a model runner, and what comes back.

A step's batch is *flat*: the tokens of every scheduled sequence lie one after another in one row
dimension ``T``, prefill chunks and decodes alike. The scheduler does not know which runner it
feeds, and a runner does not know why a token was scheduled.

    sequence        A: chunk of 4 prompt tokens     B: decode     C: decode
    token_ids       [ 11   12   13   14          |  77         |  91 ]        T = 6
    positions       [  0    1    2    3          |  20         |   5 ]
    slot_mapping    [ 32   33   34   35          | 116         |  85 ]        block_size = 16
    query_start_loc [  0                            4             5      6 ]  B + 1 = 4
    context_lens    [  4                           21             6 ]
    block_tables    [[2, 0], [3, 7], [5, 0]]    (B, max_blocks)
    logits_indices  [4, 5]                      A's prompt is not done: nothing to sample there
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from pagemill.pooling import SumArray
    from pagemill.sampling_params import SamplingParams

IntArray = npt.NDArray[np.int64]


class MoveKind(IntEnum):
    """Where the content of a block goes."""

    COPY = 0
    """From a block of the pool to another."""
    SWAP_OUT = 1
    """From a block of the pool to a swap slot."""
    SWAP_IN = 2
    """From a swap slot to a block of the pool."""


class BlockMove(NamedTuple):
    """Bring the keys and values of a whole block, in all layers, somewhere else."""

    kind: MoveKind
    source: int
    target: int


@dataclass(slots=True)
class SamplingTask:
    """Draw the next token of one sequence from one row of logits.

    Everything that the draw may depend on is here; a runner keeps no state between steps.
    """

    logits_row: int
    """Index into the ``L`` rows of logits (not into the ``T`` rows of the batch)."""
    params: SamplingParams
    prompt_token_ids: Sequence[int]
    """Read only; may be long, so touch it only if a penalty asks for it."""
    output_token_ids: Sequence[int]
    """Tokens generated so far; ``len(output_token_ids)`` is the position of the new token in the
    sequence's own random stream."""
    seed: int
    """64-bit key of this sequence's random stream (the request's seed and the sample's index)."""
    end_token_ids: frozenset[int]
    """End-of-sequence and stop ids, impossible while fewer than ``min_tokens`` were generated."""


@dataclass(slots=True)
class ScoringTask:
    """Report the log-probability of a known next token (prompt log-probabilities)."""

    logits_row: int
    token_id: int
    """The token that follows this row's token in the prompt."""
    num_logprobs: int
    """How many of the most likely tokens to report beside it."""


@dataclass(slots=True)
class PoolingTask:
    """Add the hidden states of some rows of one sequence to a sum (the embedding of a prompt)."""

    first_row: int
    """Index into the ``T`` rows of the batch."""
    num_rows: int
    total: SumArray | None
    """The sum over the sequence's rows of earlier steps, ``[hidden_size]``; None: there are none.
    Read only: a step that is interrupted has not happened."""

    @property
    def rows(self) -> slice:
        """Those of the batch that are to be added, in order."""
        return slice(self.first_row, self.first_row + self.num_rows)


class TokenLogprobs(NamedTuple):
    """Log-probabilities at one position, under the raw model distribution (before any penalty,
    temperature or filter), in nats.
    """

    logprob: float
    """Of the chosen token."""
    rank: int
    """1 for the most likely token of the vocabulary."""
    top: tuple[tuple[int, float], ...]
    """The most likely tokens as (token id, logprob), best first; ties by lower id."""


class SampledToken(NamedTuple):
    """The outcome of one `SamplingTask`."""

    token_id: int | None
    """None if the request's own constraints leave no token possible, or, with a log-probability
    of NaN, if the row's logits hold NaN or +infinity."""
    logprobs: TokenLogprobs


@dataclass(slots=True)
class Batch:
    """One step's work. All arrays are int64, C-contiguous, and valid until the next step is
    built; see the module's picture.
    """

    token_ids: IntArray  # [T] written by the engine, read by the embedding
    positions: IntArray  # [T] position of each token in its own sequence
    slot_mapping: IntArray  # [T] where the token's key and value go: block_id * block_size + offset
    query_start_loc: IntArray  # [B + 1] rows of sequence b: query_start_loc[b] to [b + 1]
    context_lens: IntArray  # [B] tokens of the sequence whose KV exists once this step has run
    # [B, max_blocks] physical block of each logical one; beyond the context it means nothing
    block_tables: IntArray
    logits_indices: IntArray  # [L] rows in T whose logits are needed, ascending
    sampling: list[SamplingTask] = field(default_factory=list)  # by ascending logits_row
    scoring: list[ScoringTask] = field(default_factory=list)  # by ascending logits_row
    pooling: list[PoolingTask] = field(default_factory=list)  # by ascending first_row

    @property
    def num_tokens(self) -> int:
        """T, the number of rows."""
        return len(self.token_ids)

    @property
    def num_sequences(self) -> int:
        """B, the number of sequences."""
        return len(self.context_lens)


@dataclass(slots=True)
class StepResult:
    """What a runner returns: one entry for each task of the batch, in the same order."""

    sampled: list[SampledToken]
    scored: list[TokenLogprobs]
    pooled: list[SumArray] = field(default_factory=list)
    """By `pagemill.pooling.add_rows`: each task's ``total`` and its rows."""


class ModelRunner(Protocol):
    """Computes one batch: writes the KV of its tokens, then samples, scores and pools.

    A runner owns the KV pool of ``num_kv_blocks * block_size`` slots, and the swap slots; the core
    only hands out their numbers. `execute` must compute each row from its own sequence alone.
    """

    vocab_size: int

    def move_blocks(self, moves: Sequence[BlockMove]) -> None:
        """Make ``moves``, as if one after another in this order."""
        ...

    def read_block(self, block_id: int) -> bytes:
        """The keys and values of a block in all layers."""
        ...

    def write_block(self, block_id: int, content: bytes) -> None:
        """Put back what `read_block` gave, into the same block or another."""
        ...

    def execute(self, batch: Batch) -> StepResult:
        """Run one step. Reads and writes only slots named by the batch."""
        ...

    def close(self) -> None:
        """Release memory and threads; the runner is not used again."""
        ...
