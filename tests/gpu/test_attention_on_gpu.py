"""On this GPU: attention over long contexts is right, and exact whatever the tile."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from alula.ops.attention import Heads
from alula.ops.rows import Rows
from alula.ops.triton.attention import Tile, plan
from paged import PAGE, chains, dense, joined, only, pools, to, trees

pytestmark = pytest.mark.gpu
HEADS = {"smollm2": (Heads(9, 3), 64), "8b": (Heads(32, 8), 128), "one": (Heads(8, 1), 128)}
PARENTS = [0, 0, 1, 1, 2, 4, 6, 6, 8, 9, 10, 3]
LAUNCHES = {
    "a prompt": chains([(0, 300)]),
    "a chunk": chains([(700, 760)]),
    "many lengths": chains([(n, n + 1 + n % 4) for n in range(0, 1200, 61)]),
    "trees and chunks": joined(trees([3, 500, 64], PARENTS), chains([(0, 40), (600, 620)])),
    "far behind": chains([(9000, 9002), (5, 6), (4095, 4097)]),
}
SCALE = 0.1


def world(rows: Rows, kind: str, device: torch.device):
    heads, d = HEADS[kind]
    rows = to(rows, device)
    keys, values = pools(rows, heads.kv, d, torch.bfloat16)
    q = torch.randn(len(rows.slots), heads.query, d, device=device, dtype=torch.bfloat16)
    return rows, heads, q, keys, values


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("launch", LAUNCHES)
def test_it_is_the_dense_definition(launch: str, kind: str, device: torch.device) -> None:
    rows, heads, q, keys, values = world(LAUNCHES[launch], kind, device)
    found = plan(rows, PAGE, heads).attend(q, keys, values, SCALE)
    expected = dense(rows, q, keys, values, SCALE)
    assert float((found.double() - expected).norm() / expected.norm()) < 1e-2


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("launch", LAUNCHES)
@pytest.mark.parametrize(("lanes", "warps"), [(16, 4), (16, 8), (32, 4), (64, 8), (128, 8)])
def test_the_tile_does_not_matter(
    launch: str, kind: str, lanes: int, warps: int, device: torch.device
) -> None:
    rows, heads, q, keys, values = world(LAUNCHES[launch], kind, device)
    made, group = plan(rows, PAGE, heads), heads.query // heads.kv
    expected = made.attend_in(Tile(1, 16), q, keys, values, SCALE)
    for count, spread in product({1, 2, lanes // group}, (1, 2, 9, 50)):
        found = made.attend_in(Tile(count, lanes, spread, warps), q, keys, values, SCALE)
        assert torch.equal(found, expected), (count, spread)


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("launch", LAUNCHES)
def test_a_row_alone_is_the_same(launch: str, kind: str, device: torch.device) -> None:
    rows, heads, q, keys, values = world(LAUNCHES[launch], kind, device)
    whole = plan(rows, PAGE, heads).attend(q, keys, values, SCALE)
    for row in range(0, len(q), 7):
        chosen = torch.tensor([row], device=device)
        alone = plan(only(rows, chosen), PAGE, heads).attend(q[chosen], keys, values, SCALE)
        assert torch.equal(alone[0], whole[row]), row


@pytest.mark.parametrize("kind", HEADS)
def test_a_captured_launch_serves_at_other_lengths(kind: str, device: torch.device) -> None:
    """Again and again, with programs that have nothing to do and others that then have."""
    rows, heads, q, keys, values = world(chains([(1500, 1504), (700, 704)]), kind, device)
    made, tile = plan(rows, PAGE, heads), Tile(16 // (heads.query // heads.kv), 16, 8)
    made.attend_in(tile, q, keys, values, SCALE)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = [made.attend_in(tile, q, keys, values, SCALE) for _ in range(3)]
    keys.nan_to_num_()
    values.nan_to_num_()
    whole = rows.last.clone()
    for lengths in (1, 2, 100, 700, 3, 700):
        rows.last.copy_(whole - 700 + lengths)
        graph.replay()
        expected = made.attend_in(Tile(1, 16), q, keys, values, SCALE)
        assert all(torch.equal(one, expected) for one in found), lengths
