"""Attention equals the dense definition; a row's bits depend on its own keys alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from alula.ops.attention import Heads
from alula.ops.rows import Rows
from alula.ops.triton.attention import Tile, choose, plan
from alula.ops.triton.spread_attention import spread_attention_kernel
from paged import PAGE, chains, dense, joined, only, pools, to, trees

PARENTS = [0, 0, 1, 1, 2, 4, 6, 6]
TREES = trees([3, 66, 130], PARENTS)
LAUNCHES = {
    "single rows": chains([(0, 1), (70, 71), (200, 201), (63, 64)]),
    "a prompt": chains([(0, 70)]),
    "a later chunk": chains([(60, 100)]),
    "chunks and single rows": chains([(5, 6), (0, 20), (127, 128), (64, 66)]),
    "trees": TREES,
    "trees and chunks": joined(TREES, chains([(0, 9), (70, 80)])),
    "a first position without key": chains([(1, 2), (64, 70)], first=1),
    "trees below a first position": trees([2, 70], PARENTS, first=1),
    "trees over the edge of a segment": trees([126, 255, 128], PARENTS),
}
TOLERANCE = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}
SCALE = 0.3


class World:
    """A launch with its queries and a poisoned cache."""

    def __init__(
        self, rows: Rows, device: torch.device, dtype: torch.dtype, heads: Heads, d: int
    ) -> None:
        self.rows, self.heads = to(rows, device), heads
        self.keys, self.values = pools(self.rows, heads.kv, d, dtype)
        torch.manual_seed(3)
        self.q = (2 * torch.randn(len(rows.slots), heads.query, d)).to(device, dtype)

    def attend(
        self, chosen: Tensor | None = None, window: int | None = None, tile: Tile | None = None
    ) -> Tensor:
        """All rows, or the chosen ones alone."""
        rows = self.rows if chosen is None else only(self.rows, chosen)
        q = self.q if chosen is None else self.q[chosen]
        made = plan(rows, PAGE, self.heads, window)
        tile = tile or choose(rows, PAGE, self.heads, self.q, processors=1)
        return made.attend_in(tile, q, self.keys, self.values, SCALE)

    def error(self, found: Tensor, window: int | None = None) -> float:
        expected = dense(self.rows, self.q, self.keys, self.values, SCALE, window)
        return float((found.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("launch", LAUNCHES)
@pytest.mark.parametrize("window", [None, 5])
def test_it_is_the_dense_definition(
    launch: str, window: int | None, device: torch.device, dtype: torch.dtype
) -> None:
    world = World(LAUNCHES[launch], device, dtype, Heads(6, 2), d=16)
    found = world.attend(window=window)
    assert found.dtype == dtype
    assert world.error(found, window) < TOLERANCE[dtype]


@pytest.mark.parametrize(("heads", "d"), [(Heads(4, 4), 64), (Heads(9, 3), 64), (Heads(20, 1), 24)])
def test_heads_of_any_size_and_group(heads: Heads, d: int, device: torch.device) -> None:
    world = World(LAUNCHES["trees and chunks"], device, torch.float16, heads, d)
    assert world.error(world.attend()) < TOLERANCE[torch.float16]


@pytest.mark.parametrize("launch", LAUNCHES)
def test_a_row_is_the_same_in_any_company(launch: str, device: torch.device) -> None:
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float16
    world = World(LAUNCHES[launch], device, dtype, Heads(3, 1), d=16)
    whole = world.attend()
    rows = len(whole)
    for row in range(0, rows, 1 if device.type == "cuda" else 13):
        alone = world.attend(torch.tensor([row], device=device))
        assert torch.equal(alone[0], whole[row])
    for count, spread in ((5, 1), (2, 3)):
        assert torch.equal(world.attend(tile=Tile(count, 16, spread)), whole), (count, spread)
    some = torch.arange(1, rows, 2, device=device)
    if len(some):
        assert torch.equal(world.attend(some), whole[some])


TILES = (Tile(4, 16), Tile(4, 16, 1, 4, 2), Tile(4, 16, 1, 2, 1), Tile(16, 64, 1, 8))


@pytest.mark.parametrize("d", [64, 128])
def test_all_tiles_there_are_give_the_same_bits(d: int, device: torch.device) -> None:
    """A prompt's, a chain's and a tree's: with other warps, and other matrix instructions."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float16
    world = World(LAUNCHES["trees and chunks"], device, dtype, Heads(4, 1), d)
    first, *others = (world.attend(tile=tile) for tile in TILES)
    assert all(torch.equal(other, first) for other in others)


@pytest.mark.parametrize("root", [61, 126])
@pytest.mark.parametrize("spread", [1, 3])
def test_a_path_of_a_tree_is_the_chain_of_its_nodes(
    root: int, spread: int, device: torch.device, dtype: torch.dtype
) -> None:
    """Nodes 1, 2, … of the straight tree lie where a chain's rows would."""
    tree, chain = trees([root], [0, 1, 2, 3, 4]), chains([(root, root + 6)])
    world = World(tree, device, dtype, Heads(6, 2), d=16)
    as_chain = World(chain, device, dtype, Heads(6, 2), d=16)
    assert torch.equal(tree.page_table, chain.page_table)
    assert torch.equal(world.attend(tile=Tile(4, 16, spread)), as_chain.attend())


def test_padding_rows_see_nothing_and_are_zero(device: torch.device, dtype: torch.dtype) -> None:
    world = World(LAUNCHES["chunks and single rows"], device, dtype, Heads(6, 2), d=16)
    whole = world.attend()
    last = world.rows.last.clone()
    last[-1] = -1
    world.rows = world.rows._replace(last=last)
    padded = world.attend()
    assert torch.equal(padded[:-1], whole[:-1])
    assert not padded[-1].any()


@pytest.mark.parametrize("window", [None, 200])
def test_programs_share_the_segments_of_a_row(window: int | None, device: torch.device) -> None:
    """Longer ones too, from position 2,048 on; the last program to arrive leaves no trace."""
    rows = chains([(2250, 2252), (0, 2), (300, 301)])
    world = World(rows, device, torch.float16, Heads(1, 1), d=16)
    whole = world.attend(window=window)
    assert world.error(whole, window) < TOLERANCE[torch.float16]
    for count, spread in ((1, 2), (3, 40)):
        for _ in range(2):
            found = world.attend(window=window, tile=Tile(count, 16, spread))
            assert torch.equal(found, whole), (count, spread)


def test_what_may_be_read_early_makes_no_difference(device: torch.device) -> None:
    """Keys below the base before the wait, all behind it, and some of a block either way."""
    rows = chains([(130, 131), (60, 69), (2300, 2303)])
    world = World(rows, device, torch.float16, Heads(2, 1), d=16)
    whole = world.attend()
    for settled in (True, False):
        world.rows = world.rows._replace(settled=settled)
        assert torch.equal(world.attend(tile=Tile(2, 16, 5)), whole), settled


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs the interpreter, to stop at the wait")
@pytest.mark.parametrize(("settled", "written", "holds"), [(1, 0, 1), (0, None, 1), (1, -1, 0)])
def test_before_the_wait_only_settled_keys_are_read(
    settled: bool, written: int | None, holds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What earlier kernels may still write is NaN until then: from the base on, or, where nothing
    is settled, everything. Were one settled key missing, it would show.
    """
    world = World(
        chains([(130, 133), (60, 69), (200, 205)]),
        torch.device("cpu"),
        torch.float16,
        Heads(2, 1),
        16,
    )
    whole, rows = world.attend(), world.rows._replace(settled=settled)
    pools_ = (world.keys, world.values)
    after, before = ([pool.clone() for pool in pools_] for _ in range(2))
    for row in range(len(rows.last)):
        sequence = int(rows.sequences[row])
        first = 0 if written is None else int(rows.base[sequence]) + written
        at = torch.arange(first, int(rows.last[row]) + 1)
        for pool in before:
            pool[rows.page_table[sequence, at // PAGE], :, at % PAGE] = float("nan")

    def stop(state: list[Tensor]) -> Callable[..., None]:
        def fill(_overlaps: object) -> None:
            for pool, content in zip(pools_, state, strict=True):
                pool.copy_(content)

        return fill

    names = spread_attention_kernel.fn.__globals__
    monkeypatch.setitem(names, "release", stop(before))
    monkeypatch.setitem(names, "wait", stop(after))
    world.rows = rows
    assert torch.equal(world.attend(tile=Tile(2, 16, 5)), whole) == holds


@pytest.mark.parametrize("spread", [1, 4])
def test_padding_rows_of_spread_tiles_are_zero(spread: int, device: torch.device) -> None:
    world = World(
        joined(trees([3, 66], PARENTS), chains([(0, 3)])), device, torch.float16, Heads(3, 1), 16
    )
    whole = world.attend()
    last, tail = world.rows.last.clone(), world.rows.tail
    assert tail is not None
    last[[0, 9, 10, 11, -1]] = -1
    world.rows = world.rows._replace(last=last)
    padded = world.attend(tile=Tile(2, 16, spread))
    assert not padded[last < 0].any()
    assert torch.equal(padded[last >= 0], whole[last >= 0])


def test_sequences_of_many_rows_get_large_tiles_and_trees_small_ones() -> None:
    assert chosen(chains([(9, 10)] * 8)) == Tile(1, 16)
    assert chosen(chains([(9, 13)] * 8)) == Tile(4, 16)
    assert chosen(chains([(0, 100)])) == Tile(16, 64, warps=8)
    assert chosen(chains([(0, 100)]), torch.float32) == Tile(4, 16, warps=8)
    assert chosen(trees([9], [0] * 32)) == Tile(4, 16, warps=2, stages=1)
    assert chosen(trees([9], [0] * 32), d=64) == Tile(4, 16, warps=4, stages=1)


def test_prompts_take_few_warps_where_matrix_units_read_shared_memory() -> None:
    prompt = chains([(0, 100)])
    assert chosen(prompt, capability=(9, 0)) == Tile(16, 64, warps=4, stages=2)
    assert chosen(prompt, capability=(9, 0), d=64) == Tile(16, 64, warps=4)
    assert chosen(prompt, capability=(12, 0)) == chosen(prompt) == Tile(16, 64, warps=8)
    assert chosen(chains([(9, 10)]), capability=(9, 0)) == chosen(chains([(9, 10)]))


def test_tiles_are_spread_where_processors_would_idle() -> None:
    assert chosen(chains([(1000, 1001)]), processors=132).spread == 16  # segments there are
    assert chosen(chains([(9000, 9001)]), processors=132).spread == 33
    assert chosen(chains([(9000, 9001)] * 8), processors=132).spread == 4
    assert chosen(chains([(9000, 9001)] * 32), processors=132).spread == 1
    assert chosen(chains([(9000, 9400)]), processors=132).spread == 1
    assert chosen(trees([9000], [0] * 32), processors=132).spread == 5
    assert chosen(trees([9000], [0] * 32), processors=132, d=64).spread == 2


def chosen(
    rows: Rows,
    dtype: torch.dtype = torch.bfloat16,
    processors: int = 1,
    d: int = 128,
    capability: tuple[int, int] | None = None,
) -> Tile:
    q = torch.empty(len(rows.last), 32, d, dtype=dtype, device="meta")
    return choose(rows, PAGE, Heads(32, 8), q, processors, capability)
