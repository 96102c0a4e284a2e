"""GET /v1/models: the one that is served."""

from __future__ import annotations

from fastapi import APIRouter, Request

from pagemill.server.context import ServerContext
from pagemill.server.requests import check_model, context_of
from pagemill.server.schemas.base import ERRORS
from pagemill.server.schemas.models import ModelCard, ModelList

router = APIRouter(tags=["models"])


@router.get("/v1/models", responses=ERRORS)
async def list_models(request: Request) -> ModelList:
    """All models: one."""
    return ModelList(data=[_card(context_of(request))])


@router.get("/v1/models/{model:path}", responses=ERRORS)
async def retrieve_model(request: Request, model: str) -> ModelCard:
    """One model by its name, which may have slashes."""
    context = context_of(request)
    check_model(context, model)
    return _card(context)


def _card(context: ServerContext) -> ModelCard:
    return ModelCard(
        id=context.model_id,
        created=context.created,
        root=context.model_root,
        max_model_len=context.max_model_len,
    )
