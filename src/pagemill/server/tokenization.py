"""POST /tokenize and /detokenize: what the model's tokenizer makes of a text, and back."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request

from pagemill.errors import RequestError
from pagemill.server.answers import TokenTexts
from pagemill.server.context import ServerContext
from pagemill.server.errors import ApiError, refusal
from pagemill.server.prompts import (
    chat_options,
    encode_chat,
    encode_prompts,
    required_tokenizer,
)
from pagemill.server.requests import check_model, context_of
from pagemill.server.schemas.base import ERRORS
from pagemill.server.schemas.tokenization import (
    DetokenizeAnswer,
    DetokenizeRequest,
    TokenizeAnswer,
    TokenizeRequest,
)

router = APIRouter(tags=["tokenization"])


@router.post("/tokenize", responses=ERRORS)
async def tokenize(request: Request, body: TokenizeRequest) -> TokenizeAnswer:
    """The token ids of a prompt, or of a conversation as the model gets it."""
    context = context_of(request)
    check_model(context, body.model)
    tokens = list(await _token_ids(body, context))
    texts = TokenTexts(context.tokenizer)
    return TokenizeAnswer(
        count=len(tokens),
        max_model_len=context.max_model_len,
        tokens=tokens,
        token_strs=[texts.text_of(i) for i in tokens] if body.return_token_strs else None,
    )


async def _token_ids(body: TokenizeRequest, context: ServerContext) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise ApiError(400, "give either a prompt or messages", param="prompt")
    if body.messages is not None:
        options = chat_options(body.add_generation_prompt, body.continue_final_message)
        return list((await encode_chat(body.messages, context, options)).token_ids)
    for_chats = ("add_generation_prompt", "continue_final_message")
    for name in for_chats:
        if getattr(body, name) is not None:
            raise ApiError(400, f"{name} is for messages only", param=name)
    (encoded,) = await encode_prompts(
        [body.prompt or ""],
        context,
        field="prompt",
        add_special_tokens=body.add_special_tokens is not False,
        may_be_empty=True,
    )
    return list(encoded.token_ids)


@router.post("/detokenize", responses=ERRORS)
async def detokenize(request: Request, body: DetokenizeRequest) -> DetokenizeAnswer:
    """The text of token ids, special tokens included."""
    context = context_of(request)
    check_model(context, body.model)
    tokenizer = required_tokenizer(context, "tokens")
    ids = body.tokens
    if not isinstance(ids, list) or not all(type(token_id) is int for token_id in ids):
        raise ApiError(400, "tokens must be a list of token ids", param="tokens")
    if len(ids) > context.max_model_len:
        rule = f"tokens has {len(ids)} entries; max_model_len={context.max_model_len} is the most"
        raise ApiError(400, rule, param="tokens")
    for index, token_id in enumerate(ids):
        if not 0 <= token_id < tokenizer.vocab_size:
            rule = f"tokens[{index}] must be in [0, {tokenizer.vocab_size})"
            raise ApiError(400, rule, param=f"tokens[{index}]")
    try:
        text = await asyncio.to_thread(tokenizer.decode, ids, False)
    except RequestError as error:
        raise refusal(error, prompt_field="tokens") from error
    return DetokenizeAnswer(prompt=text)
