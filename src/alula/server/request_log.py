"""One line of JSON for every request, which no full disk can turn into a failure."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from alula.errors import MachineError
from alula.server.refusals import RequestError
from alula.server.replies import Usage
from alula.server.streams import EngineError


class RequestLog:
    """Writes to a text stream. What cannot be written is counted and left out."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self.lost = 0

    def write(self, **fields: Any) -> None:
        """One line, at once."""
        if self._stream is None:
            return
        line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **fields}
        try:
            self._stream.write(json.dumps(line, ensure_ascii=True) + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            self.lost += 1


class Record:
    """One request on its way to its line."""

    def __init__(self, log: RequestLog, arrived: float, **fields: Any) -> None:
        self._log = log
        self._fields = fields
        self._started = arrived
        self.first: float | None = None

    def mark_first(self) -> None:
        """The first token is there."""
        if self.first is None:
            self.first = time.perf_counter() - self._started

    def end(self, usage: Usage, error: BaseException | None) -> tuple[str, float]:
        """Write the line; returns the outcome's name and the seconds it took."""
        outcome = _outcome(error)
        seconds = time.perf_counter() - self._started
        ends = usage.finishes.values()
        self._log.write(
            **self._fields,
            outcome=outcome,
            reason=None if error is None else str(error) or type(error).__name__,
            seconds=round(seconds, 4),
            first_token_seconds=None if self.first is None else round(self.first, 4),
            prompt_tokens=usage.prompt_tokens,
            tokens=sum(end.tokens for end in ends) if error is None else usage.told,
            cached_tokens=sum(end.prefix_tokens for end in ends),
            rounds=sum(end.rounds for end in ends),
            finish=[end.reason for end in ends],
        )
        return outcome, seconds


def _outcome(error: BaseException | None) -> str:
    match error:
        case None:
            return "ok"
        case asyncio.CancelledError() | GeneratorExit():
            return "disconnected"
        case EngineError(problem=problem):
            return "refused" if problem.is_usage else "failed"
        case RequestError():
            return "refused"
    return "failed"


def open_log(path: Path) -> TextIO:
    """The file to append to, for as long as the server lives. Raises MachineError."""
    try:
        return path.open("a", encoding="utf-8")
    except OSError as error:
        raise MachineError(
            f"the log {path} cannot be written",
            error.strerror or str(error),
            "choose another --log-file, or leave it out for standard error",
        ) from error
