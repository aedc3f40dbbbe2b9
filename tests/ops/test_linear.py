"""Linear layers: right, and a row's sum the same whatever rows are beside it."""

from __future__ import annotations

import pytest
import torch

from alula.ops.linear import (
    DenseWeight,
    PackedWeight,
    lay_out,
    linear,
    linear_fp32,
    row_invariant,
)

DTYPES = [torch.float32, torch.bfloat16]
SIZES = [(48, 48), (33, 100), (960, 576), (576, 1536), (64, 4097), (128, 8192), (7, 5)]


def weight(out: int, inner: int, dtype: torch.dtype, *, bias: bool = False) -> DenseWeight:
    generator = torch.Generator().manual_seed(out * inner)
    values = torch.randn(out, inner, generator=generator).to(dtype)
    return DenseWeight(values, torch.randn(out, generator=generator).to(dtype) if bias else None)


def inputs(rows: int, inner: int) -> torch.Tensor:
    return torch.randn(rows, inner, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 3, 4, 17])
def test_packed_and_dense_weights_give_the_product(
    dtype: torch.dtype, bias: bool, rows: int
) -> None:
    dense, x = weight(33, 100, dtype, bias=bias), inputs(rows, 100)
    wanted = x.to(dtype).double() @ dense.values.double().T
    if dense.bias is not None:
        wanted += dense.bias.double()
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    for made in (dense, lay_out(dense)):
        found = linear(x, made)
        assert found.dtype == dtype
        assert found.shape == (rows, 33)
        assert torch.allclose(found.double(), wanted, rtol=tolerance, atol=10 * tolerance)


def test_what_a_packed_weight_says_of_itself() -> None:
    dense = weight(33, 100, torch.bfloat16, bias=True)
    packed = lay_out(dense)
    assert isinstance(packed, PackedWeight)
    assert (packed.layout, dense.layout) == ("packed", "plain")
    assert packed.shape == dense.shape == (33, 100)
    assert packed.dtype == torch.bfloat16
    assert packed._bias is dense.bias


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("out", "inner"), SIZES)
def test_packed_rows_are_bit_equal_at_every_number_of_rows(
    dtype: torch.dtype, out: int, inner: int
) -> None:
    packed, x = lay_out(weight(out, inner, dtype, bias=True)), inputs(70, inner)
    whole = linear(x, packed)
    for rows in range(1, 71):
        assert torch.equal(linear(x[:rows], packed), whole[:rows])
    for rows in range(1, 70, 6):
        assert torch.equal(linear(x[-rows:], packed), whole[-rows:])
    assert row_invariant(packed)


def test_the_probe_names_a_weight_whose_rows_depend_on_their_number() -> None:
    class Depends(PackedWeight):
        def multiply(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
            return super().multiply(x, dtype) + (1e-6 if len(x) == 9 else 0.0)

    packed = Depends(weight(33, 100, torch.float32))
    assert not row_invariant(packed)
    packed.probed_rows = (1, 2, 8)
    assert row_invariant(packed)


def test_fewer_than_four_rows_are_computed_as_four() -> None:
    """Else a single row's sum over a large inner size runs in another order."""
    packed, x = lay_out(weight(64, 4096, torch.float32)), inputs(4, 4096)
    zeros = torch.zeros(3, 4096)
    assert torch.equal(linear(x[:1], packed), linear(torch.cat((x[:1], zeros)), packed)[:1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_logits_come_in_fp32(dtype: torch.dtype) -> None:
    dense, x = weight(40, 64, dtype, bias=True), inputs(5, 64)
    for made in (dense, lay_out(dense)):
        found = linear_fp32(x, made)
        assert found.dtype == torch.float32
        assert torch.equal(found, linear(x, made).float())


def test_inputs_of_another_dtype_take_the_weights() -> None:
    dense, x = weight(8, 16, torch.bfloat16), inputs(3, 16)
    assert torch.equal(linear(x, dense), linear(x.bfloat16(), dense))
    assert torch.equal(linear(x, lay_out(dense)), linear(x.bfloat16(), lay_out(dense)))
