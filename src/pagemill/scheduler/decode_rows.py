"""The persistent batch: arrays of the sequences that are decoding, kept from step to step.

Most sequences do the same in most steps: compute one token at the end of their last block. What a
step needs of them lies ready here, so that its cost is a few operations on whole arrays, and Python
runs only for what changes: a sequence comes, goes, or needs a block.

        row          0      1      2    ...  len - 1  |  rows of this step's prefill chunks
    sequences       [A,     F,     C,   ... ]         |
    lengths         [ 21     6    40 ]                |  tokens, the last one to be computed
    last_tokens     [ 77    91     5 ]                |  that one
    room            [ 32    16    48 ]                |  token slots that may be written to
    tables          [[3 7 ..], [5 ..], [1 4 9 ..] ]   |  block tables

A sequence that leaves is replaced by the last one, so rows are dense. What a row computes does not
depend on its place, so the order is free.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import numpy as np
import numpy.typing as npt

from pagemill.batch import SamplingTask
from pagemill.request import NOT_DECODING, Sequence

IntArray = npt.NDArray[np.int64]


class DecodeRows:
    """The decoding sequences, one row each.

    Args:
        block_size: token slots in a block.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self.sequences: list[Sequence] = []
        self.tasks: list[SamplingTask] = []
        """What to draw, by row; row and row of logits are the same."""
        self.lengths: IntArray = np.zeros(16, np.int64)
        self.last_tokens: IntArray = np.zeros(16, np.int64)
        self.tables: IntArray = np.zeros((16, 16), np.int64)
        self._room: IntArray = np.zeros(16, np.int64)

    def __len__(self) -> int:
        return len(self.sequences)

    def add(self, seq: Sequence) -> None:
        """Add a sequence of which all tokens but the last are computed."""
        row = len(self.sequences)
        self.reserve(row + 1, len(seq.blocks.table))
        self.sequences.append(seq)
        self.tasks.append(sampling_task(seq, row))
        self.lengths[row] = seq.num_tokens
        self.last_tokens[row] = seq.token_ids[-1]
        seq.row = row
        self.note_table(seq)

    def remove(self, seq: Sequence) -> None:
        """Take a sequence out; it keeps account of its computed tokens by itself again."""
        row, last = seq.row, len(self.sequences) - 1
        seq.num_prefilled_tokens, seq.row = seq.num_computed_tokens, NOT_DECODING
        moved, task = self.sequences.pop(), self.tasks.pop()
        if moved is seq:
            return
        self.sequences[row], self.tasks[row] = moved, task
        moved.row = task.logits_row = row
        for array in (self.lengths, self.last_tokens, self._room, self.tables):
            array[row] = array[last]

    def note_table(self, seq: Sequence) -> None:
        """The block table of a decoding sequence has changed."""
        table = seq.blocks.table
        self.reserve(seq.row + 1, len(table))
        self.tables[seq.row, : len(table)] = table
        self._note_room(seq)

    def note_last_block(self, seq: Sequence) -> None:
        """Only the last block of the table is new."""
        table = seq.blocks.table
        self.reserve(seq.row + 1, len(table))
        self.tables[seq.row, len(table) - 1] = table[-1]
        self._note_room(seq)

    def _note_room(self, seq: Sequence) -> None:
        blocks, row = seq.blocks, seq.row
        # A shared tail must be asked for before it is written to.
        self._room[row] = 0 if blocks.shares_tail else len(blocks.table) * self._block_size

    def without_room(self) -> list[Sequence]:
        """Those whose last token has no slot yet, or one that they may not write to."""
        count = len(self.sequences)
        rows = (self.lengths[:count] > self._room[:count]).nonzero()[0]
        return [self.sequences[row] for row in rows]

    def advance(self, gained: SequenceOf[int]) -> list[Sequence]:
        """The first rows have gained a token each, which ends their ``token_ids``.

        (To look for it there would be most of a steady step's cost: two reads of memory that nobody
        has touched lately, for every row.)

        Args:
            gained: these tokens, by row.

        Returns:
            Those rows' sequences for which this completes a block.
        """
        count = len(gained)
        lengths = self.lengths[:count]
        # All tokens but the new one are computed.
        whole = (lengths % self._block_size == 0).nonzero()[0]
        lengths += 1
        self.last_tokens[:count] = gained
        return [self.sequences[row] for row in whole]

    def reserve(self, num_rows: int, num_blocks: int) -> None:
        """Make the arrays at least this large, by doubling."""
        rows, width = self.tables.shape
        if num_rows <= rows and num_blocks <= width:
            return
        while rows < num_rows:
            rows *= 2
        while width < num_blocks:
            width *= 2
        self.lengths = _grown(self.lengths, (rows,))
        self.last_tokens = _grown(self.last_tokens, (rows,))
        self._room = _grown(self._room, (rows,))
        self.tables = _grown(self.tables, (rows, width))


def _grown(array: IntArray, shape: tuple[int, ...]) -> IntArray:
    larger = np.zeros(shape, np.int64)
    larger[tuple(slice(size) for size in array.shape)] = array
    return larger


def sampling_task(seq: Sequence, logits_row: int) -> SamplingTask:
    """What is needed to draw the next token of ``seq``."""
    request = seq.request
    return SamplingTask(
        logits_row=logits_row,
        params=request.params,
        prompt_token_ids=request.prompt_token_ids,
        output_token_ids=seq.output_token_ids,
        seed=seq.seed,
        end_token_ids=request.end_token_ids,
    )
