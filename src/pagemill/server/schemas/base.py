"""What all requests and answers share."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError


class RequestBody(BaseModel):
    """A request: an unknown field is refused by name, and a text is no number."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @field_validator("*", mode="before")
    @classmethod
    def _check_default(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse, of a field made by `only_default`, what would ask for something."""
        assert info.field_name is not None
        extra = cls.model_fields[info.field_name].json_schema_extra
        if isinstance(extra, dict) and "enum" in extra and value not in extra["enum"]:  # type: ignore[operator]
            raise PydanticCustomError("unsupported", "is not supported by this server")
        return value


class AnswerBody(BaseModel):
    """An answer."""

    model_config = ConfigDict(extra="forbid")


def only_default(*values: Any, description: str) -> Any:
    """A field of the API that asks for what this server does not do.

    Args:
        values: what means the same as leaving it out, besides null.
        description: what it would ask for.
    """
    text = f"Not supported: {description}"
    return Field(None, description=text, json_schema_extra={"enum": [None, *values]})


class ErrorDetail(AnswerBody):
    """What is wrong."""

    message: str
    type: str
    param: str | None = Field(description="The field at fault.")
    code: str | None


class ErrorAnswer(AnswerBody):
    """The body of every answer that is no success."""

    error: ErrorDetail


class StreamOptions(RequestBody):
    """What a stream tells besides the text."""

    include_usage: bool | None = Field(None, description="A last chunk with the usage.")
    continuous_usage_stats: bool | None = Field(
        None, description="With include_usage: the usage so far in every chunk."
    )
    include_obfuscation: Any = only_default(False, description="padding that hides lengths.")


class PromptTokensDetails(AnswerBody):
    """Where the prompt's tokens came from."""

    cached_tokens: int = Field(description="Not computed again: a prefix cache had them.")


class Usage(AnswerBody):
    """Tokens of all prompts and samples."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {
        "model": ErrorAnswer,
        "description": "The request is at fault: 400 (a field, named), 401 (no valid key), 404 "
        "(another model), 408, 413 (too slow or too large), 429 (later, see Retry-After).",
    },
    "5XX": {
        "model": ErrorAnswer,
        "description": "The server is: 500 (it failed), 503 (loading or stopping), 504 (too long).",
    },
}
"""For a route's description."""


def whole_or_stream(
    answer: type[BaseModel], chunk: type[BaseModel]
) -> dict[int | str, dict[str, Any]]:
    """The answers of a route that can stream, for its description.

    Args:
        answer: without ``stream``.
        chunk: with it, the data of each event; `pagemill.server.app` describes it.
    """
    text = (
        f"Server-sent events, if `stream` is true: each is `data: ` and a {chunk.__name__}, or an "
        f"ErrorAnswer if it fails on the way. The last one is `data: [DONE]`."
    )
    stream = {
        "schema": {"type": "string", "description": text},
        "x-event": {"$ref": f"#/components/schemas/{chunk.__name__}"},
    }
    success = {"model": answer, "content": {"text/event-stream": stream}}
    return {200: success, **ERRORS}
