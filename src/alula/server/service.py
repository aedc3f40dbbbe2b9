"""What the routes stand on: one engine, its limits, its log and its numbers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
from fastapi import Request
from fastapi.responses import JSONResponse

from alula.server.asking import Asked, Served
from alula.server.engine_client import EngineClient
from alula.server.grammar_trial import GrammarTrial
from alula.server.messages import Piece
from alula.server.metrics import EngineState, Metrics
from alula.server.refusals import Handler, RequestError, refusal_of, too_busy
from alula.server.replies import Reply
from alula.server.request_log import Record, RequestLog
from alula.server.streams import EngineError


@dataclass(frozen=True)
class Limits:
    """What a server takes."""

    queue: int = 256
    """Samples that wait, beyond those that run."""
    body_bytes: int = 4 * 2**20
    """A million tokens of text. While JSON is read, nobody else is answered."""


class Service:
    """Answers requests through one engine."""

    def __init__(self, engine: EngineClient, name: str, limits: Limits, log: RequestLog) -> None:
        self.engine = engine
        self.model_name = name
        self.started = int(time.time())
        self.draining = False
        self.under_way = 0
        """Answers that their readers do not have in full."""
        self.log = log
        self.metrics = Metrics(self._state)
        self.trial = GrammarTrial()
        self._limits = limits

    def _state(self) -> EngineState:
        engine = self.engine
        return EngineState(engine.ready is not None, engine.restarts, engine.statistics)

    def why_not_ready(self) -> str | None:
        """Why new requests are refused; None where they are taken."""
        if self.draining:
            return "the server is shutting down"
        if self.engine.ready is None:
            problem = self.engine.problem
            return f"{problem.what}: {problem.why}" if problem else "the model is being loaded"
        return None

    def logging(self, handle: Handler) -> Handler:
        """The same answer to an error, with its line in the log."""

        def logged(request: Request, error: Exception) -> JSONResponse:
            answer = handle(request, error)
            if isinstance(error, EngineError):
                return answer  # its request has been begun, and has a line
            reason = json.loads(bytes(answer.body))["error"]["message"]
            self.note_refusal(request.url.path, answer.status_code, reason)
            return answer

        return logged

    def note_refusal(self, path: str, status: int, reason: str) -> None:
        """A request that ends before the engine hears of it."""
        self.log.write(path=path, status=status, reason=reason)
        if path.startswith("/v1/"):
            self.metrics.requests.labels("failed" if status >= 500 else "refused").inc()

    def status(self) -> dict[str, Any]:
        """The server at a glance."""
        engine, reason = self.engine, self.why_not_ready()
        color = "red" if engine.problem else "green" if engine.ready else "loading"
        return {
            "model": self.model_name,
            "status": color,
            "reason": reason,
            "notes": engine.ready.notes if engine.ready else [],
            "acceptance": [kept / tried for tried, kept in self.metrics.depths if tried],
            **msgspec.to_builtins(engine.statistics),
        }

    def served(self, name: str | None) -> Served:
        """The model, if `name` is its name. Raises RequestError."""
        reason, ready = self.why_not_ready(), self.engine.ready
        if reason is not None or ready is None:
            code = "shutting_down" if self.draining else "not_ready"
            raise RequestError(503, reason or "not ready", code=code, headers={"Retry-After": "1"})
        if name is not None and name != self.model_name:
            message = f"there is no model {name!r} here, only {self.model_name!r}"
            raise RequestError(404, message, param="model", code="model_not_found")
        assert self.engine.texts is not None
        return Served(ready, *self.engine.texts, self.trial)

    @contextmanager
    def answering(
        self, asked: Asked, reply: Reply, path: str, user: str | None, arrived: float
    ) -> Iterator[AsyncIterator[Piece]]:
        """The pieces of an answer. Leaving the block early frees all that the request holds.

        `arrived`: the time of `time.perf_counter` from which on it is measured.

        Raises RequestError where too much is waiting already.
        """
        self.refuse_too_many(len(asked.prompts) * asked.params.n)
        record = Record(self.log, arrived, id=reply.id, path=path, user=user, n=asked.params.n)
        try:
            stream = self.engine.submit(asked.prompts, asked.params)
        except EngineError as error:
            raise refusal_of(error) from error
        self.under_way += 1
        failure: BaseException | None = None
        try:
            yield self._measured(stream.pieces(), record)
        except BaseException as error:
            failure = error
            raise
        finally:
            self.under_way -= 1
            stream.close()
            if failure is None and not stream.complete:
                failure = stream.failure or asyncio.CancelledError("the client has gone")
            self._count(reply, record, failure)

    def refuse_too_many(self, wanted: int) -> None:
        """Raise RequestError where so many samples are more than is taken, or more than now."""
        ready = self.engine.ready
        most = self._limits.queue + (ready.max_sequences if ready else 0)
        if wanted > most:
            message = f"{wanted} samples are asked for at once; this server takes {most}"
            raise RequestError(400, message, param="n")
        if self.engine.outstanding + wanted > most:
            raise too_busy(most)

    async def _measured(self, pieces: AsyncIterator[Piece], record: Record) -> AsyncIterator[Piece]:
        """The same pieces, their times noted."""
        last: dict[int, float] = {}
        async for piece in pieces:
            now = time.perf_counter()
            record.mark_first()
            if piece.index in last and piece.token_ids:
                seconds = (now - last[piece.index]) / len(piece.token_ids)
                self.metrics.between.observe(seconds)
            last[piece.index] = now
            yield piece

    def _count(self, reply: Reply, record: Record, failure: BaseException | None) -> None:
        outcome, seconds = record.end(reply.usage, failure)
        metrics = self.metrics
        metrics.requests.labels(outcome).inc()
        metrics.prompt_tokens.inc(reply.usage.prompt_tokens)
        if record.first is not None:
            metrics.first_token.observe(record.first)
        if failure is None:
            metrics.seconds.observe(seconds)
        for finish in reply.usage.finishes.values():
            metrics.finished(finish)
