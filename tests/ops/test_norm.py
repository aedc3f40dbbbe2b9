"""RMSNorm in fp32, row by row."""

from __future__ import annotations

import torch

from alula.ops.norm import add_rms_norm, rms_norm


def test_it_divides_by_the_root_mean_square() -> None:
    x, weight = torch.randn(5, 3, 33), torch.randn(33)
    wide = x.double()
    wanted = wide / ((wide**2).mean(-1, keepdim=True) + 1e-3).sqrt() * weight.double()
    assert torch.allclose(rms_norm(x, weight, 1e-3).double(), wanted, rtol=1e-5, atol=1e-6)


def test_narrow_rows_are_normed_in_fp32_and_returned_narrow() -> None:
    """Squares of 300 overflow float16, and sums of 4096 ones end at 256 in bfloat16."""
    for dtype in (torch.float16, torch.bfloat16):
        x = torch.full((2, 4096), 300.0, dtype=dtype)
        found = rms_norm(x, torch.ones(4096), 1e-6)
        assert found.dtype == dtype
        assert torch.equal(found, torch.ones_like(x))


def test_its_input_is_left_as_it_was() -> None:
    x = torch.randn(4, 16)
    before = x.clone()
    rms_norm(x, torch.randn(16), 1e-5)
    assert torch.equal(x, before)


def test_the_addition_before_it_gives_the_same_bits() -> None:
    x, change, weight = torch.randn(4, 16), torch.randn(4, 16), torch.randn(16)
    before = x.clone()
    total, normed = add_rms_norm(x, change, weight, 1e-5)
    assert torch.equal(total, before + change)
    assert torch.equal(normed, rms_norm(total, weight, 1e-5))
    assert torch.equal(x, before)


def test_rows_beside_it_change_no_bit_of_a_row() -> None:
    for width in (48, 333, 1536):
        x, weight = torch.randn(80, width), torch.randn(width)
        whole = rms_norm(x, weight, 1e-5)
        for rows in range(1, 80):
            assert torch.equal(rms_norm(x[:rows], weight, 1e-5), whole[:rows])
            assert torch.equal(rms_norm(x[-rows:], weight, 1e-5), whole[-rows:])
