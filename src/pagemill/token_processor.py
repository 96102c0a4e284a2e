"""What a runner returned, applied to the sequences: tokens, text, stops, log-probabilities."""

from __future__ import annotations

import math
from typing import NamedTuple

from pagemill.batch import SampledToken, StepResult, TokenLogprobs
from pagemill.metrics import MetricsCollector
from pagemill.outputs import FinishReason, Logprob, LogprobsAtPosition
from pagemill.pooling import PromptSum
from pagemill.request import Request, Sequence
from pagemill.scheduler.scheduler_output import SchedulerOutput
from pagemill.text.tokenizer_protocol import Tokenizer

DAMAGED_LOGITS = "damaged_logits"
"""The ``stop_reason`` of a sequence for which the model computed NaN or infinity."""
DAMAGED_EMBEDDING = "damaged_embedding"
"""Likewise, of a prompt whose embedding was wanted."""
NO_TOKEN_POSSIBLE = "no_token_possible"
"""The ``stop_reason`` of a sequence whose own constraints left no token to draw."""


class Applied(NamedTuple):
    """Who gained something in a step."""

    ended: list[Sequence]
    """Sequences that have a ``finish_reason`` now."""
    changed: dict[str, Request]
    """Requests with something to show, by id: those that stream, and those with an end."""
    decoded: list[int]
    """The new token of each decode, by row; 0 for one that ended without."""

    def note(self, seq: Sequence) -> None:
        """``seq`` gained a token, or ended."""
        has_ended = seq.finish_reason is not None
        if has_ended:
            self.ended.append(seq)
        if has_ended or seq.request.stream:
            self.changed[seq.request.request_id] = seq.request


class TokenProcessor:
    """Advances sequences and decides when they end.

    Args:
        tokenizer: shows tokens as text in log-probabilities; None shows nothing.
        metrics: told of every token.
    """

    def __init__(self, tokenizer: Tokenizer | None, metrics: MetricsCollector) -> None:
        self._tokenizer = tokenizer
        self._metrics = metrics

    def apply(self, plan: SchedulerOutput, result: StepResult, now: float) -> Applied:
        """Give each sequence of ``plan`` what the step found out for it.

        A sequence that ends gets its ``finish_reason``; the caller frees what it holds.
        """
        num_decodes = plan.num_decodes
        decoded = [sampled.token_id or 0 for sampled in result.sampled[:num_decodes]]
        applied = Applied([], {}, decoded)
        sampled, scored, pooled = iter(result.sampled), iter(result.scored), iter(result.pooled)
        for seq in plan.decodes.sequences[:num_decodes]:
            self._add_sampled(seq, next(sampled), now, applied)
        forks = iter(plan.forks)
        fork = next(forks, None)
        for seq, num_tokens, is_last in plan.chunks:
            request, start = seq.request, seq.num_computed_tokens
            for position in seq.positions_to_score(start, start + num_tokens):
                self._add_prompt_logprobs(request, position + 1, next(scored))
            if seq.positions_to_pool(start, start + num_tokens):
                request.pooled = PromptSum(start + num_tokens, next(pooled))
            if not is_last:
                continue
            if request.max_tokens == 0:
                self._end_with_prompt(seq)
                applied.note(seq)
                continue
            self._add_sampled(seq, next(sampled), now, applied)
            while fork is not None and fork[0] is seq:
                self._add_sampled(fork[1], next(sampled), now, applied)
                fork = next(forks, None)
        return applied

    def abort(self, seq: Sequence) -> None:
        """Mark ``seq`` as ended from outside; its text so far is completed."""
        _finish(seq, "abort")

    def _add_sampled(
        self, seq: Sequence, sampled: SampledToken, now: float, applied: Applied
    ) -> None:
        """Append one drawn token to ``seq`` and end it if it must end here."""
        self._append(seq, sampled, now)
        applied.note(seq)

    def _end_with_prompt(self, seq: Sequence) -> None:
        """The prompt of ``seq``, which wants no token, is computed."""
        self._metrics.on_prompt_only(seq)
        request = seq.request
        if request.pooled is not None:
            request.embedding = request.pooled.mean()
            if request.embedding is None:
                _finish(seq, "abort", DAMAGED_EMBEDDING)
                return
        _finish(seq, "length")

    def _append(self, seq: Sequence, sampled: SampledToken, now: float) -> None:
        request = seq.request
        token_id = sampled.token_id
        if token_id is None:
            if math.isnan(sampled.logprobs.logprob):
                _finish(seq, "abort", DAMAGED_LOGITS)
            else:
                _finish(seq, "stop", NO_TOKEN_POSSIBLE)
            return
        self._metrics.on_token(seq, now)
        shown = None
        if request.params.logprobs is not None:
            shown = self._shown(token_id, sampled.logprobs)
        append_token(seq, token_id, sampled.logprobs.logprob, shown)

    def _add_prompt_logprobs(self, request: Request, position: int, scored: TokenLogprobs) -> None:
        assert request.prompt_logprobs is not None
        shown = self._shown(request.prompt_token_ids[position], scored)
        request.prompt_logprobs.append(shown)

    def _shown(self, token_id: int, logprobs: TokenLogprobs) -> LogprobsAtPosition:
        """The most likely tokens, best first, and the chosen one in any case."""
        at_position = {
            top_id: Logprob(value, rank, self._text(top_id))
            for rank, (top_id, value) in enumerate(logprobs.top, start=1)
        }
        if token_id not in at_position:
            at_position[token_id] = Logprob(logprobs.logprob, logprobs.rank, self._text(token_id))
        return at_position

    def _text(self, token_id: int) -> str:
        # A model's vocabulary may be padded beyond its tokenizer's.
        if self._tokenizer is None or token_id >= self._tokenizer.vocab_size:
            return ""
        return self._tokenizer.token_bytes(token_id).decode("utf-8", "replace")


def append_token(
    seq: Sequence, token_id: int, logprob: float, shown: LogprobsAtPosition | None
) -> None:
    """Append a token to ``seq`` and end it if it must end here.

    Args:
        seq: grows by the token, its text and its log-probabilities.
        token_id: the token.
        logprob: of it, in nats.
        shown: what the request wants to see of the distribution, or None.
    """
    request = seq.request
    seq.append_token(token_id, logprob)
    if shown is not None:
        seq.logprobs.append(shown)
    if token_id in request.end_token_ids:
        is_asked_for = token_id in request.params.stop_token_ids
        # The token that ends a text is no part of it, unless that was asked for.
        if request.params.include_stop_str_in_output and seq.detokenizer is not None:
            seq.detokenizer.append(token_id)
        _finish(seq, "stop", token_id if is_asked_for else None)
        return
    matched = None if seq.detokenizer is None else seq.detokenizer.append(token_id)
    if matched is not None:
        _finish(seq, "stop", matched.stop)
    elif len(seq.output_token_ids) >= request.max_tokens:
        _finish(seq, "length")


def _finish(seq: Sequence, reason: FinishReason, stop_reason: int | str | None = None) -> None:
    seq.finish_reason = reason
    seq.stop_reason = stop_reason
    if seq.detokenizer is not None:
        seq.detokenizer.finish()
