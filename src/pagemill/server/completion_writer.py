"""The answers of POST /v1/completions: whole, or in chunks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pagemill.outputs import CompletionOutput, LogprobsAtPosition, RequestOutput
from pagemill.server.answers import (
    TextOffsets,
    TokenTexts,
    completion_logprobs,
    prompt_offsets,
)
from pagemill.server.chunks import ChunkFrame
from pagemill.server.context import ServerContext
from pagemill.server.prompts import EncodedPrompt
from pagemill.server.schemas.completions import CompletionRequest
from pagemill.server.serving import Usage, envelope, wants_usage


@dataclass(slots=True)
class _Sent:
    """How much of one choice is in the chunks so far."""

    offsets: TextOffsets | None
    num_characters: int = 0
    num_tokens: int = 0
    begun: bool = False
    ended: bool = False


class CompletionWriter:
    """Writes the answer of one request.

    Args:
        context: of the server.
        body: the request.
        answer_id: of the answer.
        prompts: of each its tokens.
        echoed: what the answer to each begins with.
    """

    def __init__(
        self,
        context: ServerContext,
        body: CompletionRequest,
        answer_id: str,
        prompts: Sequence[EncodedPrompt],
        echoed: Sequence[str],
    ) -> None:
        self._body = body
        self._prompts = prompts
        self._echoed = echoed
        self._num_returned = body.n or 1
        self._skip = body.skip_special_tokens is not False
        self._texts = TokenTexts(context.tokenizer)
        self._envelope = envelope(answer_id, "text_completion", context)
        self._frame = ChunkFrame(self._envelope, has_usage=wants_usage(body))
        self._sent: dict[int, _Sent] = {}

    def chunks(self, index: int, output: RequestOutput, usage: Usage | None) -> Iterator[str]:
        """See `pagemill.server.serving.AnswerWriter`."""
        for sample in output.outputs:
            choice = index * self._num_returned + sample.index
            sent = self._sent.get(choice)
            if sent is None:
                sent = self._sent[choice] = _Sent(self._offsets(index))
            if not sent.ended:
                yield from self._sample_chunks(choice, index, sent, output, sample, usage)

    def _sample_chunks(
        self,
        choice: int,
        index: int,
        sent: _Sent,
        output: RequestOutput,
        sample: CompletionOutput,
        usage: Usage | None,
    ) -> Iterator[str]:
        text = sample.text[sent.num_characters :]
        sent.num_characters += len(text)
        prompt_tokens = not sent.begun and bool(self._body.echo)
        if prompt_tokens:
            text = self._echoed[index] + text
        sent.begun = True
        logprobs = None
        if text or sample.finish_reason is not None:
            logprobs = self._new_logprobs(index, sent, output, sample, prompt_tokens)
        if text:
            content = f'"text": {json.dumps(text)}'
            yield self._frame.chunk(choice, content, logprobs=logprobs, usage=usage)
            logprobs = None
        if sample.finish_reason is not None:
            sent.ended = True
            yield self._frame.chunk(
                choice,
                '"text": ""',
                logprobs=logprobs,
                finish_reason=sample.finish_reason,
                stop_reason=sample.stop_reason,
                usage=usage,
            )

    def usage_chunk(self, usage: Usage) -> str:
        """See `pagemill.server.serving.AnswerWriter`."""
        return self._frame.usage(usage)

    def whole(self, outputs: Sequence[RequestOutput], usage: Usage) -> str:
        """See `pagemill.server.serving.AnswerWriter`."""
        choices: list[dict[str, Any]] = []
        for index, output in enumerate(outputs):
            for sample in best_samples(output.outputs, self._num_returned):
                sent = _Sent(self._offsets(index))
                choices.append(
                    {
                        "index": len(choices),
                        "text": self._echoed[index] + sample.text,
                        "logprobs": self._new_logprobs(
                            index, sent, output, sample, bool(self._body.echo)
                        ),
                        "finish_reason": sample.finish_reason,
                        "stop_reason": sample.stop_reason,
                    }
                )
        return json.dumps(self._envelope | {"choices": choices, "usage": usage})

    def _offsets(self, index: int) -> TextOffsets | None:
        if self._body.logprobs is None:
            return None
        return TextOffsets(self._texts, self._skip, start=len(self._echoed[index]))

    def _new_logprobs(
        self,
        index: int,
        sent: _Sent,
        output: RequestOutput,
        sample: CompletionOutput,
        prompt_tokens: bool,
    ) -> dict[str, Any] | None:
        """Of the tokens that no chunk has had, those of the prompt first if they are wanted."""
        if self._body.logprobs is None or sample.logprobs is None or sent.offsets is None:
            return None
        token_ids = sample.token_ids[sent.num_tokens :]
        positions: list[LogprobsAtPosition | None] = [*sample.logprobs[sent.num_tokens :]]
        sent.num_tokens += len(token_ids)
        offsets = sent.offsets.take(token_ids)
        if prompt_tokens:
            ids = self._prompts[index].token_ids
            positions = [*(output.prompt_logprobs or [None] * len(ids)), *positions]
            offsets = [*prompt_offsets(ids, self._echoed[index], self._texts), *offsets]
            token_ids = [*ids, *token_ids]
        elif not token_ids:
            return None
        return completion_logprobs(token_ids, positions, offsets, self._texts)


def best_samples(samples: Sequence[CompletionOutput], count: int) -> Sequence[CompletionOutput]:
    """The ``count`` samples that are the likeliest per token, the likeliest first.

    All of them stay in their own order.
    """
    if len(samples) == count:
        return samples

    def mean_logprob(sample: CompletionOutput) -> float:
        return sample.cumulative_logprob / max(len(sample.token_ids), 1)

    return sorted(samples, key=mean_logprob, reverse=True)[:count]
