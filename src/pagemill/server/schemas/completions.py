"""POST /v1/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema

from pagemill.sampling_params import MAX_N
from pagemill.server.schemas.base import AnswerBody, Usage, only_default
from pagemill.server.schemas.sampling import SamplingFields

_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
PROMPTS: dict[str, Any] = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}, "minItems": 1},
        _IDS,
        {"type": "array", "items": _IDS, "minItems": 1},
    ]
}


class CompletionRequest(SamplingFields):
    """A text, or several, to be continued."""

    prompt: Annotated[Any, WithJsonSchema({"anyOf": [*PROMPTS["anyOf"], {"type": "null"}]})] = (
        Field(description="A text, texts, token ids, or lists of those. Null: where a text begins.")
    )
    max_tokens: int | None = Field(None, ge=0, description="16 unless given; 0 only with echo.")
    best_of: int | None = Field(
        None, ge=1, le=MAX_N, description="Make so many samples, and return the n likeliest."
    )
    echo: bool | None = Field(None, description="Begin the answer with the prompt.")
    logprobs: int | None = Field(
        None, ge=0, description="How many of the likeliest tokens to report with each token."
    )
    add_special_tokens: bool | None = Field(
        None, description="Whether a text gets the tokens that the model expects around it: true."
    )
    suffix: Any = only_default("", description="a text that comes after the answer.")


class CompletionLogprobs(AnswerBody):
    """One entry for each token, prompt tokens first where the prompt is echoed."""

    tokens: list[str]
    """A token whose bytes are no text is ``bytes:\\xe2\\x80``."""
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(AnswerBody):
    """One sample."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    stop_reason: int | str | None = None


class CompletionAnswer(AnswerBody):
    """The samples of all prompts: sample j of prompt i has the index ``i * n + j``."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None
