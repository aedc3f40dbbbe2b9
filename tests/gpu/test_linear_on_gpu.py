"""On this GPU: the linear of real shapes is right, and exact in the number of rows."""

from __future__ import annotations

import pytest
import torch

from alula.ops.linear import DenseWeight, linear, linear_fp32
from alula.ops.triton.linear import TiledWeight, lay_out, machine
from alula.ops.triton.tiles import table

pytestmark = pytest.mark.gpu
SHAPES = {
    "smollm2 qkv": (960, 576),
    "smollm2 out": (576, 576),
    "smollm2 gate and up": (3072, 576),
    "smollm2 down": (576, 1536),
    "smollm2 head": (49152, 576),
    "8b qkv": (6144, 4096),
    "8b out": (4096, 4096),
    "8b gate and up": (28672, 4096),
    "8b down": (4096, 14336),
    "8b head": (128256, 4096),
    "odd": (1001, 1000),
}


def weight(name: str, device: torch.device, dtype: torch.dtype = torch.bfloat16) -> DenseWeight:
    torch.manual_seed(0)
    outputs, inner = SHAPES[name]
    values = torch.randn(outputs, inner, device=device) / inner**0.5
    return DenseWeight(values.to(dtype), torch.randn(outputs, device=device).to(dtype))


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_all_tiles_agree(name: str, dtype: torch.dtype, device: torch.device) -> None:
    tiled = lay_out(weight(name, device, dtype))
    processors, capability = machine(device)
    assert tiled.table == table(*tiled.shape, dtype, capability, processors)


@pytest.mark.parametrize("name", SHAPES)
def test_a_row_is_the_same_beside_any_number_of_rows(name: str, device: torch.device) -> None:
    tiled = lay_out(weight(name, device))
    x = torch.randn(512, tiled.shape[1], device=device, dtype=torch.bfloat16)
    whole = linear(x, tiled)
    for rows in [*range(1, 70), 96, 127, 128, 129, 200, 255, 256, 257, 300, 384, 511]:
        assert torch.equal(linear(x[:rows], tiled), whole[:rows]), rows
        assert torch.equal(linear(x[-rows:], tiled), whole[-rows:]), rows


@pytest.mark.parametrize("name", SHAPES)
def test_the_product_is_right(name: str, device: torch.device) -> None:
    dense = weight(name, device)
    assert dense.bias is not None
    tiled = lay_out(dense)
    for rows in (1, 40, 300):
        x = torch.randn(rows, tiled.shape[1], device=device, dtype=torch.bfloat16)
        expected = x.double() @ dense.values.double().T + dense.bias.double()
        for found, most in ((linear_fp32(x, tiled), 2e-5), (linear(x, tiled), 1e-2)):
            assert float((found.double() - expected).norm() / expected.norm()) < most


def test_a_weight_in_fp32_is_multiplied_in_fp32(device: torch.device) -> None:
    tiled = lay_out(weight("smollm2 out", device, torch.float32))
    assert isinstance(tiled, TiledWeight)
    dense = weight("smollm2 out", device, torch.float32)
    x = torch.randn(100, 576, device=device)
    expected = x.double() @ dense.values.double().T + dense.bias.double()  # type: ignore[union-attr]
    assert float((linear(x, tiled).double() - expected).norm() / expected.norm()) < 1e-6
