"""What an engine is asked for and tells: requests, what becomes of them, and launches."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from alula.engine.answer import Answer
from alula.engine.outputs import Delta, RequestOutput
from alula.sampling.params import SamplingParams


class Event(NamedTuple):
    """Something a request's reader wants to know."""

    request_id: str
    delta: Delta
    output: RequestOutput | None
    """Set once the last sample is finished."""


@dataclass
class Request:
    """A prompt and its samples, until the last is finished."""

    id: str
    prompt: str | None
    prompt_ids: list[int]
    params: SamplingParams
    seed: int
    answers: list[Answer] = field(default_factory=list)
    arrived: float = field(default_factory=time.perf_counter)
    first_token: float | None = None
    unfinished: int = 0
    events: deque[Event] = field(default_factory=deque)
    """What its reader has not seen yet."""


class LaunchRecord(NamedTuple):
    """What one launch computed and how long it took, for policies and benchmarks.

    Its seconds are without those of a capture.
    """

    sequences: int
    chunk_rows: int
    draft_nodes: int
    """Nodes verified in all sequences together."""
    emitted: int
    seconds: float
    round_tokens: int = 0
    """Of those emitted, the ones that came out of rounds."""
