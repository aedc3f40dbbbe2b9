from __future__ import annotations

from dataclasses import dataclass

import pytest

from alula.cache.pages import PageAllocator
from alula.engine.request import Sequence, Status
from alula.engine.scheduler import Scheduler, Step
from alula.errors import ResourceError, UsageError


@dataclass(frozen=True)
class Params:
    max_tokens: int = 64


def sequence(number: int, prompt: list[int], max_tokens: int = 64) -> Sequence:
    return Sequence(number, prompt, Params(max_tokens), key=number)


def scheduler(
    pages: int = 64, page_size: int = 4, *, reuse: bool = True, **changes: int
) -> Scheduler:
    settings = {
        "max_sequences": 4,
        "row_budget": 16,
        "round_rows": 3,
        "max_length": 128,
        "chunk_rows": 16,
    }
    return Scheduler(PageAllocator(pages, page_size, reuse=reuse), **(settings | changes))


def launch(scheduler: Scheduler, tokens: int = 1) -> Step:
    """One step; every round emits `tokens` tokens."""
    step = scheduler.next()
    assert step is not None
    emitted = {c.sequence.id: [7] for c in step.chunks if c.final}
    scheduler.commit(step, emitted | {s.id: [7] * tokens for s in step.rounds})
    scheduler.check()
    return step


def spans(step: Step) -> list[tuple[int, int, int]]:
    return [(c.sequence.id, c.start, c.end) for c in step.chunks]


# prefill and rounds


def test_a_long_prompt_is_computed_in_chunks_and_only_the_last_one_samples():
    engine, one = scheduler(chunk_rows=4), sequence(1, list(range(10)))
    engine.add(one)
    steps = [launch(engine) for _ in range(3)]
    assert [spans(s) for s in steps] == [[(1, 0, 4)], [(1, 4, 8)], [(1, 8, 10)]]
    assert [s.chunks[0].final for s in steps] == [False, False, True]
    assert one.output_ids == [7] and one.status is Status.DECODING


def test_the_last_token_is_the_root_after_every_commit():
    engine, one = scheduler(), sequence(1, [1, 2, 3])
    engine.add(one)
    launch(engine)
    for tokens in (1, 3, 2):
        launch(engine, tokens)
        assert one.computed == len(one.token_ids) - 1
    assert (one.rounds, one.emitted) == (3, {1: 1, 3: 1, 2: 1})


def test_rounds_all_run_and_chunks_get_the_rows_they_leave():
    engine = scheduler(row_budget=12, chunk_rows=16)
    for number in (1, 2):
        engine.add(sequence(number, [number]))
    launch(engine)
    engine.add(sequence(3, list(range(20))))
    step = launch(engine)
    assert [s.id for s in step.rounds] == [1, 2]
    assert spans(step) == [(3, 0, 6)]


def test_prefill_does_not_starve_where_rounds_fill_the_budget():
    engine = scheduler(row_budget=12, max_sequences=4, round_rows=3)
    for number in (1, 2, 3):
        engine.add(sequence(number, [number]))
    launch(engine)
    last = sequence(4, list(range(50, 59)))
    engine.add(last)
    assert [spans(launch(engine)) for _ in range(3)] == [[(4, 0, 3)], [(4, 3, 6)], [(4, 6, 9)]]


def test_a_step_names_the_sequences_that_got_a_line_for_it():
    engine = scheduler(row_budget=12, chunk_rows=8)
    for number in (1, 2):
        engine.add(sequence(number, [number] * 10))
    admitted = [[s.id for s in launch(engine).admitted] for _ in range(3)]
    assert admitted == [[1, 2], [], []]


def test_the_lowest_free_line_goes_first():
    engine = scheduler()
    sequences = [sequence(n, [n]) for n in range(5)]
    for one in sequences:
        engine.add(one)
    launch(engine)
    assert [s.line for s in sequences] == [0, 1, 2, 3, -1]
    engine.finish(sequences[2], "stop")
    launch(engine)
    assert sequences[4].line == 2


# pages


def test_a_launch_owns_the_pages_of_everything_it_and_its_drafter_write():
    engine, one = scheduler(page_size=1, pages=200), sequence(1, [1, 2, 3, 4, 5])
    engine.add(one)
    launch(engine)
    assert len(one.pages) >= 5 + 3, "a final chunk ends with a draft behind the new root"
    while len(one.token_ids) < 30:
        root = one.computed
        launch(engine, 3)
        assert len(one.pages) > root + 2 * 3


def test_pages_end_at_the_context_limit_and_one_draft():
    engine, one = scheduler(page_size=1, pages=200, max_length=20), sequence(1, [1] * 17)
    engine.add(one)
    launch(engine)
    launch(engine)
    assert len(one.pages) == 20 + 3


def test_the_second_sample_of_a_prompt_shares_the_pages_of_the_first():
    engine = scheduler(row_budget=64, chunk_rows=64)
    samples = [sequence(n, list(range(10))) for n in (1, 2, 3)]
    for one in samples:
        engine.add(one)
    assert spans(launch(engine)) == [(1, 0, 10)]
    assert spans(launch(engine)) == [(2, 8, 10), (3, 8, 10)]
    assert samples[0].pages[:2] == samples[1].pages[:2] == samples[2].pages[:2]
    assert [s.prefix_tokens for s in samples] == [0, 8, 8]


def test_without_reuse_samples_wait_for_no_page_and_find_none():
    engine = scheduler(row_budget=64, chunk_rows=64, reuse=False)
    samples = [sequence(n, list(range(10))) for n in (1, 2)]
    for one in samples:
        engine.add(one)
    assert spans(launch(engine)) == [(1, 0, 10), (2, 0, 10)]
    engine.abort(1)
    engine.abort(2)
    engine.add(sequence(3, list(range(10))))
    assert spans(launch(engine)) == [(3, 0, 10)]


def test_samples_of_a_prompt_shorter_than_a_page_start_together():
    engine = scheduler()
    for number in (1, 2):
        engine.add(sequence(number, [1, 2, 3]))
    assert spans(launch(engine)) == [(1, 0, 3), (2, 0, 3)]


def test_a_prefix_hit_leaves_a_token_to_compute():
    engine = scheduler()
    for number in (1, 2):
        one = sequence(number, [1, 2, 3, 4, 5, 6, 7, 8])
        engine.add(one)
        step = launch(engine)
        engine.finish(one, "stop")
    assert spans(step) == [(2, 4, 8)]


def test_a_page_is_found_only_once_its_last_token_is_committed():
    engine, one = scheduler(page_size=4), sequence(1, [1, 2, 3])
    engine.add(one)
    launch(engine)
    assert len(one.token_ids) == 4 and len(engine._pages.index) == 0, "the root is not computed"
    launch(engine)
    assert len(engine._pages.index) == 1


def test_the_answer_is_found_again_in_the_next_turn():
    engine, one = scheduler(), sequence(1, [1, 2, 3, 4])
    engine.add(one)
    launch(engine)
    launch(engine, 3)
    launch(engine, 3)
    engine.finish(one, "stop")
    turn = sequence(2, [*one.token_ids, 5, 6])
    engine.add(turn)
    launch(engine)
    assert turn.prefix_tokens == 8


def test_pages_without_drafter_keys_are_not_used_by_an_engine_with_a_drafter():
    pages = PageAllocator(64, 4)
    found = []
    for number, drafter in enumerate([False, False, True]):
        engine = Scheduler(
            pages,
            max_sequences=1,
            row_budget=16,
            round_rows=1,
            max_length=64,
            chunk_rows=16,
            drafter=drafter,
        )
        one = sequence(number, list(range(9)))
        engine.add(one)
        launch(engine)
        found.append(one.prefix_tokens)
        engine.finish(one, "stop")
    assert found == [0, 8, 0]


def test_nobody_waits_for_a_page_that_was_computed_and_stayed_private():
    pages = PageAllocator(64, 4)
    settings = {"max_sequences": 2, "row_budget": 8, "max_length": 64, "chunk_rows": 4}
    plain = Scheduler(pages, round_rows=1, **settings)
    plain.add(one := sequence(0, list(range(12))))
    for _ in range(3):
        launch(plain)
    plain.finish(one, "stop")
    drafting = Scheduler(pages, round_rows=1, drafter=True, **settings)
    for number in (1, 2):
        drafting.add(sequence(number, list(range(12))))
    assert spans(launch(drafting)) == [(1, 0, 4)]
    assert spans(launch(drafting)) == [(1, 4, 8), (2, 0, 4)]


# too few pages


def crowded() -> tuple[Scheduler, list[Sequence]]:
    """Three sequences in a pool that two of them outgrow."""
    engine = scheduler(pages=14, page_size=2, max_length=26, round_rows=1, row_budget=64)
    sequences = [sequence(n, [n, n], max_tokens=20) for n in (1, 2, 3)]
    for one in sequences:
        engine.add(one)
    return engine, sequences


def test_the_youngest_gives_way_and_goes_to_the_front_of_the_queue():
    engine, (old, middle, young) = crowded()
    late = sequence(4, [4])
    while not young.preemptions:
        launch(engine)
    engine.add(late)
    assert young.status is Status.WAITING and young.line == -1 and young.computed == 0
    assert (old.preemptions, middle.preemptions) == (0, 0)
    kept = list(young.token_ids)
    assert list(engine._waiting) == [young, late]
    engine.finish(old, "stop")
    engine.finish(middle, "stop")
    step = launch(engine)
    assert step.chunks[0].sequence is young and step.chunks[0].end == len(kept)
    assert step.chunks[0].start > 0, "its own old pages are found"
    assert young.prefix_tokens == 0, "which is no reuse across requests"


def test_everybody_ends_however_short_pages_are():
    engine, sequences = crowded()
    for _ in range(200):
        if engine.has_work:
            launch(engine)
            for one in [s for s in sequences if len(s.output_ids) == 20 and s.running]:
                engine.finish(one, "length")
    assert not engine.has_work
    assert sum(s.preemptions for s in sequences) > 0


def test_a_request_that_could_not_end_alone_is_refused_before_it_starts():
    engine = scheduler(pages=8, page_size=4, max_length=1000)
    with pytest.raises(ResourceError) as error:
        engine.add(sequence(1, [1] * 10, max_tokens=18))
    assert "cache_tokens to at least 36" in error.value.fix
    assert not engine.has_work
    engine.add(sequence(1, [1] * 10, max_tokens=17))
    engine.check()


@pytest.mark.parametrize("length", [0, 128, 500])
def test_prompts_that_are_empty_or_fill_the_context_are_refused(length):
    with pytest.raises(UsageError, match=f"a prompt of {length} tokens"):
        scheduler(pages=500).add(sequence(1, [1] * length))


def test_a_budget_that_cannot_hold_all_rounds_is_refused():
    with pytest.raises(UsageError, match="launches of 11 rows"):
        scheduler(row_budget=11)


# the end


def test_an_aborted_sequence_keeps_its_pages_until_the_launch_that_writes_them_is_over():
    engine, one = scheduler(), sequence(1, [1, 2, 3])
    engine.add(one)
    launch(engine)
    step = engine.next()
    pages = list(one.pages)
    engine.abort(1)
    assert one.finish_reason == "abort"
    assert all(engine._pages.references(page) for page in pages)
    engine.check()
    engine.commit(step, {1: [7, 7]})
    assert not any(engine._pages.references(page) for page in pages)
    assert one.output_ids == [7] and not engine.has_work


def test_aborts_of_waiting_and_of_finished_sequences():
    engine = scheduler(max_sequences=1)
    for number in (1, 2):
        engine.add(sequence(number, [number]))
    launch(engine)
    for _ in range(2):
        engine.abort(2)
    engine.abort(1)
    assert not engine.has_work and engine.next() is None
    engine.check()


def test_a_runner_that_breaks_the_contract_is_told():
    engine, one = scheduler(), sequence(1, [1, 2, 3], max_tokens=3)
    engine.add(one)
    with pytest.raises(AssertionError, match="added twice"):
        engine.add(one)
    step = engine.next()
    with pytest.raises(AssertionError, match="not committed yet"):
        engine.next()
    with pytest.raises(AssertionError, match="not the one in flight"):
        engine.commit(step._replace(rounds=()), {})
    with pytest.raises(AssertionError, match="a chunk of 1 emits 0 tokens"):
        engine.commit(step, {})


@pytest.mark.parametrize(("tokens", "words"), [(0, "emits 0"), (4, "emits 4"), (3, "past its")])
def test_a_round_emits_at_least_one_token_and_no_more_than_fit(tokens, words):
    engine = scheduler()
    engine.add(sequence(1, [1, 2, 3], max_tokens=3))
    launch(engine)
    with pytest.raises(AssertionError, match=words):
        launch(engine, tokens)


def test_a_sequence_at_its_limit_must_be_finished():
    engine = scheduler()
    engine.add(sequence(1, [1, 2, 3], max_tokens=3))
    launch(engine)
    launch(engine, 2)
    with pytest.raises(AssertionError, match="at its limit and not finished"):
        engine.next()
