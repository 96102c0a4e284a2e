"""POST /v1/embeddings: the mean of a model's last hidden states over the tokens of a text."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from starlette.responses import Response

from pagemill.errors import EngineError, ModelError, RequestError
from pagemill.outputs import EmbeddingOutput
from pagemill.server.context import ServerContext
from pagemill.server.errors import ApiError, refusal
from pagemill.server.event_stream import ComputedResponse, Reply
from pagemill.server.keys import Caller
from pagemill.server.prompts import Listed, encode_prompts, listed_prompts
from pagemill.server.requests import arrival_of, caller_of, check_model, context_of, new_id
from pagemill.server.schemas.base import ERRORS
from pagemill.server.schemas.embeddings import EmbeddingAnswer, EmbeddingRequest
from pagemill.server.serving import with_list

router = APIRouter(tags=["embeddings"])


@router.post("/v1/embeddings", responses={200: {"model": EmbeddingAnswer}, **ERRORS})
async def create_embeddings(request: Request, body: EmbeddingRequest) -> Response:
    """Embed one text, or several.

    A vector is the mean of the hidden states behind the model's last norm, over all tokens of the
    input; it is not scaled to length 1.
    """
    context = context_of(request)
    check_model(context, body.model)
    inputs = listed_prompts(body.input, context, field="input")
    caller = caller_of(request)
    arrival_seconds = arrival_of(request)

    async def work(reply: Reply) -> None:
        outputs = await _embedded(context, caller, body, inputs, arrival_seconds)
        await reply.json(await asyncio.to_thread(_answer, context, body, outputs))

    return ComputedResponse(request, work)


async def _embedded(
    context: ServerContext,
    caller: Caller,
    body: EmbeddingRequest,
    inputs: Listed,
    arrival_seconds: float,
) -> list[EmbeddingOutput]:
    """The vectors of all inputs; when one fails, none is computed any more."""
    with context.work(len(inputs)):
        prompts = await encode_prompts(inputs, context, field="input")
        num_tokens = sum(len(prompt.token_ids) for prompt in prompts)
        with context.work(0, caller=caller, num_tokens=num_tokens) as charged:
            request_id = new_id("embd")

            async def embedded(index: int, token_ids: Sequence[int]) -> EmbeddingOutput:
                try:
                    return await context.engine.embed(
                        f"{request_id}-{index}",
                        token_ids,
                        priority=caller.priority_for(body.priority),
                        cache_salt=caller.salt_for(body.cache_salt),
                        arrival_seconds=arrival_seconds,
                    )
                except RequestError as error:
                    field = "input" if len(prompts) == 1 else f"input[{index}]"
                    raise refusal(error, prompt_field=field) from error

            tasks = [
                asyncio.create_task(embedded(index, prompt.token_ids))
                for index, prompt in enumerate(prompts)
            ]
            try:
                return await asyncio.gather(*tasks)
            except Exception as error:
                charged.num_tokens_used = 0
                if isinstance(error, ModelError):
                    message = "the model computed no vector for this input (NaN or infinity)"
                    raise ApiError(500, message, code="damaged_embedding") from error
                if isinstance(error, EngineError):
                    context.check_not_ended()
                raise
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)


def _answer(
    context: ServerContext, body: EmbeddingRequest, outputs: Sequence[EmbeddingOutput]
) -> str:
    size = len(outputs[0].embedding)
    if body.dimensions is not None and body.dimensions != size:
        rule = f"dimensions must be {size}, the model's own, got {body.dimensions}"
        raise ApiError(400, rule, param="dimensions")
    num_tokens = sum(len(output.prompt_token_ids) for output in outputs)
    data: list[dict[str, Any]] = [
        {
            "object": "embedding",
            "index": index,
            "embedding": _encoded(output, body.encoding_format),
        }
        for index, output in enumerate(outputs)
    ]
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    rest = {"model": context.model_id, "usage": usage}
    return with_list({"object": "list"}, "data", data, rest)


def _encoded(output: EmbeddingOutput, encoding_format: str | None) -> list[float] | str:
    vector = np.asarray(output.embedding, "<f4")
    if encoding_format == "base64":
        return base64.b64encode(vector.tobytes()).decode()
    return [float(x) for x in vector]
