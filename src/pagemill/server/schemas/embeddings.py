"""POST /v1/embeddings."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema

from pagemill.server.schemas.base import AnswerBody, RequestBody
from pagemill.server.schemas.completions import PROMPTS


class EmbeddingRequest(RequestBody):
    """Texts to be embedded: the mean of the model's last hidden states over their tokens."""

    model: str = Field(description="The served model's name, as /v1/models lists it.")
    input: Annotated[Any, WithJsonSchema(PROMPTS)] = Field(
        description="A text, texts, token ids, or lists of those."
    )
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="base64: of little-endian 32-bit floats. Float unless given."
    )
    dimensions: int | None = Field(
        None, ge=1, description="The model's own number of dimensions, or null."
    )
    user: str | None = Field(None, description="Accepted; changes nothing.")
    priority: int | None = Field(
        None, description="Smaller is more urgent; needs the scheduling policy 'priority'."
    )
    cache_salt: str | None = Field(
        None, description="Computed prefixes are shared among requests of the same salt only."
    )


class EmbeddingItem(AnswerBody):
    """The vector of one input."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(AnswerBody):
    """Tokens of all inputs."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingAnswer(AnswerBody):
    """The vectors, in the order of the inputs."""

    object: Literal["list"]
    data: list[EmbeddingItem]
    model: str
    usage: EmbeddingUsage
