"""The answers of POST /v1/completions: whole, or in chunks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pagemill.outputs import CompletionOutput, RequestOutput
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
from pagemill.server.serving import Usage, envelope, wants_usage, with_list


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
        self._num_returned = body.n or 1
        texts = TokenTexts(context.tokenizer)
        self._prompts = [
            _PromptPart(body, prompt.token_ids, text, texts)
            for prompt, text in zip(prompts, echoed, strict=True)
        ]
        self._envelope = envelope(answer_id, "text_completion", context)
        self._frame = ChunkFrame(self._envelope, has_usage=wants_usage(body))
        self._choices: dict[int, _Choice] = {}

    def chunks(self, index: int, output: RequestOutput, usage: Usage | None) -> list[str]:
        """See `pagemill.server.serving.AnswerWriter`."""
        events: list[str] = []
        for sample in output.outputs:
            number = index * self._num_returned + sample.index
            choice = self._choices.get(number)
            if choice is None:
                choice = self._choices[number] = _Choice(number, self._prompts[index])
            if not choice.ended:
                events += choice.chunks(self._frame, output, sample, usage)
        return events

    def usage_chunk(self, usage: Usage) -> str:
        """See `pagemill.server.serving.AnswerWriter`."""
        return self._frame.usage(usage)

    def whole(self, outputs: Sequence[RequestOutput], usage: Usage) -> str:
        """See `pagemill.server.serving.AnswerWriter`."""
        choices: list[dict[str, Any]] = []
        for prompt, output in zip(self._prompts, outputs, strict=True):
            for sample in best_samples(output.outputs, self._num_returned):
                choices.append(_Choice(len(choices), prompt).whole(output, sample))
        return with_list(self._envelope, "choices", choices, {"usage": usage})


class _PromptPart:
    """What all answers to one prompt begin with, if it is echoed: text and log-probabilities."""

    def __init__(
        self, body: CompletionRequest, token_ids: Sequence[int], text: str, texts: TokenTexts
    ) -> None:
        self.text = text
        self.is_echoed = bool(body.echo)
        self.texts = texts
        self._body = body
        self._token_ids = token_ids
        self._scored: dict[str, Any] | None = None

    def offsets_behind(self) -> TextOffsets | None:
        """Where generated tokens begin; None: log-probabilities are not asked for."""
        if self._body.logprobs is None:
            return None
        skip = self._body.skip_special_tokens is not False
        return TextOffsets(self.texts, skip, start=len(self.text))

    def scored(self, output: RequestOutput) -> dict[str, Any]:
        """The log-probabilities of its tokens; the same for all samples."""
        if self._scored is None:
            assert output.prompt_logprobs is not None, "they were asked for"
            offsets = prompt_offsets(self._token_ids, self.text, self.texts)
            self._scored = completion_logprobs(
                self._token_ids, output.prompt_logprobs, offsets, self.texts
            )
        return self._scored


class _Choice:
    """One sample of an answer, and how much of it was written."""

    def __init__(self, number: int, prompt: _PromptPart) -> None:
        self.ended = False
        self._number = number
        self._prompt = prompt
        self._offsets = prompt.offsets_behind()
        self._begun = not prompt.is_echoed
        self._num_characters = 0
        self._num_tokens = 0

    def chunks(
        self,
        frame: ChunkFrame,
        output: RequestOutput,
        sample: CompletionOutput,
        usage: Usage | None,
    ) -> list[str]:
        """What is new: a chunk with text if there is some, and the last one at the end."""
        text = sample.text[self._num_characters :]
        self._num_characters += len(text)
        if not self._begun:
            text = self._prompt.text + text
        self.ended = sample.finish_reason is not None
        if not text and not self.ended:
            return []
        logprobs = self._logprobs(output, sample)
        events = []
        if text:
            content = f'"text": {json.dumps(text)}'
            events.append(frame.chunk(self._number, content, logprobs=logprobs, usage=usage))
            logprobs = None
        if self.ended:
            chunk = frame.chunk(
                self._number,
                '"text": ""',
                logprobs=logprobs,
                finish_reason=sample.finish_reason,
                stop_reason=sample.stop_reason,
                usage=usage,
            )
            events.append(chunk)
        return events

    def whole(self, output: RequestOutput, sample: CompletionOutput) -> dict[str, Any]:
        """All of it."""
        return {
            "index": self._number,
            "text": self._prompt.text + sample.text,
            "logprobs": self._logprobs(output, sample),
            "finish_reason": sample.finish_reason,
            "stop_reason": sample.stop_reason,
        }

    def _logprobs(self, output: RequestOutput, sample: CompletionOutput) -> dict[str, Any] | None:
        """Of the tokens that were not written yet, an echoed prompt's first."""
        begins, self._begun = not self._begun, True
        if self._offsets is None or sample.logprobs is None:
            return None
        start, self._num_tokens = self._num_tokens, len(sample.token_ids)
        token_ids = sample.token_ids[start:]
        positions = sample.logprobs[start:]
        offsets = self._offsets.take(token_ids)
        generated = completion_logprobs(token_ids, positions, offsets, self._prompt.texts)
        if begins:
            scored = self._prompt.scored(output)
            return {name: scored[name] + generated[name] for name in scored}
        return generated if token_ids else None


def best_samples(samples: Sequence[CompletionOutput], count: int) -> Sequence[CompletionOutput]:
    """The ``count`` samples that are the likeliest per token, the likeliest first.

    All of them stay in their own order.
    """
    if len(samples) == count:
        return samples

    def mean_logprob(sample: CompletionOutput) -> float:
        return sample.cumulative_logprob / max(len(sample.token_ids), 1)

    return sorted(samples, key=mean_logprob, reverse=True)[:count]
