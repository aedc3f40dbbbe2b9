"""While rounds run, the collector leaves alone what was there before them."""

from __future__ import annotations

import gc

from alula.engine.heap import freeze_heap, frozen_heap


class Cycle:
    """Garbage that only the collector finds."""

    def __init__(self) -> None:
        self.self = self


def test_what_exists_is_out_of_the_collectors_sight_for_a_while() -> None:
    kept = [Cycle() for _ in range(100)]
    assert gc.get_freeze_count() == 0
    with frozen_heap():
        assert gc.get_freeze_count() > 100
        seen = {id(thing) for thing in gc.get_objects()}
        assert not any(id(cycle) in seen for cycle in kept)
    assert gc.get_freeze_count() == 0
    seen = {id(thing) for thing in gc.get_objects()}
    assert all(id(cycle) in seen for cycle in kept)


def test_garbage_is_collected_before_it_and_during_it() -> None:
    found: list[int] = []
    gc.collect()
    Cycle()

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "stop":
            found.append(info["collected"])

    gc.callbacks.append(note)
    try:
        with frozen_heap():
            Cycle()
            gc.collect()
    finally:
        gc.callbacks.remove(note)
    assert len(found) == 2
    assert all(found)


def test_a_process_may_stay_so() -> None:
    try:
        freeze_heap()
        with frozen_heap():
            pass
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
