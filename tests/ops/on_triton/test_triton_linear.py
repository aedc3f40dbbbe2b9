"""The linear kernel computes the product, and a row's bits do not depend on the rows beside it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from alula.ops.linear import DenseWeight, linear, linear_fp32
from alula.ops.triton import linear as module
from alula.ops.triton.linear import lay_out
from alula.ops.triton.product import releases
from alula.ops.triton.tiles import Tile, choose, distinct, restricted, table

SHAPES = [(64, 64), (40, 48), (130, 200), (33, 129)]
TOLERANCE = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 1e-2}


def weight(shape: tuple[int, int], device: torch.device, dtype: torch.dtype) -> DenseWeight:
    torch.manual_seed(0)
    values, bias = torch.randn(shape), torch.randn(shape[0])
    return DenseWeight(values.to(device, dtype), bias.to(device, dtype))


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", [1, 16, 37])
def test_the_product_is_right(
    shape: tuple[int, int], rows: int, device: torch.device, dtype: torch.dtype
) -> None:
    dense = weight(shape, device, dtype)
    assert dense.bias is not None
    tiled = lay_out(dense)
    x = torch.randn(rows, shape[1], device=device).to(dtype)
    expected = x.double() @ dense.values.double().T + dense.bias.double()
    assert relative_error(linear(x, tiled), expected) < TOLERANCE[dtype]
    assert relative_error(linear_fp32(x, tiled), expected) < 1e-6
    assert relative_error(tiled.multiply_in_any_order(x, dtype), expected) < TOLERANCE[dtype]
    assert linear(x, tiled).dtype == dtype
    assert linear_fp32(x, tiled).dtype == torch.float32


def test_what_is_remembered_of_numbers_of_rows_is_bounded_and_right(device: torch.device) -> None:
    tiled = lay_out(weight((40, 48), device, torch.float32))
    for rows in (*range(1, 300), *range(1, 300)):
        tile = choose(tiled.table, rows)
        programs = -(-rows // tile.rows) * -(-40 // tile.outputs)
        assert tiled.tiling(rows).programs == programs
    assert len(tiled._tilings) <= 64


def test_rows_are_read_where_they_lie(device: torch.device, dtype: torch.dtype) -> None:
    tiled = lay_out(weight((40, 48), device, dtype))
    wide = torch.randn(5, 100, device=device).to(dtype)
    assert torch.equal(linear(wide[:, 30:78], tiled), linear(wide[:, 30:78].contiguous(), tiled))


def test_no_rows_make_no_rows(device: torch.device, dtype: torch.dtype) -> None:
    tiled = lay_out(weight((40, 48), device, dtype))
    assert linear(torch.empty(0, 48, device=device, dtype=dtype), tiled).shape == (0, 40)


def test_a_row_is_the_same_beside_any_number_of_rows(
    device: torch.device, dtype: torch.dtype
) -> None:
    tiled = lay_out(weight((130, 200), device, dtype))
    x = torch.randn(33, 200, device=device).to(dtype)
    whole = linear(x, tiled)
    for rows in (1, 2, 5, 15, 16, 17, 32):
        assert torch.equal(linear(x[:rows], tiled), whole[:rows])
        assert torch.equal(linear(x[-rows:], tiled), whole[-rows:])


@pytest.mark.parametrize("inner", [256, 320, 200])
def test_what_is_fetched_before_the_wait_changes_no_bit(
    inner: int, device: torch.device, dtype: torch.dtype
) -> None:
    tiled = lay_out(weight((40, inner), device, dtype))
    x = torch.randn(17, inner, device=device).to(dtype)
    tile = Tile(16, 32, 64, 4, 3)
    plain = tiled.multiply_in(tile, x, torch.float32)
    for ahead in (1, 2, 4, 9):
        found = tiled.multiply_in(tile._replace(ahead=ahead), x, torch.float32)
        assert torch.equal(found, plain), ahead


def test_when_the_next_kernel_may_begin_follows_from_the_weight_unless_its_tile_says() -> None:
    small, large = (torch.empty(rows, 1024, device="meta") for rows in (2048, 2049))
    tile = Tile(16, 32, 64, 4, 3)
    assert [releases(weight, tile) for weight in (small, large)] == ["at once", "at end"]
    for says, when in ((1, "at input"), (2, "at end")):
        told = tile._replace(release=says)
        assert [releases(weight, told) for weight in (small, large)] == [when] * 2


def test_a_tile_that_adds_in_another_order_is_not_used(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    from alula.ops.triton import linear as module

    shape = (4096, 48)
    processors, capability = module.machine(device)
    known = table(*shape, torch.float16, capability, processors)
    tiles = distinct(known)

    class Wrong(module.TiledWeight):
        def multiply_in(self, tile: Tile, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
            y = super().multiply_in(tiles[0], x, dtype)
            return y.nextafter(y + 1) if tile == tiles[1] else y

    monkeypatch.setattr(module, "TiledWeight", Wrong)
    laid_out = lay_out(weight(shape, device, torch.float16))
    assert laid_out.table == restricted(known, tiles[2:])
    assert distinct(laid_out.table) == (tiles[0], *tiles[2:])


def test_a_launch_is_compiled_ahead_as_it_would_be_made(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiled = lay_out(weight((40, 48), device, torch.float16))
    tile, asked = distinct(tiled.table)[0], []

    def warmup(*tensors: torch.Tensor, **named: object) -> None:
        asked.append((tensors[0].shape, tensors[0].device.type, named))

    monkeypatch.setattr(module, "linear_kernel", SimpleNamespace(warmup=warmup))
    tiled.compile(tile, 3, torch.float32)
    programs, constants = tiled.tiling(3, tile)
    named = {"grid": (programs,), "has_squares": False, **constants}
    assert asked == [((3, 48), "meta", named)]
