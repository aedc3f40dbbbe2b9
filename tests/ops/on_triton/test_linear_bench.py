"""The bench of one weight, in the interpreter: what is timed is right, and tuning ends."""

from __future__ import annotations

import pytest
import torch

from alula.bench.kernels import LinearBench, paged
from alula.bench.shapes import Matrix
from alula.bench.timing import Clock, Launch
from alula.bench.tune import tune
from alula.ops.triton.linear import agreeing
from alula.ops.triton.tiles import Tile, choose

ROOM = 99 * 1024


def clocked(launch: Launch, parts: int) -> Clock:
    launch()
    return lambda: 5.0 / parts


@pytest.fixture
def bench() -> LinearBench:
    return LinearBench(Matrix("odd", 40, 96), torch.float16, torch.device("cpu"), clocked)


def test_a_weight_is_tuned(bench: LinearBench) -> None:
    found = list(tune(bench, ROOM, bandwidth=4.0, buckets=(4, 16, 32)))
    assert [chosen.rows for chosen in found] == [4, 16, 32]
    for chosen in found:
        assert chosen.best.tile in {trial.tile for trial in chosen.trials}
        assert chosen.best.us == 2.5


def test_its_own_clock_is_of_the_tile_chosen_at_load(bench: LinearBench) -> None:
    assert bench.own(3)() == bench.cublas(3)() == 2.5
    first = choose(bench.weights[0].table, 3)
    assert first in bench.agreeing([first])


def test_only_tiles_that_agree_are_let_through(
    bench: LinearBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, wrong = Tile(16, 32, 64, 4, 3), Tile(32, 32, 64, 4, 3)
    weight = bench.weights[0]
    multiply = type(weight).multiply_in

    def other_order(self: object, tile: Tile, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        y: torch.Tensor = multiply(weight, tile, x, dtype)
        return y.nextafter(y + 1) if tile == wrong else y

    monkeypatch.setattr(type(weight), "multiply_in", other_order)
    assert agreeing(weight, [wrong, right]) == {right}
    assert bench.agreeing([wrong, right]) == {right}


@pytest.mark.parametrize("tail", [0, 3])
def test_paged_rows_lie_in_their_own_pages(tail: int) -> None:
    rows = paged(2, 40, torch.device("cpu"), 4, tail)
    assert len(rows.slots.unique()) == 8
    pages = rows.slots // 32
    for row, sequence in enumerate(rows.sequences.tolist()):
        assert int(pages[row]) in rows.page_table[sequence].tolist()
