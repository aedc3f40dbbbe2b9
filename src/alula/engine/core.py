"""The engine's loop: requests in, launches, deltas out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

from alula.cache.pages import PageAllocator
from alula.cache.pool import KVPool
from alula.engine.constraint import Constraint
from alula.engine.events import Event, LaunchRecord, Request
from alula.engine.lines import Lines
from alula.engine.request import FinishReason, Sequence
from alula.engine.requests import Requests
from alula.engine.rounds import Flight
from alula.engine.runner import Emitted, Runner
from alula.engine.scheduler import Scheduler, Step
from alula.engine.settings import Settings, capacity
from alula.engine.speculator import Speculator
from alula.models.decoder import Decoder
from alula.models.load import LoadedModel
from alula.ops.memory import memory_for
from alula.sampling.grammar import Grammars
from alula.sampling.params import SamplingParams

_LOWER = "lower the number of sequences (--max-sequences) or of cached tokens (--cache-tokens)"


class _Launched(NamedTuple):
    """A launch under way."""

    step: Step
    flight: Flight
    started: float


class Engine:
    """One model with its cache, its drafter and its scheduler.

    Requests may be added, followed and aborted by several readers, threads too: each launch is for
    all of them, and what it brings waits with the request it belongs to.
    """

    def __init__(self, model: LoadedModel, settings: Settings, speculator: Speculator) -> None:
        decoder, round_rows = model.decoder, 1 + speculator.shape.nodes
        size = capacity(
            settings,
            positions=decoder.shape.max_positions,
            round_rows=round_rows,
            bytes_per_token=decoder.cache_bytes_per_token,
            device=decoder.device,
        )
        # First of all: where memory is short this says so.
        pool = _pool(decoder, size.pages + 1, settings.page_size)
        self.model = model
        self.max_length = size.max_length
        vocab_size = min(decoder.shape.vocab_size, model.tokenizer.vocab_size)
        self._speculator = speculator
        self.pages = PageAllocator(size.pages, settings.page_size, reuse=settings.prefix_cache)
        self.scheduler = Scheduler(
            self.pages,
            max_sequences=settings.max_sequences,
            row_budget=max(settings.chunk_rows, settings.max_sequences * round_rows),
            round_rows=round_rows,
            max_length=size.max_length,
            chunk_rows=settings.chunk_rows,
            drafter=speculator.keeps_keys,
        )
        reach = size.max_length + 2 * round_rows + 1
        with memory_for("the lines of sequences and the drafter's keys", decoder.device, _LOWER):
            lines = Lines(
                count=settings.max_sequences,
                max_length=size.max_length,
                pages_per_line=-(-reach // settings.page_size) + 1,
                draft_nodes=speculator.shape.nodes,
                vocab_size=vocab_size,
                spare_page=size.pages,
                device=decoder.device,
            )
            drafting = speculator.begin(lines, size.pages + 1, settings.page_size)
        self.grammars = Grammars(model.tokenizer, vocab_size)
        self._constraint = Constraint(self.grammars)
        self._runner = Runner(
            decoder,
            pool,
            lines,
            speculator.shape,
            drafting,
            self._constraint,
            graphs=settings.graphs,
        )
        if self._runner.rounds is not None:
            speculator.measure(self._runner.rounds, settings.max_sequences)
        self._requests = Requests(model.tokenizer, vocab_size)
        self._tables: dict[int, int] = {}
        self._ahead: _Launched | None = None
        self._landed = 0.0
        self._lock = threading.RLock()
        self.observers: list[Callable[[LaunchRecord], None]] = []
        self.failed: list[Request] = []
        """Those that the last failure of a step was about; others were still waiting."""

    @property
    def launches(self) -> Mapping[str, int]:
        """Launches so far: captured ones, and others by what stood in the way."""
        return self._runner.launches

    @property
    def has_work(self) -> bool:
        """Whether a step would launch something."""
        return self.scheduler.has_work

    def add(
        self, prompt_ids: list[int], params: SamplingParams, prompt: str | None = None
    ) -> Request:
        """Queue a request. Raises UsageError for one that the model or the cache cannot take."""
        self._requests.refuse_foreign_ids(prompt_ids, params)
        if params.grammar is not None:
            self.grammars.compile(params.grammar)
        with self._lock:
            request = self._requests.open(prompt_ids, params, prompt)
            try:
                for _ in range(params.n):
                    self.scheduler.add(self._requests.sample(request))
            except Exception:
                self.abort(request)
                raise
        return request

    def abort(self, request: Request) -> None:
        """End a request at once; its samples get the reason `abort`."""
        with self._lock:
            for answer in request.answers:
                self.scheduler.abort(answer.sequence.id)
                self._speculator.forget(answer.sequence.id)
            self._requests.drop(request)

    def follow(self, requests: Collection[Request]) -> Iterator[Event]:
        """What `requests` bring forth, as it comes, until all are finished or aborted.

        Whoever waits runs the launches, for all requests of the engine.
        """
        while any(request.unfinished or request.events for request in requests):
            with self._lock:
                if not any(request.events for request in requests):
                    self.step()
            for request in requests:
                while request.events:
                    yield request.events.popleft()

    def step(self) -> None:
        """Run one launch; what it brings forth is put into the requests' `events`.

        After an exception, Ctrl-C's too, the engine can go on: nothing of the launch is kept.
        """
        with self._lock:
            try:
                self._step()
            except BaseException:
                self._ahead = None
                self._speculator.abandon()
                ids = {sequence.id for sequence in self.scheduler.abandon()}
                self.failed = self._requests.with_any(ids)
                raise

    def _step(self) -> None:
        launched = self._ahead or self._launch(self.scheduler.next())
        if launched is None:
            return
        self._ahead = self._launch_again(launched)
        self._land(launched)
        if self._ahead and not any(s in self._requests for s in self._ahead.step.rounds):
            last, self._ahead = self._ahead, None
            self._land(last)

    def _launch(self, step: Step | None) -> _Launched | None:
        if step is None:
            return None
        with memory_for("what is asked of a sequence", self._runner.lines.device, _LOWER):
            self._prepare(step)
        started = self._clock()
        flight = self._runner.launch(step, self._speculator.depth(step))
        return _Launched(step, flight, started)

    def _launch_again(self, launched: _Launched) -> _Launched | None:
        """Free-running: the next round begins before the host has read the one under way."""
        step = launched.step
        reads_more = any(s.params.logprobs is not None for s in step.rounds)
        if reads_more or self._runner.obstacle(step):
            return None
        return self._launch(self.scheduler.repeat(step))

    def _land(self, launched: _Launched) -> None:
        """Take in what a launch brought."""
        step = launched.step
        emitted = self._runner.collect(step, launched.flight)
        now = self._clock()
        seconds, self._landed = now - max(launched.started, self._landed), now
        finals = [chunk.sequence for chunk in step.chunks if chunk.final]
        emitting = zip([*step.rounds, *finals], emitted, strict=True)
        # A sequence may have ended while this was under way; then nothing came of it.
        pairs = [(s, part) for s, part in emitting if s in self._requests]
        self._observe(step, pairs, seconds)
        tokens = {sequence.id: part.tokens for sequence, part in pairs}
        self.scheduler.commit(step, tokens, self._ahead.step if self._ahead else None)
        for sequence, part in pairs:
            self._requests.take(sequence, part, self._finish)

    def _clock(self) -> float:
        """Seconds, without those in which rounds were captured: these no launch takes again."""
        rounds = self._runner.rounds
        return time.perf_counter() - (rounds.capturing if rounds else 0.0)

    def _prepare(self, step: Step) -> None:
        """Write what is new of the sequences into their lines on the device."""
        for sequence in step.admitted:
            limit = len(sequence.prompt_ids) + sequence.params.max_tokens
            self._runner.lines.admit(
                sequence, min(limit, self.max_length), self._stop_ids(sequence.params)
            )
            self._constraint.admit(sequence)
            self._tables[sequence.line] = 0
        added = []
        for sequence in (*step.rounds, *(chunk.sequence for chunk in step.chunks)):
            known = self._tables[sequence.line]
            if known != len(sequence.pages):
                added.append((sequence.line, known, sequence.pages[known:]))
                self._tables[sequence.line] = len(sequence.pages)
        self._runner.lines.set_pages(added)

    def _stop_ids(self, params: SamplingParams) -> frozenset[int]:
        eos = frozenset() if params.ignore_eos else self.model.tokenizer.eos_ids
        return eos | frozenset(params.stop_token_ids)

    def _observe(self, step: Step, pairs: list[tuple[Sequence, Emitted]], seconds: float) -> None:
        prefilled = {chunk.sequence.id for chunk in step.chunks}
        rounds = [(sequence, part) for sequence, part in pairs if sequence.id not in prefilled]
        for sequence, part in rounds:
            _count_acceptance(sequence, part)
        record = LaunchRecord(
            sequences=len(rounds),
            chunk_rows=sum(chunk.end - chunk.start for chunk in step.chunks),
            draft_nodes=sum(part.nodes for _, part in rounds),
            emitted=sum(len(part.tokens) for _, part in pairs),
            round_tokens=sum(len(part.tokens) for _, part in rounds),
            seconds=seconds,
        )
        self._speculator.observe(record, [(s.id, part) for s, part in rounds])
        for observer in self.observers:
            observer(record)

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        self.scheduler.finish(sequence, reason)
        self._speculator.forget(sequence.id)


def _pool(decoder: Decoder, pages: int, page_size: int) -> KVPool:
    shape = decoder.shape
    return KVPool(
        layers=shape.layers,
        pages=pages,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        page_size=page_size,
        dtype=decoder.cache_dtype,
        device=decoder.device,
    )


def _count_acceptance(sequence: Sequence, emitted: Emitted) -> None:
    """Count a round by depth; a depth below a rejection was not tried, so it is not counted."""
    missing = emitted.drafted - len(sequence.drafted)
    sequence.drafted += [0] * missing
    sequence.accepted += [0] * missing
    for depth in range(min(emitted.drafted, emitted.accepted + 1)):
        sequence.drafted[depth] += 1
        sequence.accepted[depth] += depth < emitted.accepted
