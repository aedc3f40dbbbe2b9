"""The cache proof: random traffic against a model of what every slot of the pool holds."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from alula.cache.pages import PageAllocator
from alula.engine.request import Sequence, Status
from alula.engine.scheduler import Scheduler, Step
from alula.errors import AlulaError

SCRATCH = -1
VOCABULARY = 3


@dataclass(frozen=True)
class Params:
    max_tokens: int


def contents(token_ids: list[int]) -> list[int]:
    """What slots 0, 1, … hold once computed: a value that depends on the whole prefix."""
    values, value = [], 0
    for token in token_ids:
        value = hash((value, token))
        values.append(value)
    return values


class CacheProof(RuleBasedStateMachine):
    """Rules are traffic; the fake model writes slots as a runner and a drafter would."""

    launches: ClassVar[int] = 0
    seen: ClassVar[set[str]] = set()
    """What happened at least once in all runs: a proof that never preempts proves little."""

    @initialize(
        count=st.integers(3, 20),
        page_size=st.integers(1, 4),
        lines=st.integers(1, 4),
        nodes=st.integers(0, 3),
        spare=st.integers(0, 4),
        chunk_rows=st.integers(1, 12),
        max_length=st.integers(6, 36),
    )
    def begin(self, count, page_size, lines, nodes, spare, chunk_rows, max_length):
        self.pages = PageAllocator(count, page_size)
        self.round_rows, self.lines = 1 + nodes, lines
        self.budget = lines * self.round_rows + spare
        self.chunk_rows, self.max_length = chunk_rows, max_length
        self._start_engine(drafter=False)
        self.slots: dict[tuple[int, int], tuple[int, bool]] = {}
        self.live: dict[int, Sequence] = {}
        self.ended: list[Sequence] = []
        self.number = 0

    # traffic

    @rule(
        shared=st.integers(0, 20),
        own=st.lists(st.integers(0, VOCABULARY - 1), max_size=4),
        max_tokens=st.integers(1, 20),
        samples=st.integers(1, 3),
    )
    def arrive(self, shared, own, max_tokens, samples):
        prompt = [position % VOCABULARY for position in range(shared)] + own
        for _ in range(samples):
            self._add(prompt, max_tokens)

    @precondition(lambda self: self.ended)
    @rule(pick=st.integers(0, 99), own=st.lists(st.integers(0, VOCABULARY - 1), max_size=3))
    def next_turn(self, pick, own):
        self._add(self.ended[pick % len(self.ended)].token_ids + own, 6)

    @precondition(lambda self: self.live)
    @rule(pick=st.integers(0, 99))
    def abort(self, pick):
        self._abort(pick)

    @rule(seed=st.integers(0, 2**32))
    def launch(self, seed):
        self._launch(Random(seed))

    @rule(seed=st.integers(0, 2**32))
    def several_launches(self, seed):
        random = Random(seed)
        for _ in range(random.randint(2, 5)):
            self._launch(random)
            self.everything_holds()

    @precondition(lambda self: self.live)
    @rule(seed=st.integers(0, 2**32), pick=st.integers(0, 99))
    def abort_during_launch(self, seed, pick):
        self._launch(Random(seed), pick)

    @rule(drafter=st.booleans())
    def restart_engine(self, drafter):
        self._work_off()
        self._start_engine(drafter)

    def teardown(self):
        if hasattr(self, "live"):
            self._work_off()

    # proof

    @invariant()
    def everything_holds(self):
        self.scheduler.check()
        for sequence in self.live.values():
            size = self.pages.page_size
            for position, value in enumerate(contents(sequence.token_ids[: sequence.computed])):
                slot = sequence.pages[position // size], position % size
                held, drafter = self.slots[slot]
                assert held == value, f"foreign key at {position}"
                assert drafter or not self.drafter, f"no drafter key at {position}"
        self._note_duplicates()

    def _write(self, sequence: Sequence, position: int, value: int) -> None:
        page = sequence.pages[position // self.pages.page_size]
        assert self.pages.references(page) == 1, f"page {page} is written and not held by one"
        assert page not in self.pages.index, f"cached page {page} is written"
        self.slots[page, position % self.pages.page_size] = value, self.drafter

    def _note_duplicates(self) -> None:
        for sequence in self.live.values():
            full = sequence.computed // self.pages.page_size
            if any(page not in self.pages.index for page in sequence.pages[:full]):
                self.seen.add("duplicate")

    # the fake engine

    def _start_engine(self, drafter: bool) -> None:
        self.drafter = drafter
        self.scheduler = Scheduler(
            self.pages,
            max_sequences=self.lines,
            row_budget=self.budget,
            round_rows=self.round_rows,
            max_length=self.max_length,
            chunk_rows=self.chunk_rows,
            drafter=drafter,
        )

    def _work_off(self) -> None:
        """Every launch advances the oldest, so that so many launches must do."""
        bound = sum(len(s.prompt_ids) + s.params.max_tokens for s in self.live.values())
        for number in range(bound):
            if self.live:
                self._launch(Random(number))
                self.everything_holds()
        assert not self.scheduler.has_work, "the queue was not worked off"
        assert not self.pages.in_use

    def _add(self, prompt: list[int], max_tokens: int) -> None:
        limit = min(len(prompt) + max_tokens, self.max_length)
        most = min(limit + 2 * self.round_rows - 1, self.max_length + self.round_rows)
        fits = 0 < len(prompt) < self.max_length and most <= self.pages.count * self.pages.page_size
        self.number += 1
        sequence = Sequence(self.number, prompt, Params(max_tokens), key=0)
        try:
            self.scheduler.add(sequence)
        except AlulaError:
            assert not fits
            self.seen.add("refused")
        else:
            assert fits
            self.live[sequence.id] = sequence

    def _abort(self, pick: int) -> None:
        sequence = list(self.live.values())[pick % len(self.live)]
        self.seen.add(f"aborted {sequence.status.name}")
        self.scheduler.abort(sequence.id)
        assert sequence.finish_reason == "abort"
        del self.live[sequence.id]

    def _launch(self, random: Random, abort: int | None = None) -> None:
        oldest = next(iter(self.live.values()), None)
        before = oldest.computed if oldest else 0
        statuses = {s.id: s.status for s in self.live.values()}
        step = self.scheduler.next()
        if step is None:
            assert not self.live, "sequences wait and nothing is launched"
            return
        CacheProof.launches += 1
        self._note(step, statuses)
        self._check_step(step)
        if abort is not None:
            self._abort(abort)
        emitted: dict[int, list[int]] = {}
        over: dict[int, str] = {}
        self._run_chunks(step, random, emitted)
        self._run_rounds(step, random, emitted, over)
        self.scheduler.commit(step, emitted)
        if oldest and oldest.id in self.live:
            assert oldest.computed > before, "the oldest sequence did not advance"
        for sequence in list(self.live.values()):
            limit = min(len(sequence.prompt_ids) + sequence.params.max_tokens, self.max_length)
            if sequence.id in over or len(sequence.token_ids) == limit:
                self.scheduler.finish(sequence, over.get(sequence.id, "length"))
                self.ended.append(self.live.pop(sequence.id))

    def _note(self, step: Step, statuses: dict[int, Status]) -> None:
        for sequence in self.live.values():
            if statuses[sequence.id] not in (Status.WAITING, sequence.status):
                self.seen.add("preempted")
        for sequence in step.admitted:
            if sequence.computed and self.drafter:
                self.seen.add("hit with drafter")
            cached = "hit" if sequence.computed else "missed"
            self.seen.add(f"{cached} {'again' if sequence.preemptions else 'at first'}")
        if self.pages.statistics.evictions:
            self.seen.add("evicted")
        if step.chunks and step.rounds:
            self.seen.add("mixed")

    def _check_step(self, step: Step) -> None:
        rows = sum(c.end - c.start for c in step.chunks) + len(step.rounds) * self.round_rows
        assert 0 < rows <= self.budget
        if step.rounds and step.chunks and rows == self.budget:
            self.seen.add("budget spent")
        decoding = {s.id for s in self.live.values() if s.status is Status.DECODING}
        assert {s.id for s in step.rounds} == decoding, "a round starves"
        prefilling = any(s.status is Status.PREFILLING for s in self.live.values())
        assert bool(step.chunks) == prefilling, "prefill starves"
        for chunk in step.chunks:
            known = len(chunk.sequence.token_ids)
            assert chunk.sequence.computed == chunk.start < chunk.end <= known
            assert chunk.end - chunk.start <= self.chunk_rows
            assert chunk.final == (chunk.end == known)
            assert chunk.sequence not in step.rounds
        assert {s.id for s in step.admitted} <= {c.sequence.id for c in step.chunks}

    def _run_chunks(self, step: Step, random: Random, emitted: dict[int, list[int]]) -> None:
        for sequence, start, end, final in step.chunks:
            values = contents(sequence.token_ids)
            for position in range(start, end):
                self._write(sequence, position, values[position])
            if final:
                emitted[sequence.id] = [self._choose(sequence.token_ids, random)]
            for position in range(end, end + (self.round_rows if final else 1)):
                self._write(sequence, position, SCRATCH)

    def _run_rounds(
        self, step: Step, random: Random, emitted: dict[int, list[int]], over: dict[int, str]
    ) -> None:
        """The device cuts at the context limit only; max_tokens and stops are cut afterwards."""
        for sequence in step.rounds:
            root, rows = sequence.computed, self.round_rows
            for row in range(rows):
                self._write(sequence, root + row, SCRATCH)
            tokens = list(sequence.token_ids)
            for _ in range(min(random.randint(1, rows), self.max_length - len(tokens))):
                tokens.append(self._choose(tokens, random))
            for position in range(root, len(tokens) - 1):
                self._write(sequence, position, contents(tokens)[position])
            for position in range(len(tokens) - 1, len(tokens) - 1 + rows):
                self._write(sequence, position, SCRATCH)
            new = tokens[root + 1 :]
            if random.random() < 0.1:
                new = new[: random.randint(1, len(new))]
                over[sequence.id] = "stop"
            left = len(sequence.prompt_ids) + sequence.params.max_tokens - root - 1
            emitted[sequence.id] = new[:left]

    @staticmethod
    def _choose(tokens: list[int], random: Random) -> int:
        """Mostly the same after the same prefix, so that sequences fill equal pages."""
        if random.random() < 0.8:
            return (sum(tokens) + len(tokens)) % VOCABULARY
        return random.randrange(VOCABULARY)


EVERYTHING = {
    "refused",
    "preempted",
    "evicted",
    "mixed",
    "budget spent",
    "duplicate",
    "hit with drafter",
    "hit at first",
    "missed at first",
    "hit again",
    "missed again",
    "aborted WAITING",
    "aborted PREFILLING",
    "aborted DECODING",
}


def prove(examples: int, steps: int) -> None:
    CacheProof.launches = 0
    CacheProof.seen = set()
    run_state_machine_as_test(
        CacheProof,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_random_traffic_never_mixes_leaks_or_stalls():
    prove(150, 50)
    assert CacheProof.launches >= 1_000
    assert EVERYTHING - CacheProof.seen == set()


@pytest.mark.slow
def test_random_traffic_never_mixes_leaks_or_stalls_in_ten_thousand_launches():
    prove(1_500, 60)
    assert CacheProof.launches >= 10_000
    assert EVERYTHING - CacheProof.seen == set()
