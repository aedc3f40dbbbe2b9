"""Errors in OpenAI's schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from alula.errors import AlulaError, UsageError
from alula.server.streams import EngineError
from alula.server.strict import FORMS

Handler = Callable[[Request, Exception], JSONResponse]

_RETRY_SECONDS = "1"


class ErrorFields(BaseModel):
    """OpenAI's error object."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """The body of every error."""

    error: ErrorFields


class RequestError(Exception):
    """An answer that is an error."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = error_body(status, message, param, code)
        self.headers = dict(headers or {})

    def response(self) -> JSONResponse:
        """As HTTP."""
        return JSONResponse(self.body, self.status, self.headers)


def error_body(
    status: int, message: str, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """OpenAI's error object."""
    kinds = {401: "authentication_error", 429: "rate_limit_error"}
    kind = kinds.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def refusal_of(error: AlulaError) -> RequestError:
    """400 where the request is at fault, 503 where the engine cannot go on."""
    message = f"{error.what}: {error.why}. {error.fix}"
    usage = error.problem.is_usage if isinstance(error, EngineError) else _is_usage(error)
    if usage:
        return RequestError(400, message)
    kind = error.problem.kind if isinstance(error, EngineError) else type(error).__name__
    if kind == "ResourceError":
        return RequestError(400, message, code="does_not_fit")
    if kind in ("ModelError", "AlulaError"):
        return RequestError(500, message, code=kind)
    return RequestError(503, message, code=kind, headers={"Retry-After": _RETRY_SECONDS})


def _is_usage(error: AlulaError) -> bool:
    return isinstance(error, UsageError)


def too_busy(limit: int) -> RequestError:
    """429 with the time after which to try again."""
    return RequestError(
        429,
        f"{limit} answers are waiting or being written, as many as this server takes",
        code="queue_full",
        headers={"Retry-After": _RETRY_SECONDS},
    )


def of_validation(error: RequestValidationError) -> RequestError:
    """400 that names the first field at fault."""
    first = error.errors()[0]
    place = [str(part) for part in first["loc"][1:] if part not in (*FORMS, "[key]")]
    if first["type"] == "json_invalid":
        return RequestError(400, f"the body is no JSON: {first.get('ctx', {}).get('error', '')}")
    param = ".".join(place) or None
    if first["type"] == "model_attributes_type" and param is None:
        return RequestError(400, "the body must be a JSON object, sent as application/json")
    if first["type"] == "extra_forbidden":
        return RequestError(
            400, f"{param} is not supported", param=param, code="unsupported_parameter"
        )
    message = str(first["msg"]).removeprefix("Value error, ")
    if first["type"] == "literal_error":
        message = f"only {first['ctx']['expected']} is supported"
    return RequestError(400, f"{param}: {message}" if param else message, param=param)


def handle_refusal(_request: Request, error: Exception) -> JSONResponse:
    """For FastAPI."""
    assert isinstance(error, RequestError)
    return error.response()


def handle_validation(_request: Request, error: Exception) -> JSONResponse:
    """For FastAPI."""
    assert isinstance(error, RequestValidationError)
    return of_validation(error).response()


def handle_alula(_request: Request, error: Exception) -> JSONResponse:
    """For FastAPI."""
    assert isinstance(error, AlulaError)
    return refusal_of(error).response()


def handle_http(request: Request, error: Exception) -> JSONResponse:
    """For FastAPI: an unknown path or method."""
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}"
    return RequestError(error.status_code, message, headers=error.headers).response()


def handle_unexpected(_request: Request, error: Exception) -> JSONResponse:
    """For FastAPI: a fault of alula's own."""
    return RequestError(500, f"the server failed in a way it should not: {error!r}").response()


HANDLERS: Mapping[type[Exception], Handler] = MappingProxyType(
    {
        RequestError: handle_refusal,
        RequestValidationError: handle_validation,
        AlulaError: handle_alula,
        HTTPException: handle_http,
        Exception: handle_unexpected,
    }
)
"""What answers each kind of error."""
