"""Connections that send half a request and fall silent, or drip."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from alula.server.gate import Gate
from alula.server.patience import PatientProtocol

HEAD = b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 4\r\n\r\n"


class Hurried(PatientProtocol):
    head_seconds = 0.3


@asynccontextmanager
async def served() -> AsyncIterator[int]:
    """A server that echoes bodies, and gives heads 0.3 s and bodies 0.4 s."""

    async def echo(request: Request) -> Response:
        return PlainTextResponse(await request.body())

    async def slow(_request: Request) -> Response:
        await asyncio.sleep(1.0)
        return PlainTextResponse("late")

    app = Starlette(routes=[Route("/", echo, methods=["POST"]), Route("/slow", slow)])
    gate = Gate(app, (), 100, lambda *_: None, body_seconds=0.4)
    listener = socket.create_server(("127.0.0.1", 0))
    settings = uvicorn.Config(gate, http=Hurried, log_config=None, lifespan="off")
    server = uvicorn.Server(settings)
    task = asyncio.create_task(server.serve([listener]))
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await task
        listener.close()


async def talk(*parts: bytes, pause: float = 0.1) -> tuple[bytes, float]:
    """What comes back of parts sent with pauses, until the server closes, and after how long."""
    async with served() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        begun = time.perf_counter()

        async def send() -> None:
            for part in parts:
                writer.write(part)
                await asyncio.sleep(pause)

        sending = asyncio.create_task(send())
        try:
            async with asyncio.timeout(5):
                answer = await reader.read()
        finally:
            sending.cancel()
            writer.close()
        return answer, time.perf_counter() - begun


def test_a_head_that_never_ends_is_given_up() -> None:
    for parts in ((b"",), (b"POST / HT",), (b"P",) * 40):
        answer, seconds = asyncio.run(talk(*parts))
        assert answer == b""
        assert 0.25 < seconds < 3


def test_a_body_that_never_ends_is_refused() -> None:
    for parts in ((HEAD,), (HEAD + b"ab",), (HEAD, b"a")):
        answer, seconds = asyncio.run(talk(*parts))
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"did not come within 0.4 s" in answer
        assert 0.35 < seconds < 3


def test_a_whole_request_has_all_the_time_it_needs() -> None:
    """Though its head and body come in pieces, and its answer after more than either's time."""
    closing = b"GET /slow HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n"
    answer, seconds = asyncio.run(talk(HEAD[:9], HEAD[9:], b"ab", b"cd", closing, pause=0.05))
    assert answer.count(b"HTTP/1.1 200 ") == 2
    assert b"abcd" in answer
    assert answer.endswith(b"late")
    assert seconds > 1.0


def test_a_second_head_that_never_ends_is_given_up_too() -> None:
    answer, seconds = asyncio.run(talk(HEAD + b"abcd", b"POST", b" / HTTP"))
    assert answer.count(b"HTTP/1.1 ") == 1
    assert answer.endswith(b"abcd")
    assert seconds < 3
