"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema

from pagemill.server.schemas.base import AnswerBody, Usage, only_default
from pagemill.server.schemas.sampling import SamplingFields

_TEXT_PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
}
MESSAGES: dict[str, Any] = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "properties": {
            "role": {"type": "string", "minLength": 1},
            "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": _TEXT_PART}]},
        },
        "required": ["role", "content"],
    },
}


class ChatRequest(SamplingFields):
    """A conversation to be answered."""

    messages: Annotated[Any, WithJsonSchema(MESSAGES)] = Field(
        description="Further keys of a message are for the model's chat template."
    )
    max_completion_tokens: int | None = Field(
        None, ge=1, description="To the end of the context unless given, and at most that."
    )
    max_tokens: int | None = Field(None, ge=1, description="The older name of that.")
    logprobs: bool | None = Field(None, description="Report how likely each token was.")
    top_logprobs: int | None = Field(
        None, ge=0, description="How many of the likeliest tokens to report with each token."
    )
    add_generation_prompt: bool | None = Field(
        None, description="Let the prompt end where the answer begins. True unless continued."
    )
    continue_final_message: bool | None = Field(
        None, description="Let the model go on with the last message."
    )

    parallel_tool_calls: bool | None = Field(None, description="There are none either way.")
    safety_identifier: str | None = Field(None, description="Accepted; changes nothing.")
    prompt_cache_key: str | None = Field(
        None, description="Accepted; prefixes are found whoever asks. See cache_salt."
    )
    prompt_cache_retention: Any = only_default(
        "in_memory", "in-memory", description="keeping prefixes for longer."
    )
    prompt_cache_options: Any = only_default(
        {}, {"mode": "implicit"}, description="marks of what to keep; whole blocks are kept anyway."
    )
    moderation: Any = only_default(description="judging what is said.")
    modalities: Any = only_default(["text"], description="answers that are no text.")
    response_format: Any = only_default({"type": "text"}, description="structured answers.")
    reasoning_effort: Any = only_default("none", description="control of reasoning.")
    verbosity: Any = only_default("medium", description="control of length.")
    tools: Any = only_default([], description="tools.")
    tool_choice: Any = only_default("none", description="tools.")
    functions: Any = only_default([], description="the older form of tools.")
    function_call: Any = only_default("none", description="the older form of tools.")
    audio: Any = only_default(description="spoken answers.")
    prediction: Any = only_default(description="a text that the answer will resemble.")
    web_search_options: Any = only_default(description="searching; no URL is ever fetched.")


class TokenLogprob(AnswerBody):
    """A token and how likely it was, in nats, under the model's raw distribution."""

    token: str
    """A token whose bytes are no text is ``\\xe2\\x80``."""
    logprob: float
    bytes: list[int] | None
    """Exactly what it adds to the text, in UTF-8, of a character perhaps a part only."""


class ChatTokenLogprob(TokenLogprob):
    """One token of an answer, and the likeliest ones in its place."""

    top_logprobs: list[TokenLogprob]


class ChatLogprobs(AnswerBody):
    """One entry for each token of the answer."""

    content: list[ChatTokenLogprob]
    refusal: None = None


class ChatMessage(AnswerBody):
    """The answer."""

    role: Literal["assistant"]
    content: str
    refusal: None = None


class ChatChoice(AnswerBody):
    """One sample."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length"]
    stop_reason: int | str | None = None


class ChatAnswer(AnswerBody):
    """All samples."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class ChatDelta(AnswerBody):
    """What a chunk adds to the answer."""

    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatChunkChoice(AnswerBody):
    """What a chunk adds to one sample."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    stop_reason: int | str | None = None


class ChatChunk(AnswerBody):
    """One event of a stream."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
