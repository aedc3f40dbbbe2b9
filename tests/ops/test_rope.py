"""Rotation as a product of complex numbers, which is what it is."""

from __future__ import annotations

import pytest
import torch

from alula.ops.rope import rotary_table, rotate

FREQUENCIES = 10000.0 ** -(torch.arange(16) / 16)
AT = torch.tensor([0, 1, 2, 77, 8191])


def rotated(x: torch.Tensor, positions: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    return rotate(x, rotary_table(FREQUENCIES, positions, scale))


@pytest.mark.parametrize("scale", [1.0, 1.2])
def test_it_turns_each_pair_by_position_times_frequency(scale: float) -> None:
    x = torch.randn(len(AT), 3, 32)
    pairs = torch.complex(x[..., :16].double(), x[..., 16:].double())
    angles = AT[:, None].double() * FREQUENCIES.double()
    turned = pairs * torch.polar(torch.full_like(angles, scale), angles)[:, None]
    wanted = torch.cat((turned.real, turned.imag), dim=-1)
    assert torch.allclose(rotated(x, AT, scale).double(), wanted, rtol=1e-3, atol=2e-3)
    assert torch.allclose(rotated(x, AT, scale)[:4].double(), wanted[:4], rtol=1e-5, atol=1e-5)


def test_position_0_is_left_as_it_was() -> None:
    x = torch.randn(1, 2, 32)
    assert torch.equal(rotated(x, AT[:1]), x)


def test_products_of_query_and_key_depend_on_their_distance_alone() -> None:
    q, k = torch.randn(1, 1, 32), torch.randn(1, 1, 32)

    def product(i: int, j: int) -> torch.Tensor:
        return (rotated(q, torch.tensor([i])) * rotated(k, torch.tensor([j]))).sum()

    assert torch.allclose(product(9, 4), product(105, 100), atol=1e-4)
    assert not torch.allclose(product(9, 4), product(9, 5), atol=1e-4)


def test_a_row_depends_on_its_own_position_alone() -> None:
    x = torch.randn(60, 3, 32)
    at = torch.randint(0, 8192, (60,))
    whole = rotated(x, at)
    for row in range(60):
        assert torch.equal(rotated(x[row : row + 1], at[row : row + 1])[0], whole[row])


def test_it_keeps_the_dtype() -> None:
    x = torch.randn(5, 1, 32, dtype=torch.bfloat16)
    found = rotated(x, AT)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, rotated(x.float(), AT).bfloat16())
