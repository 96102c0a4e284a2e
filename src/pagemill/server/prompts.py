"""What a client wants continued, as token ids. Tokenizers run in threads, never on the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pagemill.errors import RequestError, RequestTooLargeError
from pagemill.loading.tokenizer import FileTokenizer
from pagemill.server.context import ServerContext
from pagemill.server.errors import ApiError, refusal

Listed = list[str] | list[list[int]]
"""Texts, or token ids of each prompt."""


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """One prompt."""

    token_ids: Sequence[int]
    text: str | None
    """As the client wrote it; None: it was given as token ids."""


def listed_prompts(value: object, context: ServerContext, *, field: str) -> Listed:
    """Tell one prompt from many, and refuse what is neither; nothing is encoded yet.

    Args:
        value: a text, a list of texts, of token ids, or of lists of those.
        context: whose limits hold.
        field: what clients call it.

    Raises:
        ApiError: 400, naming ``field``.
    """
    most = context.settings.max_prompts_per_request
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise _not_prompts(field)
    if isinstance(value[0], int) and not isinstance(value[0], bool):
        return [_checked_ids(value, context, field)]
    if len(value) > most:
        raise ApiError(400, f"{field} has {len(value)} entries; {most} is the most", param=field)
    if all(isinstance(text, str) for text in value):
        return value
    if all(isinstance(ids, list) for ids in value):
        return [_checked_ids(ids, context, f"{field}[{i}]") for i, ids in enumerate(value)]
    raise _not_prompts(field)


def _checked_ids(ids: list[Any], context: ServerContext, field: str) -> list[int]:
    """Whether they are in the vocabulary is for the engine to say."""
    if not ids:
        raise ApiError(400, f"{field} must hold at least one token id", param=field)
    if len(ids) > context.max_model_len:
        limit = context.max_model_len
        raise refusal(
            RequestTooLargeError(
                f"{field} has {len(ids)} tokens, but the context is max_model_len={limit} tokens"
            ),
            prompt_field=field,
        )
    if not all(type(token_id) is int for token_id in ids):
        raise ApiError(400, f"{field} must hold token ids, which are integers", param=field)
    return ids


def _not_prompts(field: str) -> ApiError:
    rule = "must be a text, a list of texts, a list of token ids, or a list of those, not empty"
    return ApiError(400, f"{field} {rule}", param=field)


async def encode_prompts(
    prompts: Listed,
    context: ServerContext,
    *,
    field: str,
    add_special_tokens: bool = True,
    may_be_empty: bool = False,
) -> list[EncodedPrompt]:
    """The token ids of all prompts.

    Args:
        prompts: see `listed_prompts`.
        context: whose tokenizer.
        field: what clients call them.
        add_special_tokens: those that the model expects around a text.
        may_be_empty: accept a text that becomes no token.

    Raises:
        ApiError: 400, naming ``field``.
    """
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    if not texts:
        return [EncodedPrompt(ids, None) for ids in prompts if not isinstance(ids, str)]
    tokenizer = required_tokenizer(context, field)
    limit = context.max_model_len

    def encode_all() -> list[EncodedPrompt]:
        encoded = []
        for text in texts:
            token_ids = tokenizer.encode(text, add_special_tokens, max_tokens=limit)
            if not token_ids and not may_be_empty:
                raise ApiError(400, f"{field} must hold at least one token", param=field)
            encoded.append(EncodedPrompt(token_ids, text))
        return encoded

    try:
        return await asyncio.to_thread(encode_all)
    except RequestError as error:
        raise refusal(error, prompt_field=field) from error


def chat_options(
    add_generation_prompt: bool | None, continue_final_message: bool | None
) -> dict[str, bool]:
    """What `encode_chat` is told: a conversation is answered unless its end is continued."""
    continues = bool(continue_final_message)
    answers = not continues if add_generation_prompt is None else add_generation_prompt
    return {"add_generation_prompt": answers, "continue_final_message": continues}


async def encode_chat(
    messages: object, context: ServerContext, options: Mapping[str, bool]
) -> EncodedPrompt:
    """The token ids of a conversation.

    Args:
        messages: as the client wrote them.
        context: whose tokenizer.
        options: see `chat_options`.

    Raises:
        ApiError: 400, naming what is wrong in the messages.
    """
    tokenizer = required_tokenizer(context, "messages")
    if isinstance(messages, list) and len(messages) > context.max_model_len:
        raise refusal(
            RequestTooLargeError(
                f"{len(messages)} messages are more than the context has tokens, "
                f"max_model_len={context.max_model_len}"
            ),
            prompt_field="messages",
        )

    def encode() -> list[int]:
        # The tokenizer checks what they are.
        return tokenizer.encode_chat(messages, max_tokens=context.max_model_len, **options)  # type: ignore[arg-type]

    try:
        token_ids = await asyncio.to_thread(encode)
    except RequestError as error:
        raise refusal(error, prompt_field="messages") from error
    if not token_ids:
        raise ApiError(400, "the messages are empty for this model's template", param="messages")
    return EncodedPrompt(token_ids, None)


def required_tokenizer(context: ServerContext, field: str) -> FileTokenizer:
    """Raises ApiError 400 if the model came without one."""
    if context.tokenizer is None:
        rule = "needs a tokenizer, which this model came without; send token ids to /v1/completions"
        raise ApiError(400, f"{field} {rule}", param=field)
    return context.tokenizer
