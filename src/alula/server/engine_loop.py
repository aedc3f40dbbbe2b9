"""The engine's loop: it takes requests, runs launches and sends what they bring."""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from alula.engine.core import Engine
from alula.engine.events import LaunchRecord, Request
from alula.engine.outputs import CompletionOutput, Delta, TokenLogprobs
from alula.server.link import Link
from alula.server.messages import (
    Abort,
    Failed,
    Finish,
    Launched,
    Logprob,
    Piece,
    Problem,
    Shutdown,
    Statistics,
    Submit,
)

_IDLE_MILLISECONDS = 500
"""How long an idle engine is silent."""
_COMPILING_MILLISECONDS = 2
_STATISTICS_SECONDS = 0.1


class Loop:
    """Requests of the HTTP process over one engine."""

    def __init__(self, engine: Engine, link: Link) -> None:
        self._engine = engine
        self._link = link
        self._requests: dict[int, Request] = {}
        self._compiler = ThreadPoolExecutor(1, "grammars")
        self._compiling: dict[int, tuple[Submit, Future[Any]]] = {}
        self._counts = Counts()
        self._told = 0.0
        engine.observers.append(self._counts.observe)

    def run(self) -> None:
        """Until the HTTP process asks to end."""
        while self._take_messages():
            if self._engine.has_work:
                self._launch()
            else:
                self._link.refuse_to_be_orphaned()

    def _take_messages(self) -> bool:
        """Whether to go on. An idle engine says so, and waits."""
        busy = self._engine.has_work
        if not busy:
            self._tell(False, [], always=True)
        for message in self._link.receive(0 if busy else self._patience):
            if isinstance(message, Shutdown):
                return False
            if isinstance(message, Abort):
                self._abort(message)
            elif message.params.grammar is None:
                self._submit(message)
            else:
                job = self._compiler.submit(self._engine.grammars.compile, message.params.grammar)
                self._compiling[message.id] = message, job
        self._submit_compiled()
        return True

    @property
    def _patience(self) -> int:
        return _COMPILING_MILLISECONDS if self._compiling else _IDLE_MILLISECONDS

    def _submit_compiled(self) -> None:
        """Grammars are compiled beside the launches, since one may take a second."""
        for number, (message, job) in list(self._compiling.items()):
            if job.done():
                del self._compiling[number]
                self._submit(message, job)

    def _submit(self, message: Submit, compiled: Future[Any] | None = None) -> None:
        try:
            if compiled is not None:
                compiled.result()
            request = self._engine.add(message.prompt_ids, message.params)
        except Exception as error:
            self._link.send(Failed([message.id], Problem.of(error)))
        else:
            self._requests[message.id] = request

    def _abort(self, message: Abort) -> None:
        self._compiling.pop(message.id, None)
        if request := self._requests.pop(message.id, None):
            self._engine.abort(request)

    def _launch(self) -> None:
        try:
            self._engine.step()
        except Exception as error:
            self._give_up(error)
        else:
            self._tell(True, list(self._pieces()))

    def _give_up(self, error: Exception) -> None:
        """A launch that failed once would fail for ever: everyone in it is told. Who still waits
        has another launch, but where none was under way there is none that would not fail.
        """
        traceback.print_exception(error)
        failed = self._engine.failed or list(self._requests.values())
        ids = [number for number, request in self._requests.items() if request in failed]
        for number in ids:
            self._engine.abort(self._requests.pop(number))
        self._link.send(Failed(ids, Problem.of(error)))

    def _pieces(self) -> Iterator[Piece]:
        for number, request in list(self._requests.items()):
            while request.events:
                delta = request.events.popleft().delta
                answer = request.answers[delta.index].output() if delta.finished else None
                if answer is not None:
                    self._counts.preemptions += answer.preemptions
                yield _piece(number, delta, request.seed, answer)
            if not request.unfinished:
                del self._requests[number]

    def _tell(self, launch: bool, pieces: list[Piece], always: bool = False) -> None:
        now = time.monotonic()
        due = always or now - self._told >= _STATISTICS_SECONDS
        self._told = now if due else self._told
        statistics = self._counts.statistics(self._engine) if due else None
        self._link.send(Launched(launch, pieces, statistics))


class Counts:
    """What the engine did since it started."""

    def __init__(self) -> None:
        self.prompt_rows = 0
        self.tokens = 0
        self.rounds = 0
        self.round_tokens = 0
        self.preemptions = 0
        self.by_nodes: Counter[int] = Counter()

    def observe(self, record: LaunchRecord) -> None:
        """Count one launch."""
        self.prompt_rows += record.chunk_rows
        self.tokens += record.emitted
        self.rounds += record.sequences
        self.round_tokens += record.round_tokens
        if record.sequences:
            self.by_nodes[round(record.draft_nodes / record.sequences)] += record.sequences

    def statistics(self, engine: Engine) -> Statistics:
        """These counts and the engine's present state."""
        pages, scheduler = engine.pages, engine.scheduler
        return Statistics(
            waiting=scheduler.waiting,
            running=scheduler.running,
            pages=pages.count,
            pages_in_use=pages.in_use,
            pages_cached=pages.evictable,
            prefix_lookups=pages.statistics.lookups,
            prefix_hits=pages.statistics.hits,
            prefix_tokens=pages.statistics.tokens_saved,
            preemptions=self.preemptions,
            launches=dict(engine.launches),
            prompt_rows=self.prompt_rows,
            tokens=self.tokens,
            rounds=self.rounds,
            round_tokens=self.round_tokens,
            rounds_by_nodes=dict(self.by_nodes),
        )


def _piece(number: int, delta: Delta, seed: int, answer: CompletionOutput | None) -> Piece:
    return Piece(
        id=number,
        index=delta.index,
        text=delta.text,
        token_ids=delta.token_ids,
        drafted=delta.drafted,
        logprobs=None if delta.logprobs is None else [_logprob(part) for part in delta.logprobs],
        finish=None if answer is None else _finish(answer, seed),
    )


def _logprob(part: TokenLogprobs) -> Logprob:
    return Logprob(part.token_id, part.logprob, part.top)


def _finish(answer: CompletionOutput, seed: int) -> Finish:
    speculation = answer.speculation
    return Finish(
        reason=answer.finish_reason,
        stop_reason=answer.stop_reason,
        seed=seed,
        tokens=len(answer.token_ids),
        prefix_tokens=answer.prefix_tokens,
        preemptions=answer.preemptions,
        rounds=speculation.rounds,
        emitted=speculation.emitted,
        drafted=list(speculation.drafted),
        accepted=list(speculation.accepted),
    )
