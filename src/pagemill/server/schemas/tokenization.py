"""POST /tokenize and /detokenize."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from pagemill.server.schemas.base import AnswerBody, RequestBody
from pagemill.server.schemas.chat import MESSAGES


class TokenizeRequest(RequestBody):
    """A text, or a conversation."""

    model: str | None = Field(None, description="The served model's name; it may be left out.")
    prompt: str | None = Field(None, description="A text; give this or messages.")
    messages: Annotated[Any, WithJsonSchema({"anyOf": [MESSAGES, {"type": "null"}]})] = Field(
        None, description="A conversation."
    )
    add_special_tokens: bool | None = Field(
        None, description="Of a text: with the tokens that the model expects around it; true."
    )
    return_token_strs: bool | None = Field(None, description="With the text of each token.")
    add_generation_prompt: bool | None = Field(None, description="Of a conversation; true.")
    continue_final_message: bool | None = Field(None, description="Of a conversation; false.")


class TokenizeAnswer(AnswerBody):
    """Its tokens."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeRequest(RequestBody):
    """Token ids."""

    model: str | None = Field(None, description="The served model's name; it may be left out.")
    tokens: Annotated[
        Any, WithJsonSchema({"type": "array", "items": {"type": "integer", "minimum": 0}})
    ] = Field(description="Token ids.")


class DetokenizeAnswer(AnswerBody):
    """Their text, special tokens included."""

    prompt: str
