"""On this GPU: unrolled steps attend by flash attention as scores written out would have it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from alula.ops import reference
from alula.training import attention
from alula.training.attention import Memory

pytestmark = pytest.mark.gpu
STEPS = 4


def _attended(rows: list[Tensor], asked: list[Tensor], sizes: list[int]) -> list[list[Tensor]]:
    """What each step mixes, and the gradients of its queries, keys and values."""
    leaves, memory = [x.clone().requires_grad_() for x in rows], Memory()
    mixed = [memory.attend(*x.split(sizes, 2)) for x in leaves]
    torch.autograd.backward(mixed, asked)
    found = []
    for out, leaf in zip(mixed, leaves, strict=True):
        assert leaf.grad is not None
        found.append([out.detach(), *leaf.grad.split(sizes, 2)])
    return found


@pytest.mark.parametrize(
    ("heads", "kv", "d", "length"), [(9, 3, 64, 333), (32, 8, 128, 130), (4, 4, 96, 64)]
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_flash_attention_and_keys_of_their_own(
    heads: int,
    kv: int,
    d: int,
    length: int,
    dtype: torch.dtype,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    sizes = [heads, kv, kv]
    shape = (2, length, sum(sizes), d)
    rows = [torch.randn(shape, device=device).to(dtype) for _ in range(STEPS)]
    asked = [torch.randn(2, length, heads, d, device=device).to(dtype) for _ in range(STEPS)]
    found = _attended(rows, asked, sizes)
    monkeypatch.setattr(attention, "kernels_for", lambda _: reference)
    wide = [x.double() for x in rows]
    expected = _attended(wide, [x.double() for x in asked], sizes)
    for step, written_out in zip(found, expected, strict=True):
        for part, other in zip(step, written_out, strict=True):
            assert float((part.double() - other).norm() / other.norm()) < 1.5e-2
