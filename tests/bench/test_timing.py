"""Launches that are compared take turns; those that are behind drop out."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from alula.bench.timing import race

costs = st.dictionaries(st.integers(0, 9), st.floats(1, 1000), min_size=1)


def clocks(times: dict[int, float], log: list[int]) -> dict[int, Callable[[], float]]:
    def clock(name: int) -> Callable[[], float]:
        return lambda: (log.append(name), times[name])[1]

    return {name: clock(name) for name in times}


@given(costs)
def test_the_fastest_is_timed_to_the_end_and_nobody_is_left_untimed(
    times: dict[int, float],
) -> None:
    found = race(clocks(times, []), turns=15)
    assert {name: timed.median for name, timed in found.items()} == times
    best = min(times, key=times.__getitem__)
    assert found[best].turns == 15
    for name, timed in found.items():
        if times[name] > 1.15 * times[best]:
            assert timed.turns == 3
        elif times[name] <= 1.03 * times[best]:
            assert timed.turns == 15


def test_order_turns_around_from_turn_to_turn() -> None:
    log: list[int] = []
    race(clocks({1: 5.0, 2: 5.0, 3: 5.0}, log), turns=3)
    assert log == [1, 2, 3, 3, 2, 1, 1, 2, 3]


def test_one_slow_turn_does_not_decide() -> None:
    taken = {1: [10.0, 90.0, 10.0, *[10.0] * 12], 2: [11.0] * 15}
    found = race({name: iter(times).__next__ for name, times in taken.items()}, turns=15)
    assert found[1].median == 10.0
    assert found[1].turns == 15
