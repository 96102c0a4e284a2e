"""The plan of one step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from pagemill.batch import BlockMove
from pagemill.request import Request, Sequence
from pagemill.scheduler.decode_rows import DecodeRows


class Chunk(NamedTuple):
    """Some of a sequence's uncomputed tokens."""

    seq: Sequence
    num_tokens: int
    is_last: bool
    """Whether it gets to the sequence's last token, from which the next one is drawn."""


@dataclass(slots=True)
class SchedulerOutput:
    """Who computes what in one step. Blocks for all of it are allocated.

    The rows of the batch are those of ``decodes``, then the chunks in order.
    """

    decodes: DecodeRows
    """Each of its first ``num_decodes`` sequences computes its last token and gains another."""
    num_decodes: int = 0
    chunks: list[Chunk] = field(default_factory=list)
    forks: list[tuple[Sequence, Sequence]] = field(default_factory=list)
    """A sequence of ``chunks`` that finishes its prompt, and a sample of the same request that
    shares it from now on, and draws its own first token from the same logits."""
    moves: list[BlockMove] = field(default_factory=list)
    """Contents of blocks to be brought elsewhere before anything is computed, in order."""
    started: list[Request] = field(default_factory=list)
    """Requests of which this step computes the first tokens."""
    preempted: list[Sequence] = field(default_factory=list)
    """Who lost its blocks, and waits or is swapped out."""
    num_tokens: int = 0
    """Rows of the batch; at most the budget."""
