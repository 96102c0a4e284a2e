"""A request, and the sequences that the scheduler sees of it.

A `Request` is what a user asked for. It owns ``n`` `Sequence` objects, one for each sample; a
sequence is the unit that is scheduled, holds blocks and grows by a token at a time.

    WAITING ──admitted──> RUNNING ──last token, stop, abort──> FINISHED
       ^                   │  ^ │
       └──── preempted ────┘  │ └── swapped out ──┐   blocks are outside the pool
         blocks given back,   └──── swapped in ── SWAPPED
         nothing is computed

There is no prefill status: a sequence whose gap between tokens and computed tokens is more than
one is prefilling, whether for the first time or after a preemption.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pagemill.outputs import CompletionOutput, FinishReason, LogprobsAtPosition, RequestOutput
from pagemill.pooling import FloatArray, PromptSum

if TYPE_CHECKING:
    from pagemill.kvcache.sequence_blocks import SequenceBlocks
    from pagemill.sampling_params import SamplingParams
    from pagemill.text.detokenizer import IncrementalDetokenizer


class SequenceStatus(enum.Enum):
    """Where a sequence is; see the module's picture."""

    WAITING = "waiting"
    RUNNING = "running"
    SWAPPED = "swapped"
    FINISHED = "finished"


NOT_DECODING = -1

Rank = tuple[float, ...]
"""Who goes first: the smaller rank. Unique, since it ends in the sequence's id."""


@dataclass(slots=True, eq=False)
class Sequence:
    """One sample of a request: its tokens and how far they are computed."""

    seq_id: int
    """Unique in the engine, ascending with arrival."""
    request: Request
    index: int
    """Which of the request's ``n`` samples this is."""
    seed: int
    """64-bit key of its random stream."""
    detokenizer: IncrementalDetokenizer | None
    token_ids: list[int]
    """Prompt and output together."""
    blocks: SequenceBlocks
    """What it has in the KV cache."""
    output_token_ids: list[int] = field(default_factory=list)
    num_prefilled_tokens: int = 0
    """``num_computed_tokens`` of a sequence that is not decoding."""
    row: int = NOT_DECODING
    """Where it is in the persistent batch of decoding sequences (`pagemill.scheduler.decode_rows`).
    """
    max_blocks: int = 0
    """Blocks that it holds at its longest; set by the scheduler when it starts to run."""
    may_grow: bool = False
    """Whether it may need another block before it ends; kept by the scheduler while it runs."""
    status: SequenceStatus = SequenceStatus.WAITING
    rank: Rank = ()
    """Set by the scheduler on arrival, and kept."""
    logprobs: list[LogprobsAtPosition] = field(default_factory=list)
    token_logprobs: list[float] = field(default_factory=list)
    """Of each of ``output_token_ids``, in nats."""
    cumulative_logprob: float = 0.0
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    first_token_seconds: float | None = None
    last_token_seconds: float | None = None

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens: the target that ``num_computed_tokens`` moves towards."""
        return len(self.token_ids)

    @property
    def num_computed_tokens(self) -> int:
        """Leading tokens whose keys and values are in this sequence's blocks.

        In a decoding sequence they are all but the last, so a step need not count them.
        """
        return self.num_prefilled_tokens if self.row == NOT_DECODING else len(self.token_ids) - 1

    @property
    def num_uncomputed_tokens(self) -> int:
        """The gap that the scheduler closes; 1 while decoding."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def is_finished(self) -> bool:
        """Whether the sequence has ended, for whatever reason."""
        return self.status is SequenceStatus.FINISHED

    @property
    def tpot_seconds(self) -> float | None:
        """Time per output token after the first; None with fewer than two tokens."""
        if self.first_token_seconds is None or self.last_token_seconds is None:
            return None
        steps = len(self.output_token_ids) - 1
        return (self.last_token_seconds - self.first_token_seconds) / steps if steps else None

    def positions_to_score(self, start: int, end: int) -> range:
        """Positions in ``start .. end`` whose logits score the next prompt token.

        The first sample scores for all of them, and each position once: a preempted sequence
        that computes its prompt again does not score it again.
        """
        scored = self.request.prompt_logprobs
        if scored is None or self.index != 0:
            return range(0)
        return range(max(start, len(scored) - 1), min(end, self.request.num_prompt_tokens - 1))

    def positions_to_pool(self, start: int, end: int) -> range:
        """Positions in ``start .. end`` whose hidden states an embedding still lacks, likewise
        each once.
        """
        pooled = self.request.pooled
        return range(0) if pooled is None else range(max(start, pooled.num_tokens), end)

    @property
    def max_reusable_tokens(self) -> int:
        """Leading tokens that need not be computed if their keys and values are found: all but
        the last, which the next one is drawn from, and those that score a prompt token or that an
        embedding lacks.
        """
        length = len(self.token_ids)
        wanted = self.positions_to_score(0, length) or self.positions_to_pool(0, length)
        return min(wanted.start if wanted else length, length - 1)

    def append_token(self, token_id: int, logprob: float) -> None:
        """Add one generated token; its key and value are computed in a later step."""
        self.token_ids.append(token_id)
        self.output_token_ids.append(token_id)
        self.token_logprobs.append(logprob)
        self.cumulative_logprob += logprob


@dataclass(slots=True)
class RequestTimes:
    """When things happened to a request, in seconds of the engine's one monotonic clock."""

    arrival_seconds: float
    first_scheduled_seconds: float | None = None
    first_token_seconds: float | None = None
    finished_seconds: float | None = None
    num_preemptions: int = 0
    """Over all of the request's sequences."""

    def copy(self) -> RequestTimes:
        """What is known now. Many times a step, so without `dataclasses.replace`."""
        return RequestTimes(
            self.arrival_seconds,
            self.first_scheduled_seconds,
            self.first_token_seconds,
            self.finished_seconds,
            self.num_preemptions,
        )

    @property
    def queue_seconds(self) -> float | None:
        """From arrival to the first step that computed a token of it."""
        return _difference(self.first_scheduled_seconds, self.arrival_seconds)

    @property
    def ttft_seconds(self) -> float | None:
        """Time to first token, from arrival."""
        return _difference(self.first_token_seconds, self.arrival_seconds)

    @property
    def e2e_seconds(self) -> float | None:
        """From arrival to the end."""
        return _difference(self.finished_seconds, self.arrival_seconds)


def _difference(later: float | None, earlier: float) -> float | None:
    return None if later is None else later - earlier


@dataclass(slots=True, eq=False)
class Request:
    """What one call asked for, validated and admitted."""

    request_id: str
    prompt: str | None
    """The text, or None if token ids were given."""
    prompt_token_ids: SequenceOf[int]
    params: SamplingParams
    max_tokens: int
    """``params.max_tokens``, or what the context leaves if that is None; 0 for an embedding."""
    end_token_ids: frozenset[int]
    """Ids that end a sequence: end-of-sequence (unless ignored) and ``stop_token_ids``."""
    priority: int
    times: RequestTimes
    deadline_seconds: float | None = None
    """When it should have ended, after its arrival; for ``scheduling_policy="deadline"``."""
    cache_salt: str | None = None
    """Computed prefixes are shared among requests of the same salt only."""
    stream: bool = True
    """Whether every step's progress is reported, or the end only."""
    sequences: list[Sequence] = field(default_factory=list)
    prompt_logprobs: list[LogprobsAtPosition | None] | None = None
    """One entry for each prompt token scored so far; the first token has None."""
    pooled: PromptSum | None = None
    """How far the prompt's hidden states are summed up; None: no embedding is wanted."""
    embedding: FloatArray | None = None
    """Their mean, once all are."""
    num_cached_tokens: int | None = None
    """Prompt tokens that were computed already when it was first admitted; None until then."""
    _shown_prompt: list[int] = field(init=False)
    """What all its outputs have in common: a list of thousands is not copied for each token."""

    def __post_init__(self) -> None:
        self._shown_prompt = list(self.prompt_token_ids)

    @property
    def is_finished(self) -> bool:
        """Whether all samples have ended."""
        return all(seq.status is SequenceStatus.FINISHED for seq in self.sequences)

    @property
    def num_prompt_tokens(self) -> int:
        """Length of the prompt in tokens."""
        return len(self.prompt_token_ids)

    def to_output(self) -> RequestOutput:
        """A snapshot for the caller; later steps do not change it."""
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=self._shown_prompt,
            prompt_logprobs=None if self.prompt_logprobs is None else list(self.prompt_logprobs),
            outputs=[_completion(seq) for seq in self.sequences],
            finished=self.is_finished,
            num_cached_tokens=self.num_cached_tokens or 0,
            metrics=self.times.copy(),
            embedding=self.embedding,
        )


def _completion(seq: Sequence) -> CompletionOutput:
    return CompletionOutput(
        index=seq.index,
        text="" if seq.detokenizer is None else seq.detokenizer.text,
        token_ids=list(seq.output_token_ids),
        logprobs=None if seq.request.params.logprobs is None else list(seq.logprobs),
        cumulative_logprob=seq.cumulative_logprob,
        finish_reason=seq.finish_reason,
        stop_reason=seq.stop_reason,
    )
