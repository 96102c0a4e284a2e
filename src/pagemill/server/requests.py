"""What every handler asks of a request: whose it is, when it came, and of which server."""

from __future__ import annotations

import time
from typing import cast
from uuid import uuid4

from fastapi import Request

from pagemill.server.context import ServerContext
from pagemill.server.errors import ApiError
from pagemill.server.keys import ANONYMOUS, Caller


def context_of(request: Request) -> ServerContext:
    """The server's."""
    return cast(ServerContext, request.app.state.context)


def caller_of(request: Request) -> Caller:
    """Set by the middleware that authenticates."""
    return cast(Caller, getattr(request.state, "caller", ANONYMOUS))


def arrival_of(request: Request) -> float:
    """On `time.monotonic`: when the outermost middleware saw it."""
    return cast(float, getattr(request.state, "arrival_seconds", None) or time.monotonic())


def check_model(context: ServerContext, model: str | None) -> None:
    """Raises ApiError 404 for the name of another model; None names none."""
    if model is not None and model != context.model_id:
        raise ApiError(
            404,
            f"the model {model!r} does not exist here; this server has {context.model_id!r}",
            param="model",
            code="model_not_found",
        )


def new_id(kind: str) -> str:
    """Of one answer, as ``chatcmpl-3f1c…``."""
    return f"{kind}-{uuid4().hex}"
