"""Routes for whoever runs the server: is it there, does it work, what has it done."""

from __future__ import annotations

import time

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from pagemill import __version__
from pagemill.async_engine import EngineState
from pagemill.server.context import ServerContext
from pagemill.server.schemas.base import ERRORS

router = APIRouter(tags=["operations"])

_STATUS = {
    "type": "object",
    "properties": {"status": {"type": "string"}},
    "required": ["status"],
}
_IS = {"content": {"application/json": {"schema": _STATUS}}}
_TEXT = {"content": {"text/plain": {"schema": {"type": "string"}}}}
_NOT_WELL = {"description": "No new requests are taken: `status` says why."} | _IS


@router.get("/live", responses={200: _IS, **ERRORS})
@router.head("/live", include_in_schema=False)
async def live() -> JSONResponse:
    """200 while the process answers at all."""
    return JSONResponse({"status": "alive"})


@router.get("/health", responses={200: _IS, **ERRORS, 503: _NOT_WELL})
@router.head("/health", include_in_schema=False)
async def health(request: Request) -> JSONResponse:
    """200 while new requests are taken and the engine's loop advances; otherwise 503."""
    status = health_of(request.app.state.context)
    return JSONResponse({"status": status}, 200 if status == "ok" else 503)


@router.get("/version", responses=ERRORS)
async def version() -> JSONResponse:
    """The version of pagemill."""
    return JSONResponse({"version": __version__})


@router.get("/metrics", response_class=PlainTextResponse, responses={200: _TEXT, **ERRORS})
async def metrics(request: Request) -> Response:
    """Everything that is counted, for Prometheus."""
    context: ServerContext = request.app.state.context
    text, content_type = context.metrics.exposition(request.headers.get("accept", ""))
    return Response(text, media_type=content_type)


def health_of(context: ServerContext) -> str:
    """``ok``, or why no request should be sent: for anybody, so without what failed how."""
    engine = context.engine
    if context.lifecycle.draining:
        return "draining"
    if engine.state is not EngineState.READY:
        return str(engine.state.value)
    since_seconds = time.monotonic() - engine.last_advance_seconds
    return "stalled" if since_seconds > context.settings.health_timeout_seconds else "ok"
