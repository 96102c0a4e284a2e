"""GET /v1/models."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pagemill.server.schemas.base import AnswerBody


class ModelCard(AnswerBody):
    """A model that is served."""

    id: str = Field(description="What requests name.")
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "pagemill"
    root: str = Field(description="The name that the model was found by.")
    parent: None = None
    max_model_len: int = Field(description="Longest prompt and answer together, in tokens.")


class ModelList(AnswerBody):
    """All of them."""

    object: Literal["list"] = "list"
    data: list[ModelCard]
