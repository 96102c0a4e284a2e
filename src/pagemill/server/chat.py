"""POST /v1/chat/completions: a conversation is answered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from pagemill.outputs import CompletionOutput, RequestOutput
from pagemill.server.answers import TokenTexts, chat_logprobs
from pagemill.server.chunks import ChunkFrame
from pagemill.server.context import ServerContext
from pagemill.server.errors import ApiError
from pagemill.server.event_stream import ComputedResponse, Reply
from pagemill.server.generation import Job
from pagemill.server.prompts import chat_options, encode_chat
from pagemill.server.requests import arrival_of, caller_of, check_model, context_of, new_id
from pagemill.server.sampling import check_limits, check_logprobs, sampling_params
from pagemill.server.schemas.base import whole_or_stream
from pagemill.server.schemas.chat import ChatAnswer, ChatChunk, ChatRequest
from pagemill.server.serving import Prepared, Usage, envelope, serve, wants_usage, with_list

ROLE = '"delta": {"role": "assistant", "content": ""}'
NOTHING = '"delta": {}'

router = APIRouter(tags=["chat"])


@router.post("/v1/chat/completions", responses=whole_or_stream(ChatAnswer, ChatChunk))
async def create_chat_completion(request: Request, body: ChatRequest) -> Response:
    """Answer a conversation, through the model's own chat template.

    With ``stream`` the answer is a stream of server-sent events, each a part of it.
    """
    context = context_of(request)
    check_model(context, body.model)
    samples = body.n or 1
    check_limits(body, 1, samples, context)
    top_logprobs = _top_logprobs(body, context)
    asked_tokens = _asked_tokens(body)
    options = chat_options(body.add_generation_prompt, body.continue_final_message)
    caller = caller_of(request)

    async def prepare() -> Prepared:
        prompt = await encode_chat(body.messages, context, options)
        room = context.max_model_len - len(prompt.token_ids)
        fits = asked_tokens is not None and asked_tokens <= room
        params = await asyncio.to_thread(
            sampling_params,
            body,
            context,
            n=samples,
            max_tokens=asked_tokens if fits else None,
            logprobs=top_logprobs,
        )
        job = Job(
            answer_id=new_id("chatcmpl"),
            prompts=[prompt.token_ids],
            params=[params],
            prompt_field="messages",
            priority=caller.priority_for(body.priority),
            cache_salt=caller.salt_for(body.cache_salt),
            arrival_seconds=arrival_of(request),
        )
        return Prepared(job, ChatWriter(context, body, job.answer_id))

    async def work(reply: Reply) -> None:
        await serve(reply, context, caller, body, num_sequences=samples, prepare=prepare)

    return ComputedResponse(request, work)


def _top_logprobs(body: ChatRequest, context: ServerContext) -> int | None:
    """What the sampler is to report; None: nothing."""
    if not body.logprobs:
        if body.top_logprobs:
            rule = "top_logprobs needs logprobs to be true"
            raise ApiError(400, rule, param="top_logprobs")
        return None
    check_logprobs("top_logprobs", body.top_logprobs, context)
    return body.top_logprobs or 0


def _asked_tokens(body: ChatRequest) -> int | None:
    """How long the answer may be; None: as the context allows."""
    newer, older = body.max_completion_tokens, body.max_tokens
    if newer is not None and older is not None and newer != older:
        rule = "max_tokens is the older name of max_completion_tokens; give one of them"
        raise ApiError(400, rule, param="max_tokens")
    return older if newer is None else newer


@dataclass(slots=True)
class _Sent:
    """How much of one choice is in the chunks so far."""

    num_characters: int = 0
    num_tokens: int = 0
    begun: bool = False
    ended: bool = False


class ChatWriter:
    """Writes the answer of one request.

    Args:
        context: of the server.
        body: the request.
        answer_id: of the answer.
    """

    def __init__(self, context: ServerContext, body: ChatRequest, answer_id: str) -> None:
        self._top_logprobs = (body.top_logprobs or 0) if body.logprobs else None
        self._texts = TokenTexts(context.tokenizer)
        self._envelope = envelope(answer_id, "chat.completion", context)
        chunk_envelope = self._envelope | {"object": "chat.completion.chunk"}
        self._frame = ChunkFrame(chunk_envelope, has_usage=wants_usage(body))
        self._sent = [_Sent() for _ in range(body.n or 1)]

    def chunks(self, index: int, output: RequestOutput, usage: Usage | None) -> list[str]:
        """See `pagemill.server.serving.AnswerWriter`."""
        assert index == 0, "a chat has one prompt"
        events: list[str] = []
        for sample in output.outputs:
            sent = self._sent[sample.index]
            if not sent.begun and (sample.token_ids or sample.finish_reason):
                sent.begun = True
                events.append(self._frame.chunk(sample.index, ROLE, usage=usage))
            if not sent.ended:
                self._add_chunks(events, sent, sample, usage)
        return events

    def _add_chunks(
        self, events: list[str], sent: _Sent, sample: CompletionOutput, usage: Usage | None
    ) -> None:
        text = sample.text[sent.num_characters :]
        if text:
            sent.num_characters += len(text)
            content = f'"delta": {{"content": {json.dumps(text)}}}'
            logprobs = self._new_logprobs(sent, sample)
            chunk = self._frame.chunk(sample.index, content, logprobs=logprobs, usage=usage)
            events.append(chunk)
        if sample.finish_reason is not None:
            sent.ended = True
            chunk = self._frame.chunk(
                sample.index,
                NOTHING,
                logprobs=self._new_logprobs(sent, sample),
                finish_reason=sample.finish_reason,
                stop_reason=sample.stop_reason,
                usage=usage,
            )
            events.append(chunk)

    def usage_chunk(self, usage: Usage) -> str:
        """See `pagemill.server.serving.AnswerWriter`."""
        return self._frame.usage(usage)

    def whole(self, outputs: Sequence[RequestOutput], usage: Usage) -> str:
        """See `pagemill.server.serving.AnswerWriter`."""
        (output,) = outputs
        choices = [
            {
                "index": sample.index,
                "message": {"role": "assistant", "content": sample.text, "refusal": None},
                "logprobs": self._new_logprobs(_Sent(), sample),
                "finish_reason": sample.finish_reason,
                "stop_reason": sample.stop_reason,
            }
            for sample in output.outputs
        ]
        return with_list(self._envelope, "choices", choices, {"usage": usage})

    def _new_logprobs(self, sent: _Sent, sample: CompletionOutput) -> dict[str, Any] | None:
        """Of the tokens that no chunk has had."""
        if self._top_logprobs is None or sample.logprobs is None:
            return None
        start = sent.num_tokens
        sent.num_tokens = len(sample.token_ids)
        if start and start == sent.num_tokens:
            return None
        return chat_logprobs(
            sample.token_ids[start:], sample.logprobs[start:], self._top_logprobs, self._texts
        )
