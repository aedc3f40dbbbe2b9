"""The HTTP application: routes, and what stands before them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import ExitStack
from importlib.resources import files
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)
from starlette.types import Receive, Scope, Send

from alula import __version__
from alula.server import asking, refusals
from alula.server.asking import Asked, Served
from alula.server.choices import ChatChoice, TextChoice
from alula.server.gate import Gate
from alula.server.messages import Piece
from alula.server.refusals import ErrorBody, RequestError, refusal_of
from alula.server.replies import Reply, Usage, collected
from alula.server.schemas import ChatRequest, CompletionRequest, Sampling, StreamOptions
from alula.server.service import Service
from alula.server.streams import EngineError

T = TypeVar("T")

_CLIENT_GONE = 499
"""Nobody reads it; the number is nginx's."""
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; script-src 'unsafe-inline'; img-src data:; "
    "style-src 'unsafe-inline'; frame-ancestors 'none'"
}


def make_app(service: Service, api_keys: Sequence[str], most_bytes: int) -> FastAPI:
    """The application over one service. Without keys it is open to everyone who reaches it."""
    app = FastAPI(title="alula", version=__version__, docs_url=None, redoc_url=None)
    app.add_middleware(Gate, api_keys=api_keys, most_bytes=most_bytes, note=service.note_refusal)
    for kind, handle in refusals.HANDLERS.items():
        app.add_exception_handler(kind, service.logging(handle))
    _add_completions(app, service)
    _add_models(app, service)
    _add_operations(app, service)
    _add_page(app, service)
    return app


def _add_completions(app: FastAPI, service: Service) -> None:
    responses = _error_responses(400, 401, 404, 408, 413, 429, 500, 503)

    @app.post("/v1/chat/completions", responses=responses)
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        arrived = time.perf_counter()
        served = service.served(body.model)
        service.refuse_too_many(body.n or 1)
        asked = await asking.chat(body, served)
        choices = [
            ChatChoice(index, served.tokenizer, asked.tools) for index in range(asked.params.n)
        ]
        reply = _reply("chat.completion", service, body, served, asked, choices)
        return await _answer(request, service, body, asked, reply, arrived)

    @app.post("/v1/completions", responses=responses)
    async def completions(body: CompletionRequest, request: Request) -> Response:
        arrived = time.perf_counter()
        served = service.served(body.model)
        count = len(asking.given_prompts(body)) * (body.n or 1)
        service.refuse_too_many(count)
        asked = await asking.completion(body, served)
        choices = [TextChoice(index, served.tokenizer) for index in range(count)]
        reply = _reply("text_completion", service, body, served, asked, choices)
        return await _answer(request, service, body, asked, reply, arrived)

    @app.post("/v1/embeddings", responses=_error_responses(400, 401))
    async def embeddings() -> Response:
        raise RequestError(
            400,
            "/v1/embeddings is not supported: alula serves language models that write text",
            code="unsupported_endpoint",
        )


def _add_models(app: FastAPI, service: Service) -> None:
    def described() -> dict[str, Any]:
        served = service.served(None)
        return {
            "id": service.model_name,
            "object": "model",
            "created": service.started,
            "owned_by": "alula",
            "max_model_len": served.ready.max_length,
        }

    @app.get("/v1/models", responses=_error_responses(401, 503))
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [described()]}

    @app.get("/v1/models/{model:path}", responses=_error_responses(401, 404, 503))
    async def model(model: str) -> dict[str, Any]:
        service.served(model)
        return described()


def _add_operations(app: FastAPI, service: Service) -> None:
    @app.get("/health", responses=_error_responses(503))
    async def health() -> JSONResponse:
        """Whether the process and the engine's heart are alive."""
        if (problem := service.engine.problem) is not None:
            message = f"{problem.what}: {problem.why}"
            return JSONResponse({"status": "red", "reason": message}, 503)
        return JSONResponse({"status": "green" if service.engine.ready else "loading"})

    @app.get("/ready", responses=_error_responses(503))
    async def ready() -> JSONResponse:
        """Whether new requests are taken."""
        reason = service.why_not_ready()
        if reason is not None:
            return JSONResponse({"ready": False, "reason": reason}, 503)
        return JSONResponse({"ready": True})

    @app.get("/metrics", response_class=PlainTextResponse, responses=_error_responses(401))
    async def metrics() -> Response:
        """For Prometheus."""
        text, content_type = service.metrics.exposition()
        return Response(text, media_type=content_type)


def _reply(
    kind: str,
    service: Service,
    body: Sampling,
    served: Served,
    asked: Asked,
    choices: list[ChatChoice] | list[TextChoice],
) -> Reply:
    streaming = body.stream_options or StreamOptions()
    return Reply(
        kind,
        service.model_name,
        choices,
        asked.params.n,
        Usage(sum(len(prompt) for prompt in asked.prompts)),
        served.tokenizer,
        with_usage=streaming.include_usage,
        with_usage_so_far=streaming.continuous_usage_stats,
        with_drafted=bool(body.return_drafted),
    )


async def _answer(
    request: Request, service: Service, body: Sampling, asked: Asked, reply: Reply, arrived: float
) -> Response:
    with ExitStack() as stack:
        answering = service.answering(asked, reply, request.url.path, body.user, arrived)
        pieces = stack.enter_context(answering)
        try:
            if not body.stream:
                return JSONResponse(await _unless_gone(request, collected(reply, pieces)))
            # Before the first piece is there an error still has a status of its own.
            first = await _unless_gone(request, _next(pieces))
        except _ClientGoneError:
            return Response(status_code=_CLIENT_GONE)
        return EventStream(_events(reply, first, pieces), stack.pop_all())


def _add_page(app: FastAPI, service: Service) -> None:
    page = (files("alula.server") / "page.html").read_text("utf-8")

    @app.get("/", include_in_schema=False)
    async def shown() -> HTMLResponse:
        return HTMLResponse(page, headers=_PAGE_HEADERS)

    @app.get("/status", responses=_error_responses(401))
    async def status() -> dict[str, Any]:
        """What the page shows."""
        return service.status()


class _ClientGoneError(Exception):
    """The client has closed the connection."""


async def _next(pieces: AsyncIterator[Piece]) -> Piece:
    return await anext(pieces)


async def _unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is given up when the client goes away."""
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_gone(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise _ClientGoneError
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class EventStream(StreamingResponse):
    """Server-sent events. However they end, what the request holds is freed."""

    def __init__(self, events: AsyncIterator[str], held: ExitStack) -> None:
        super().__init__(events, media_type="text/event-stream")
        self.headers["Cache-Control"] = "no-cache"
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them all, or as many as the client takes."""
        with self._held:
            await super().__call__(scope, receive, send)


async def _events(reply: Reply, first: Piece, pieces: AsyncIterator[Piece]) -> AsyncIterator[str]:
    """Chunks, the usage where it is asked for, and the end; or an error, and the end."""
    try:
        for chunk in reply.take(first):
            yield _event(chunk)
        async for piece in pieces:
            for chunk in reply.take(piece):
                yield _event(chunk)
        if (last := reply.last_chunk()) is not None:
            yield _event(last)
    except EngineError as error:
        yield _event(refusal_of(error).body)
    yield "data: [DONE]\n\n"


def _event(value: Any) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n\n"


def _error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """For the published schema."""
    return {status: {"model": ErrorBody, "description": "An error"} for status in statuses}
