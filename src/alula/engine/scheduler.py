"""What the next launch computes: rounds, prompt chunks, and who waits. Plain data, no torch."""

from __future__ import annotations

import heapq
from collections import abc, deque
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from alula.cache.pages import PageAllocator, require
from alula.engine.limits import Limits
from alula.engine.request import FinishReason, Sequence, Status
from alula.errors import UsageError


class Chunk(NamedTuple):
    """Known tokens start … end - 1 of a sequence, computed in one launch."""

    sequence: Sequence
    start: int
    end: int
    final: bool
    """Whether no known token is left after it: then a token is sampled from its last row."""


class Step(NamedTuple):
    """One launch."""

    chunks: tuple[Chunk, ...]
    rounds: tuple[Sequence, ...]
    """Sequences of which the root, the last token, and the pending draft are computed."""
    admitted: tuple[Sequence, ...]
    """Those of the chunks' sequences that got their line for this launch."""


class Scheduler:
    """Continuous batching with chunked prefill, prefix reuse and preemption by recompute.

    First come, first served: the running sequences are always the oldest ones. When pages run
    short, cached pages are evicted, then the youngest running sequence gives way; it goes back to
    the front of the queue. The oldest therefore advances in every launch, and `add` refuses what
    could not finish even alone: there is no livelock.

    Rounds come first and all of them, always; chunks share the rows they leave. Neither starves,
    by arithmetic: the row budget has `round_rows` rows for each line, and a sequence in prefill
    takes part in no round, so the oldest one always finds at least `round_rows` rows.

    One step at a time: `next`, launch, `commit`, then `finish` what has ended. A step of rounds
    may be launched once more before it is committed (`repeat`).
    """

    def __init__(
        self,
        pages: PageAllocator,
        *,
        max_sequences: int,
        row_budget: int,
        round_rows: int,
        max_length: int,
        chunk_rows: int,
        drafter: bool = False,
    ) -> None:
        """`round_rows` is 1 + draft nodes, `max_length` counts tokens of prompt and output.

        `drafter` says whether launches write the drafter's keys; then only pages that have them
        are reused. Raises UsageError where the budget cannot hold a round of every line.
        """
        if row_budget < max_sequences * round_rows or chunk_rows < 1:
            raise UsageError(
                f"launches of {row_budget} rows with chunks of {chunk_rows} are too small",
                f"{max_sequences} sequences with {round_rows} rows each need "
                f"{max_sequences * round_rows} rows, and a chunk at least 1",
                "raise row_budget or chunk_rows, or lower max_sequences or the draft's node count",
            )
        self._pages = pages
        self._row_budget = row_budget
        self._limits = Limits(max_length, round_rows)
        self._chunk_rows = chunk_rows
        self._drafter = drafter
        self.max_sequences = max_sequences
        self._lines = list(range(max_sequences))
        self._unfinished: dict[int, Sequence] = {}
        self._running: list[Sequence] = []
        self._waiting: deque[Sequence] = deque()
        self._flight: Step | None = None

    @property
    def has_work(self) -> bool:
        """Whether `next` has something to launch (or a launch is still to be committed)."""
        return bool(self._running or self._waiting)

    @property
    def waiting(self) -> int:
        """Sequences that hold nothing yet, or no more."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Sequences that hold a line and pages."""
        return len(self._running)

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence. Raises what `Limits.admit` raises."""
        require(sequence.id not in self._unfinished, f"sequence {sequence.id} is added twice")
        self._limits.admit(sequence, self._pages)
        self._pages.digest(sequence.digests, sequence.token_ids)
        self._unfinished[sequence.id] = sequence
        self._waiting.append(sequence)

    def abort(self, sequence_id: int) -> None:
        """End a sequence at any time, also during a launch. One already finished is ignored."""
        if sequence := self._unfinished.get(sequence_id):
            self.finish(sequence, "abort")

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a sequence; its full committed pages stay as prefix cache.

        During a launch it keeps its pages, which the launch may write, until `commit`.
        """
        del self._unfinished[sequence.id]
        if sequence.status is Status.WAITING:
            self._waiting.remove(sequence)
        elif self._flight is None:
            self._vacate(sequence)
        sequence.status = Status.FINISHED
        sequence.finish_reason = reason

    def next(self) -> Step | None:
        """Decide the next launch and give it its pages; None without work."""
        require(self._flight is None, "the launch before is not committed yet")
        self._grow_rounds()
        rounds = tuple(s for s in self._running if s.status is Status.DECODING)
        before = len(self._running)
        chunks = self._cut_chunks(self._row_budget - len(rounds) * self._limits.round_rows)
        if not rounds and not chunks:
            return None
        self._flight = Step(tuple(chunks), rounds, tuple(self._running[before:]))
        return self._flight

    def repeat(self, step: Step) -> Step | None:
        """The same rounds once more, to be launched before `step`, in flight, is committed.

        Each gets pages for a round from wherever the first may end. None where something else
        should come first: an admission, another's end that is certain, pages that are short.
        """
        require(step is self._flight, "the step to be repeated is not the one in flight")
        waits = bool(self._waiting and self._lines)
        if step.chunks or waits or not any(self._goes_on(s) for s in step.rounds):
            return None
        if any(s.status is Status.FINISHED for s in step.rounds):
            return None
        if not all(self._grow(s, s.computed + self._limits.round_rows) for s in step.rounds):
            return None
        return Step((), step.rounds, ())

    def _goes_on(self, sequence: Sequence) -> bool:
        """Whether a sequence can have tokens left to emit after a round."""
        return len(sequence.token_ids) + 1 < self._limits.length(sequence)

    def _grow_rounds(self) -> None:
        """Give rounds their pages, oldest first; the youngest gives way.

        It is not admitted again for the same launch: less than it held is left.
        """
        for sequence in tuple(self._running):
            while sequence.status is Status.DECODING and not self._grow(
                sequence, sequence.computed
            ):
                self._preempt(self._running[-1])

    def _grow(self, sequence: Sequence, root: int) -> bool:
        """Give a sequence the pages it needs while position `root` is its root at most."""
        full = len(sequence.token_ids) >= self._limits.length(sequence)
        require(not full, f"sequence {sequence.id} is at its limit and not finished")
        missing = self._pages.pages_for(self._limits.reach(sequence, root)) - len(sequence.pages)
        if missing <= 0:
            return True
        more = self._pages.grow(missing)
        sequence.pages += more or ()
        return more is not None

    def _cut_chunks(self, budget: int) -> list[Chunk]:
        """Chunks of at most `budget` rows: sequences in prefill, oldest first, then new ones."""
        prefilling = [s for s in self._running if s.status is Status.PREFILLING]
        chunks: list[Chunk] = []
        for sequence in chain(prefilling, self._admissions()):
            start, known = sequence.computed, len(sequence.token_ids)
            end = min(start + min(budget, self._chunk_rows), known)
            chunks.append(Chunk(sequence, start, end, end == known))
            budget -= end - start
            if not budget:
                break
        return chunks

    def _admissions(self) -> Iterator[Sequence]:
        """Give lines and pages to waiting sequences, one at each request, while they last."""
        while self._waiting and self._lines and self._open(self._waiting[0]):
            sequence = self._waiting.popleft()
            sequence.line = heapq.heappop(self._lines)
            sequence.status = Status.PREFILLING
            self._running.append(sequence)
            yield sequence

    def _open(self, sequence: Sequence) -> bool:
        """Give a sequence the pages of all its known tokens, cached ones where there are.

        At least one token is left to compute, since its logits are needed. All pages come at
        once, so that only rounds ever grow and a prompt is not given up half-way.
        """
        known = len(sequence.token_ids)
        reusable = sequence.digests[: (known - 1) // self._pages.page_size]
        cached = self._pages.index.lookup(reusable, drafter=self._drafter)
        if self._is_promised(reusable[len(cached) :], len(cached)):
            return False
        needed = self._pages.pages_for(self._limits.reach(sequence, known))
        pages = self._pages.open(needed, cached)
        if pages is None:
            return False
        sequence.pages = pages
        sequence.computed = len(cached) * self._pages.page_size
        if not sequence.preemptions:
            sequence.prefix_tokens = sequence.computed
        return True

    def _is_promised(self, missing: list[bytes], number: int) -> bool:
        """Whether a sequence in prefill is about to compute the page that is missing first.

        Waiting for it makes n samples of one prompt compute it once.
        """
        return any(
            s.status is Status.PREFILLING
            and s.computed // self._pages.page_size <= number
            and s.digests[number : number + 1] == missing[:1] != []
            for s in self._running
        )

    def commit(
        self,
        step: Step,
        emitted: abc.Mapping[int, abc.Sequence[int]],
        repeated: Step | None = None,
    ) -> None:
        """Take in what a launch did: advance, append, let full pages be found.

        `emitted` has, by sequence id, the token of each final chunk and the 1 … `round_rows`
        tokens of each round, already cut at the sequence's limit. `repeated`: what `repeat` gave
        and is in flight now.
        """
        require(step is self._flight, "the step committed is not the one in flight")
        self._flight = repeated
        for part in step.chunks:
            tokens = emitted.get(part.sequence.id, ()) if part.final else ()
            self._commit_chunk(part, tokens)
        for sequence in step.rounds:
            self._commit_round(sequence, emitted.get(sequence.id, ()))
        held = repeated.rounds if repeated else ()
        for sequence in [s for s in self._running if s.status is Status.FINISHED]:
            if sequence not in held:
                self._vacate(sequence)

    def abandon(self) -> tuple[Sequence, ...]:
        """Give up a launch that failed. What it wrote is not trusted: all running sequences start
        over from the tokens that are known. Returns them.
        """
        self._flight = None
        given_up = tuple(self._running)
        for sequence in reversed(given_up):
            if sequence.status is Status.FINISHED:
                self._vacate(sequence)
            else:
                self._preempt(sequence)
        return given_up

    def _commit_chunk(self, part: Chunk, tokens: abc.Sequence[int]) -> None:
        sequence = part.sequence
        if sequence.status is Status.FINISHED:
            return
        require(len(tokens) == part.final, f"a chunk of {sequence.id} emits {len(tokens)} tokens")
        if part.final:
            sequence.status = Status.DECODING
        self._advance(sequence, part.end - part.start, tokens)

    def _commit_round(self, sequence: Sequence, tokens: abc.Sequence[int]) -> None:
        if sequence.status is Status.FINISHED:
            return
        fits = 1 <= len(tokens) <= self._limits.round_rows
        require(fits, f"a round of {sequence.id} emits {len(tokens)} tokens")
        sequence.rounds += 1
        sequence.emitted[len(tokens)] += 1
        self._advance(sequence, len(tokens), tokens)

    def _advance(self, sequence: Sequence, rows: int, tokens: abc.Sequence[int]) -> None:
        size = self._pages.page_size
        first = sequence.computed // size
        sequence.computed += rows
        sequence.token_ids.extend(tokens)
        within = len(sequence.token_ids) <= self._limits.length(sequence)
        require(within, f"sequence {sequence.id} grew past its limit")
        full = range(first, sequence.computed // size)
        if full:
            self._pages.digest(sequence.digests, sequence.token_ids)
            self._pages.publish(sequence.digests, sequence.pages, full, drafter=self._drafter)

    def _preempt(self, sequence: Sequence) -> None:
        """Back to the front of the queue, to be recomputed from what the cache still has then."""
        self._vacate(sequence)
        self._pages.digest(sequence.digests, sequence.token_ids)
        sequence.status = Status.WAITING
        sequence.computed = 0
        sequence.preemptions += 1
        self._waiting.appendleft(sequence)

    def _vacate(self, sequence: Sequence) -> None:
        self._pages.release(sequence.pages)
        sequence.pages = []
        heapq.heappush(self._lines, sequence.line)
        sequence.line = -1
        self._running.remove(sequence)

    def check(self) -> None:
        """Prove the invariants of scheduler and pages; raises AssertionError saying which fails."""
        self._pages.check([s.pages for s in self._running])
        lines = sorted([*self._lines, *(s.line for s in self._running)])
        require(lines == list(range(self.max_sequences)), f"the lines are {lines}")
        queue = [s for s in (*self._running, *self._waiting) if s.status is not Status.FINISHED]
        ordered = queue == list(self._unfinished.values())
        require(ordered, "the running sequences are not the oldest ones, in order")
        for sequence in self._waiting:
            idle = not sequence.running and not sequence.pages and not sequence.computed
            require(idle, f"sequence {sequence.id} waits and holds something")
            full = len(sequence.token_ids) // self._pages.page_size if self._pages.reuse else 0
            known = len(sequence.digests) == full
            require(known, f"sequence {sequence.id} waits and its prefix is not known")
        for sequence in self._running:
            self._check_running(sequence)

    def _check_running(self, sequence: Sequence) -> None:
        name, left = f"sequence {sequence.id}", len(sequence.token_ids) - sequence.computed
        room = len(sequence.pages) * self._pages.page_size
        require(room > len(sequence.token_ids), f"{name} lacks pages for its tokens")
        require(left >= 1, f"{name} has no token left to compute")
        decoding = sequence.status is Status.DECODING
        require(left == 1 or not decoding, f"{name} decodes with {left} tokens not computed")
