"""SwiGLU's inner product, and that its rows do not depend on each other."""

from __future__ import annotations

import pytest
import torch

from alula.ops.activation import silu_and_mul


def test_it_is_the_gate_times_its_logistic_times_up() -> None:
    gate, up = torch.linspace(-90, 90, 301), torch.linspace(3, -3, 301)
    found = silu_and_mul(torch.cat((gate, up))[None])[0]
    wanted = gate.double() * up.double() / (1 + (-gate.double()).exp())
    assert torch.allclose(found.double(), wanted, rtol=1e-6, atol=1e-36)


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize("width", [80, 333, 1000, 1536, 40001])
def test_rows_beside_it_change_no_bit_of_a_row(threads: int, width: int) -> None:
    """torch cuts large tensors between threads anywhere; the cut must not show."""
    count = 120 if width < 5000 else 6
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 2 * width, generator=generator)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        whole = silu_and_mul(x)
        for rows in range(1, count, 7):
            assert torch.equal(silu_and_mul(x[:rows]), whole[:rows])
            assert torch.equal(silu_and_mul(x[rows:]), whole[rows:])
    finally:
        torch.set_num_threads(before)


def test_it_keeps_the_dtype() -> None:
    assert silu_and_mul(torch.ones(2, 8, dtype=torch.bfloat16)).dtype == torch.bfloat16
