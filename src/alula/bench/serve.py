"""Load on a running server, closed loop by concurrency and open loop by rate."""

from __future__ import annotations

import http.client
import itertools
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from alula.bench.workloads import Workload
from alula.errors import MachineError, UsageError
from alula.models.progress import Progress, silent

_TIMEOUT = 600.0


@dataclass(frozen=True)
class Target:
    """Where requests go and what they ask."""

    url: str
    """Of the server, without /v1."""
    model: str
    api_key: str | None = None
    max_tokens: int = 64
    temperature: float = 0.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(
                f"{self.url!r} is no server's address",
                "an address begins with http:// or https:// and names a host",
                "write for example http://127.0.0.1:8000",
            )


@dataclass(frozen=True)
class Objectives:
    """What a request must keep to count as good."""

    first_seconds: float = 1.0
    token_seconds: float = 0.1


@dataclass
class Answered:
    """One request: when its text came, and how it ended."""

    kind: str
    started: float
    arrivals: list[float] = field(default_factory=list)
    tokens: int = 0
    tokens_per_round: float | None = None
    error: str | None = None
    ended: float = 0.0

    @property
    def first_seconds(self) -> float:
        """Time to the first text."""
        return self.arrivals[0] - self.started

    @property
    def token_seconds(self) -> float:
        """Time per token after the first."""
        return (self.arrivals[-1] - self.arrivals[0]) / max(self.tokens - 1, 1)

    def keeps(self, objectives: Objectives) -> bool:
        """Whether it counts into goodput."""
        return (
            self.error is None
            and self.first_seconds <= objectives.first_seconds
            and self.token_seconds <= objectives.token_seconds
        )


class Load(NamedTuple):
    """How requests arrive: `concurrency` at any time, or `rate` a second whatever comes back."""

    concurrency: int | None
    rate: float | None

    def __str__(self) -> str:
        return f"{self.concurrency} at a time" if self.concurrency else f"{self.rate:g} a second"


def served_model(url: str, api_key: str | None) -> str:
    """The name of the only model a server has. Raises MachineError where there is no server."""
    connection = _connect(Target(url, ""))
    try:
        connection.request("GET", _path(url, "/v1/models"), headers=_headers(api_key))
        answer = connection.getresponse()
        found = json.loads(answer.read())
        return str(found["data"][0]["id"])
    except (OSError, http.client.HTTPException, ValueError, KeyError, IndexError) as error:
        raise MachineError(
            f"no model is served at {url}",
            f"{type(error).__name__}: {error}",
            "start one with alula serve, and give its address and --api-key",
        ) from error
    finally:
        connection.close()


def run(
    target: Target,
    load: Load,
    workloads: Sequence[Workload],
    count: int,
    progress: Progress = silent,
) -> list[Answered]:
    """Send `count` requests, the kinds of text in turn, and wait for all of them."""
    asked = list(itertools.islice(itertools.cycle(_mixed(workloads)), count))
    found: list[Answered] = []
    lock = threading.Lock()
    with progress(f"measuring, {load}", count) as task:

        def send(workload: Workload) -> None:
            answered = ask(target, workload)
            with lock:
                found.append(answered)
                task.advance(1)

        if load.concurrency:
            _closed(send, asked, load.concurrency)
        else:
            assert load.rate
            _open(send, asked, load.rate)
    return found


def _mixed(workloads: Sequence[Workload]) -> list[Workload]:
    """First one of each kind, then the second of each, and so on."""
    seen: Counter[str] = Counter()
    ranked = []
    for workload in workloads:
        ranked.append((seen[workload.kind], workload))
        seen[workload.kind] += 1
    return [workload for _, workload in sorted(ranked, key=lambda pair: pair[0])]


def _closed(send: Callable[[Workload], None], asked: list[Workload], concurrency: int) -> None:
    waiting = iter(asked)
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                workload = next(waiting, None)
            if workload is None:
                return
            send(workload)

    _together([work] * min(concurrency, len(asked)))


def _open(send: Callable[[Workload], None], asked: list[Workload], rate: float) -> None:
    """Arrivals of a Poisson process, the same at every run."""
    dice = random.Random(0)
    moments = list(itertools.accumulate(dice.expovariate(rate) for _ in asked))
    begun = time.perf_counter()

    def one(workload: Workload, moment: float) -> Callable[[], None]:
        def work() -> None:
            time.sleep(max(0.0, begun + moment - time.perf_counter()))
            send(workload)

        return work

    _together([one(*pair) for pair in zip(asked, moments, strict=True)])


def _together(jobs: Sequence[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=job, daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def ask(target: Target, workload: Workload) -> Answered:
    """One streamed chat completion."""
    answered = Answered(workload.kind, time.perf_counter())
    connection = _connect(target)
    try:
        body = json.dumps(_body(target, workload))
        path = _path(target.url, "/v1/chat/completions")
        connection.request("POST", path, body, _headers(target.api_key))
        answer = connection.getresponse()
        if answer.status != 200:
            answered.error = f"{answer.status}: {answer.read(500).decode(errors='replace')}"
        else:
            _read(answer, answered)
    except (OSError, http.client.HTTPException, ValueError) as error:
        answered.error = f"{type(error).__name__}: {error}"
    finally:
        connection.close()
    answered.ended = time.perf_counter()
    if answered.error is None and not answered.arrivals:
        answered.error = "the answer is empty"
    return answered


def _body(target: Target, workload: Workload) -> dict[str, Any]:
    return {
        "model": target.model,
        "messages": [{"role": "user", "content": workload.prompt}],
        "max_tokens": target.max_tokens,
        "temperature": target.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def _read(answer: http.client.HTTPResponse, answered: Answered) -> None:
    for chunk in _chunks(answer):
        if "error" in chunk:
            answered.error = str(chunk["error"].get("message"))
            return
        choices = chunk.get("choices") or []
        if any(choice["delta"].get("content") for choice in choices):
            answered.arrivals.append(time.perf_counter())
        if usage := chunk.get("usage"):
            answered.tokens = usage["completion_tokens"]
        if own := chunk.get("alula"):
            answered.tokens_per_round = own["tokens_per_round"]


def _chunks(answer: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    for line in answer:
        data = line.strip().removeprefix(b"data: ")
        if data == b"[DONE]":
            return
        if data:
            yield json.loads(data)


def _connect(target: Target) -> http.client.HTTPConnection:
    parts = urlsplit(target.url)
    secure = parts.scheme == "https"
    kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    return kind(parts.hostname or "", parts.port, timeout=_TIMEOUT)


def _path(url: str, path: str) -> str:
    return urlsplit(url).path.rstrip("/").removesuffix("/v1") + path


def _headers(api_key: str | None) -> dict[str, str]:
    key = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    return {"Content-Type": "application/json", **key}
