"""POST /v1/completions: a text goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from pagemill.sampling_params import SamplingParams
from pagemill.server.completion_writer import CompletionWriter
from pagemill.server.context import ServerContext
from pagemill.server.errors import ApiError
from pagemill.server.event_stream import ComputedResponse, Reply
from pagemill.server.generation import Job
from pagemill.server.prompts import EncodedPrompt, Listed, encode_prompts, listed_prompts
from pagemill.server.requests import arrival_of, caller_of, check_model, context_of, new_id
from pagemill.server.sampling import check_limits, check_logprobs, sampling_params
from pagemill.server.schemas.base import whole_or_stream
from pagemill.server.schemas.completions import CompletionAnswer, CompletionRequest
from pagemill.server.serving import Prepared, serve

DEFAULT_MAX_TOKENS = 16

router = APIRouter(tags=["completions"])


@router.post("/v1/completions", responses=whole_or_stream(CompletionAnswer, CompletionAnswer))
async def create_completion(request: Request, body: CompletionRequest) -> Response:
    """Continue one text, or several.

    With ``stream`` the answer is a stream of server-sent events, each a part of it.
    """
    context = context_of(request)
    check_model(context, body.model)
    prompts = _listed(body, context)
    samples = _num_samples(body)
    check_limits(body, len(prompts), samples, context)
    check_logprobs("logprobs", body.logprobs, context)
    if body.max_tokens == 0 and not body.echo:
        rule = "max_tokens must be at least 1, or 0 together with echo to score the prompt"
        raise ApiError(400, rule, param="max_tokens")
    caller = caller_of(request)

    async def prepare() -> Prepared:
        encoded = await encode_prompts(
            prompts,
            context,
            field="prompt",
            add_special_tokens=body.add_special_tokens is not False,
        )
        params = await asyncio.to_thread(_params, body, context, encoded, samples)
        job = Job(
            answer_id=new_id("cmpl"),
            prompts=[prompt.token_ids for prompt in encoded],
            params=params,
            prompt_field="prompt",
            priority=caller.priority_for(body.priority),
            cache_salt=caller.salt_for(body.cache_salt),
            arrival_seconds=arrival_of(request),
        )
        echoed = await asyncio.to_thread(_echoed_texts, body, context, encoded)
        return Prepared(job, CompletionWriter(context, body, job.answer_id, encoded, echoed))

    async def work(reply: Reply) -> None:
        num_sequences = len(prompts) * samples
        await serve(reply, context, caller, body, num_sequences=num_sequences, prepare=prepare)

    return ComputedResponse(request, work)


def _listed(body: CompletionRequest, context: ServerContext) -> Listed:
    if body.prompt is not None:
        return listed_prompts(body.prompt, context, field="prompt")
    bos = None if context.tokenizer is None else context.tokenizer.bos_token_id
    if bos is None:
        rule = "prompt must be given: this model has no token that begins a text"
        raise ApiError(400, rule, param="prompt")
    return [[bos]]


def _num_samples(body: CompletionRequest) -> int:
    """How many samples of each prompt to make."""
    asked = body.n or 1
    if body.best_of is None:
        return asked
    if body.best_of < asked:
        rule = f"best_of must be at least n={asked}, got {body.best_of}"
        raise ApiError(400, rule, param="best_of")
    if body.stream and body.best_of > asked:
        rule = "best_of must be n in a stream: the best are known only at the end"
        raise ApiError(400, rule, param="best_of")
    return body.best_of


def _params(
    body: CompletionRequest, context: ServerContext, prompts: Sequence[EncodedPrompt], samples: int
) -> list[SamplingParams]:
    """Of each prompt; they differ in what the context leaves room for."""
    fixed: dict[str, Any] = {"n": samples, "logprobs": body.logprobs}
    if body.echo and (body.logprobs is not None or body.max_tokens == 0):
        fixed["prompt_logprobs"] = body.logprobs or 0
    made: dict[int, SamplingParams] = {}
    listed = []
    for prompt in prompts:
        max_tokens = body.max_tokens
        if max_tokens is None:
            max_tokens = max(
                min(DEFAULT_MAX_TOKENS, context.max_model_len - len(prompt.token_ids)), 1
            )
        if max_tokens not in made:
            made[max_tokens] = sampling_params(body, context, max_tokens=max_tokens, **fixed)
        listed.append(made[max_tokens])
    return listed


def _echoed_texts(
    body: CompletionRequest, context: ServerContext, prompts: Sequence[EncodedPrompt]
) -> list[str]:
    """What each answer begins with."""
    if not body.echo:
        return [""] * len(prompts)
    skip = body.skip_special_tokens is not False
    texts = []
    for prompt in prompts:
        text = prompt.text
        if text is None:
            tokenizer = context.tokenizer
            known = (
                []
                if tokenizer is None
                else [i for i in prompt.token_ids if 0 <= i < tokenizer.vocab_size]
            )
            text = "" if tokenizer is None else tokenizer.decode(known, skip)
        texts.append(text)
    return texts
