"""What a beam search is asked for and gives back, its beams, and which of the ended ones it keeps.

The rules are those of Hugging Face transformers' ``generate(num_beams=..., do_sample=False)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pagemill.errors import InvalidParameterError
from pagemill.outputs import CompletionOutput, LogprobsAtPosition
from pagemill.sampling_params import (
    MAX_COUNT,
    MAX_LOGPROBS,
    SamplingParams,
    checked_float,
    checked_int,
)

_MAX_LENGTH_PENALTY = 10.0
"""Beyond it a score is all length, or no number any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearchParams:
    """How the beams of one prompt are searched for; checked when it is made.

    A field outside its bounds raises `InvalidParameterError`, which names field, rule and value.
    """

    beam_width: int
    """In [1, 100], less the number of the model's end-of-sequence ids. How many beams run at once,
    and how many ended ones are kept. With 1 the search is greedy: it stops where its beam does."""
    max_tokens: int | None
    """At least 1: where a beam ends if it has not before; None: at the end of the context, or of
    the whole KV pool where that is smaller."""
    length_penalty: float = 1.0
    """In [-10, 10]. A beam's score is its log-probability divided by ``length ** length_penalty``:
    0 compares sums of log-probabilities, 1 averages, and more favors long beams."""
    early_stopping: bool | Literal["never"] = False
    """When the search may stop, once ``beam_width`` beams have ended. True: at once. False: when
    the best running beam, scored at its present length, is no better than the worst ended one.
    ``"never"``: when it could not become better at any length up to ``max_tokens``."""
    n: int | None = None
    """In [1, ``beam_width``]. How many of the best to return; None: all."""
    ignore_eos: bool = False
    """Let no token end a beam."""

    def __post_init__(self) -> None:
        self._set("beam_width", checked_int("beam_width", self.beam_width, 1, MAX_LOGPROBS))
        if self.max_tokens is not None:
            max_tokens = checked_int("max_tokens", self.max_tokens, 1, MAX_COUNT, or_none=True)
            self._set("max_tokens", max_tokens)
        bound = _MAX_LENGTH_PENALTY
        penalty = checked_float("length_penalty", self.length_penalty, -bound, bound)
        self._set("length_penalty", penalty)
        if not isinstance(self.early_stopping, bool) and self.early_stopping != "never":
            rule = 'must be True, False or "never"'
            raise InvalidParameterError("early_stopping", self.early_stopping, rule)
        if self.n is not None:
            self._set("n", checked_int("n", self.n, 1, self.beam_width, or_none=True))
        if not isinstance(self.ignore_eos, bool):
            raise InvalidParameterError("ignore_eos", self.ignore_eos, "must be a bool")

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def num_candidates(self, num_end_ids: int) -> int:
        """How many of its likeliest next tokens each beam needs to know.

        ``beam_width`` of them may go on, and those that would end it may all be likelier.
        """
        most = MAX_LOGPROBS - num_end_ids
        if self.beam_width > most:
            rule = f"must be at most {most}: {MAX_LOGPROBS} less the {num_end_ids} ids that end it"
            raise InvalidParameterError("beam_width", self.beam_width, rule)
        return self.beam_width + num_end_ids


@dataclass(frozen=True, slots=True)
class Beam:
    """One ended beam."""

    token_ids: list[int]
    """Generated ids, the end-of-sequence token included."""
    text: str
    """Decoded, without the end-of-sequence token; empty if the engine has no tokenizer."""
    score: float
    """``cumulative_logprob / len(token_ids) ** length_penalty``."""
    cumulative_logprob: float
    """Sum over ``token_ids``, in nats, under the raw model distribution."""
    finish_reason: Literal["stop", "length"]
    """``stop``: an end-of-sequence token; ``length``: ``max_tokens`` or the end of the context."""


@dataclass(frozen=True, slots=True)
class BeamSearchOutput:
    """What was found for one prompt."""

    prompt: str | None
    """As given; None if the prompt was given as token ids."""
    prompt_token_ids: list[int]
    beams: list[Beam]
    """The best, best first. Fewer than asked for only if the vocabulary has not as many tokens, or
    if the model computed NaN or infinity for all running beams: then the search ends there."""


@dataclass(slots=True, eq=False)
class RunningBeam:
    """A running beam, and the request that goes on from it."""

    token_ids: list[int]
    """What is chosen; the request may have computed more."""
    logprob: float
    """Of ``token_ids``, in nats."""
    request_id: str
    params: SamplingParams
    """Of the request."""
    num_in_prompt: int = 0
    """How many of ``token_ids`` are in the request's prompt."""
    computed: CompletionOutput | None = None

    @property
    def num_ahead(self) -> int:
        """Tokens that the request computed beyond ``token_ids``."""
        generated = 0 if self.computed is None else len(self.computed.token_ids)
        return generated + self.num_in_prompt - len(self.token_ids)

    @property
    def own_next_token(self) -> int | None:
        """What the request went on with after ``token_ids``."""
        if self.computed is None or self.num_ahead < 1:
            return None
        return self.computed.token_ids[len(self.token_ids) - self.num_in_prompt]

    def next_tokens(self) -> LogprobsAtPosition:
        """The likeliest tokens after ``token_ids``; none if they are not computed."""
        if self.computed is None or self.computed.logprobs is None or self.num_ahead < 1:
            return {}
        return self.computed.logprobs[len(self.token_ids) - self.num_in_prompt]


class EndedBeams:
    """The best beams that have ended, and whether a running one can still be among them.

    Args:
        params: of the search.
        max_tokens: the length at which every beam has ended.
    """

    def __init__(self, params: BeamSearchParams, max_tokens: int) -> None:
        self._width = params.beam_width
        self._penalty = params.length_penalty
        # With one beam there is nothing to wait for.
        self._stops_when_full = params.early_stopping is True or self._width == 1
        # Where a longer beam may score better than it does now, "never" waits for it.
        self._looks_ahead = params.early_stopping == "never" and self._penalty > 0
        self._max_tokens = max_tokens
        self._best: list[Beam] = []

    def add(
        self, token_ids: list[int], logprob: float, finish_reason: Literal["stop", "length"]
    ) -> None:
        """A beam has ended; it is kept if it is good enough. Of equal ones the earlier is."""
        score = self._score(logprob, len(token_ids))
        self._best.append(Beam(token_ids, "", score, logprob, finish_reason))
        self._best.sort(key=lambda beam: -beam.score)
        del self._best[self._width :]

    def best(self, count: int) -> list[Beam]:
        """Up to ``count`` of them, best first; their text is left empty."""
        return self._best[:count]

    def are_final(self, logprob: float, num_tokens: int) -> bool:
        """Whether the search is over.

        Args:
            logprob: of the best running beam.
            num_tokens: the length of the running beams.
        """
        if len(self._best) < self._width:
            return False
        length = self._max_tokens if self._looks_ahead else num_tokens
        return self._stops_when_full or self._score(logprob, length) <= self._best[-1].score

    def _score(self, logprob: float, num_tokens: int) -> float:
        return float(logprob / num_tokens**self._penalty)
