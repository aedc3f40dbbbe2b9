"""Norms, rotation, stores and activation equal the reference, and each row stands alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from alula.ops import reference
from alula.ops import triton as forms
from alula.ops.attention import Heads
from alula.ops.rope import Rotation, rotary_table
from alula.ops.store import HeadNorms, places

TOLERANCE = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
ROWS, PAGE = 11, 4


def random(*shape: int, device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(device, dtype)


def error(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected.double()).abs().max() / expected.double().abs().max())


@pytest.mark.parametrize("width", [48, 576, 1000])
def test_rms_norm(width: int, device: torch.device, dtype: torch.dtype) -> None:
    x, change = (random(ROWS + i, width, device=device, dtype=dtype)[:ROWS] for i in range(2))
    weight = random(width, device=device)
    normed = forms.rms_norm(x, weight, 1e-5)
    assert error(normed, reference.rms_norm(x, weight, 1e-5)) < TOLERANCE[dtype]
    total, both = forms.add_rms_norm(x, change, weight, 1e-5)
    assert torch.equal(total, x + change)
    assert torch.equal(both, forms.rms_norm(total, weight, 1e-5))
    alone = [forms.add_rms_norm(x[i : i + 1], change[i : i + 1], weight, 1e-5) for i in range(ROWS)]
    assert torch.equal(torch.cat([part[1] for part in alone]), both)


def test_rms_norm_of_a_slice(device: torch.device, dtype: torch.dtype) -> None:
    x = random(ROWS, 96, device=device, dtype=dtype)
    weight = random(48, device=device)
    part = x[:, 48:]
    assert torch.equal(
        forms.rms_norm(part, weight, 1e-5), forms.rms_norm(part.contiguous(), weight, 1e-5)
    )


@pytest.mark.parametrize("width", [80, 1536])
def test_silu_and_mul(width: int, device: torch.device, dtype: torch.dtype) -> None:
    gate_up = random(ROWS, 2 * width, device=device, dtype=dtype)
    found = forms.silu_and_mul(gate_up)
    assert error(found, reference.silu_and_mul(gate_up.float())) < TOLERANCE[dtype]
    alone = torch.cat([forms.silu_and_mul(gate_up[i : i + 1]) for i in range(ROWS)])
    assert torch.equal(alone, found)


def rotation(d: int, device: torch.device) -> Rotation:
    frequencies = 10000.0 ** (-torch.arange(0, d, 2) / d)
    return rotary_table(frequencies.to(device), torch.arange(100, 100 + ROWS, device=device))


@pytest.mark.parametrize("d", [8, 24, 64])
def test_rotate(d: int, device: torch.device, dtype: torch.dtype) -> None:
    x = random(ROWS, 9, d, device=device, dtype=dtype)
    found = forms.rotate(x, rotation(d, device))
    assert found.dtype == dtype
    assert error(found, reference.rotate(x, rotation(d, device))) < TOLERANCE[dtype]


@pytest.mark.parametrize("heads", [Heads(6, 2), Heads(9, 3), Heads(0, 2)])
@pytest.mark.parametrize("with_norms", [False, True])
def test_rotate_and_store(
    heads: Heads, with_norms: bool, device: torch.device, dtype: torch.dtype
) -> None:
    d = 24
    projected = random(ROWS, heads.query + 2 * heads.kv, d, device=device, dtype=dtype)
    norms = HeadNorms(random(d, device=device), random(d + 1, device=device)[:d], 1e-5)
    slots = torch.randperm(40, generator=torch.Generator().manual_seed(0))[:ROWS].to(device)
    at = places(slots, PAGE)
    made = []
    for form in (forms, reference):
        pools = [torch.full((10, heads.kv, PAGE, d), 7.0, device=device).to(dtype) for _ in "kv"]
        queries = form.rotate_and_store(
            projected, heads, rotation(d, device), *pools, at, norms if with_norms else None
        )
        made.append((queries, *pools))
    for found, expected in zip(*made, strict=True):
        assert found.shape == expected.shape
        if expected.numel():
            assert error(found, expected) < TOLERANCE[dtype]
    assert torch.equal(made[0][2], made[1][2])  # values are copied


def test_padding_rows_store_nothing(device: torch.device, dtype: torch.dtype) -> None:
    projected = random(ROWS, 10, 8, device=device, dtype=dtype)
    at = places(torch.full((ROWS,), -1, device=device), PAGE)
    pools = [torch.zeros(10, 2, PAGE, 8, device=device, dtype=dtype) for _ in "kv"]
    forms.rotate_and_store(projected, Heads(6, 2), rotation(8, device), *pools, at)
    assert not any(pool.any() for pool in pools)
