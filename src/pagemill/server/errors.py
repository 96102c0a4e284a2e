"""What a client is told when its request fails: ``{"error": {message, type, param, code}}``.

Every handler raises; what was raised becomes an answer here, or an error event where the answer has
begun. A message says what the client can do; what went wrong inside is for the log only.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from pagemill.errors import (
    EngineError,
    InvalidParameterError,
    PagemillError,
    RequestError,
    RequestTooLargeError,
)

logger = logging.getLogger("pagemill.server")

_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}


class ApiError(PagemillError):
    """A request ends with this status and this error.

    Args:
        status: of HTTP.
        message: for the client: what is wrong and what to do.
        type: the kind of error; None: by the status.
        param: the field of the request that is at fault, if one is.
        code: a word for programs.
        retry_after: seconds after which the client may try again.
        headers: further ones of the answer.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str | None = None,  # noqa: A002  (the field's name in the answer)
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        kind = "server_error" if status >= 500 else "invalid_request_error"
        self.type = type or _TYPES.get(status, kind)
        self.param = param
        self.code = code
        self.headers = dict(headers or {})
        if retry_after is not None:
            self.headers["retry-after"] = str(max(1, round(retry_after)))

    def to_json(self) -> str:
        """The body of the answer. ASCII, so that no text of a client's can break it."""
        error = {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.code,
        }
        return json.dumps({"error": error})

    def to_response(self) -> Response:
        """The answer."""
        return Response(
            self.to_json(), self.status, headers=self.headers, media_type="application/json"
        )


def refusal(error: RequestError, *, prompt_field: str = "prompt") -> ApiError:
    """A request that the engine or the tokenizer refused.

    Args:
        error: what they raised.
        prompt_field: where the client wrote the prompt.
    """
    if isinstance(error, InvalidParameterError):
        field, message = error.field, str(error)
        if prompt_field != "prompt" and field.startswith("prompt"):
            field = prompt_field + field.removeprefix("prompt")
            message = prompt_field + message.removeprefix("prompt")
        return ApiError(400, message, param=field)
    if isinstance(error, RequestTooLargeError):
        return ApiError(400, str(error), param=prompt_field, code="context_length_exceeded")
    return ApiError(400, str(error), param=prompt_field)


def as_api_error(error: Exception) -> ApiError:
    """What a client is told of anything that was raised; our own mistakes are logged."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestError):
        return refusal(error)
    if isinstance(error, EngineError):
        return ApiError(500, "the engine failed while it worked on this; try again")
    logger.error("a request failed", exc_info=error)
    return ApiError(500, "the server failed on this request; its log has the reason")


def install_error_handlers(app: FastAPI) -> None:
    """Let everything that handlers raise become an answer in the one form."""
    app.add_exception_handler(RequestValidationError, _invalid_body)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(PagemillError, _any_error)
    app.add_exception_handler(Exception, _any_error)


async def _any_error(_request: Request, error: Exception) -> Response:
    return as_api_error(error).to_response()


async def _http_error(request: Request, error: Exception) -> Response:
    """What the framework itself raises: an unknown route, a wrong method."""
    assert isinstance(error, HTTPException)
    where = f"{request.method} {request.url.path}"
    if error.status_code == 404:
        answer = ApiError(404, f"there is no route {where}", code="unknown_route")
    elif error.status_code == 405:
        answer = ApiError(405, f"{where} is not allowed", code="method_not_allowed")
    else:
        answer = ApiError(error.status_code, str(error.detail))
    answer.headers.update(error.headers or {})
    return answer.to_response()


async def _invalid_body(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return of_validation(error.errors()).to_response()


def of_validation(errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """The first of pydantic's errors in a body, named as the client wrote the field."""
    error = errors[0]
    param = _path(error["loc"])
    kind, message = error["type"], error["msg"]
    if kind == "json_invalid":
        return ApiError(400, f"the body is not JSON: {error.get('ctx', {}).get('error', message)}")
    if param is None:
        return ApiError(400, "the body must be a JSON object, sent as application/json")
    if kind == "missing":
        message = f"{param} is missing"
    elif kind == "extra_forbidden":
        return ApiError(400, f"{param} is no field of this request", param=param, code="unknown")
    elif kind == "unsupported":
        return ApiError(400, f"{param} {message}", param=param, code="unsupported")
    else:
        message = f"{param}: {message[:1].lower()}{message[1:]}"
    return ApiError(400, message, param=param)


def _path(location: Sequence[int | str]) -> str | None:
    """``("body", "messages", 2, "role")`` as ``messages[2].role``."""
    path = ""
    for part in location[1:] if location[:1] in (("body",), ["body"]) else location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path[:200] or None
