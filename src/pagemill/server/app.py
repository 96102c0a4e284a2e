"""`create_app`: the routes, and what stands before them.

    FrontDoor        arrival, request id, access log, the last resort        front_door
    HostCheck        is this for us, or from a foreign web page              doors
    CORSMiddleware   for the origins that are allowed, if any                starlette
    Authentication   whose key is it, and may it ask again so soon           doors
    RequestBody      all of it, in time and not too large                    request_body
    Gate             loading or draining: not now                            doors
    routes           operations, models, completions, chat, ...

From the outside in; `pagemill.server.connection` is outside of all.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from pagemill import __version__
from pagemill.server import chat, completions, embeddings, models, operations, tokenization
from pagemill.server.context import ServerContext
from pagemill.server.doors import Authentication, Gate, HostCheck
from pagemill.server.errors import install_error_handlers
from pagemill.server.front_door import FrontDoor
from pagemill.server.request_body import RequestBody
from pagemill.server.schemas.chat import ChatChunk


def create_app(context: ServerContext) -> FastAPI:
    """The ASGI application of one server; ``context`` is on its ``state.context``."""
    app = _Api(
        title="pagemill",
        version=__version__,
        middleware=_middleware(context),
        docs_url=None,  # their pages load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.context = context
    install_error_handlers(app)
    for part in (operations, models, completions, chat, tokenization, embeddings):
        app.include_router(part.router)
    return app


class _Api(FastAPI):
    def openapi(self) -> dict[str, Any]:
        """The description of the API, with what is only in events of streams."""
        described = super().openapi()
        schemas = described["components"]["schemas"]
        if ChatChunk.__name__ not in schemas:
            reference = "#/components/schemas/{model}"
            chunk = ChatChunk.model_json_schema(ref_template=reference, mode="serialization")
            schemas |= chunk.pop("$defs") | {ChatChunk.__name__: chunk} | schemas
        return described


def _middleware(context: ServerContext) -> list[Middleware]:
    """From the outside in."""
    settings = context.settings
    doors = [
        Middleware(FrontDoor, metrics=context.metrics, log_requests=settings.log_requests),
        Middleware(
            HostCheck,
            hosts=(settings.host, *settings.allowed_hosts),
            origins=settings.allowed_origins,
        ),
    ]
    if settings.allowed_origins:
        doors.append(
            Middleware(
                CORSMiddleware,
                allow_origins=settings.allowed_origins,
                allow_methods=("GET", "POST"),
                allow_headers=("*",),
                expose_headers=("x-request-id", "retry-after"),
            )
        )
    if context.keyring is not None:
        doors.append(Middleware(Authentication, keyring=context.keyring))
    body = Middleware(
        RequestBody,
        max_bytes=settings.max_body_bytes,
        timeout_seconds=settings.body_timeout_seconds,
    )
    return [*doors, body, Middleware(Gate, context=context)]
