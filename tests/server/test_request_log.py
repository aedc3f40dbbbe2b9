"""What a request's line tells."""

from __future__ import annotations

import asyncio
import io
import json
from types import SimpleNamespace
from typing import Any

from alula.server.replies import Usage
from alula.server.request_log import Record, RequestLog


def line(usage: Usage, error: BaseException | None) -> dict[str, Any]:
    """The line of a request that ended so."""
    stream = io.StringIO()
    Record(RequestLog(stream), 0.0, route="/v1/completions").end(usage, error)
    found: dict[str, Any] = json.loads(stream.getvalue())
    return found


def test_who_left_is_told_the_tokens_that_were_sent() -> None:
    found = line(Usage(5, told=7), asyncio.CancelledError())
    assert (found["outcome"], found["tokens"], found["finish"]) == ("disconnected", 7, [])


def test_a_whole_answer_is_told_by_its_ends() -> None:
    end: Any = SimpleNamespace(tokens=9, prefix_tokens=4, rounds=3, reason="stop")
    found = line(Usage(5, told=7, finishes={0: end}), None)
    assert (found["outcome"], found["tokens"], found["cached_tokens"]) == ("ok", 9, 4)
    assert (found["rounds"], found["finish"]) == (3, ["stop"])
