"""What training asks of the kernels equals the reference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from alula.ops import reference
from alula.ops import triton as forms

TOLERANCE = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
ROWS, ENTRIES = 7, 11


def random(*shape: int, device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(device, dtype)


def error(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected.double()).abs().max() / expected.double().abs().max())


@pytest.mark.parametrize("vocabulary", [24, 2048, 5000])
def test_cross_entropy(vocabulary: int, device: torch.device, dtype: torch.dtype) -> None:
    logits = 5 * random(ROWS, vocabulary, device=device, dtype=dtype)
    logits[1, vocabulary - 2 :] = 40.0  # the largest comes last, twice
    logits[2, 0] = 40.0
    wanted = (3 * random(ENTRIES, vocabulary, device=device)).softmax(-1)
    entries = torch.randperm(ENTRIES, generator=torch.Generator().manual_seed(1))[:ROWS].to(device)
    found = forms.cross_entropy(logits, wanted, entries)
    expected = -(wanted[entries] * logits.double().log_softmax(-1)).sum(-1)
    assert error(found.losses, expected) < 1e-5
    assert error(found.total, logits.double().logsumexp(-1)) < 1e-5
    assert torch.equal(found.best, reference.cross_entropy(logits, wanted, entries).best)
    assert found.best[1:3].tolist() == [vocabulary - 2, 0]


@pytest.mark.parametrize("vocabulary", [24, 5000])
def test_gradient_of_cross_entropy(
    vocabulary: int, device: torch.device, dtype: torch.dtype
) -> None:
    logits = 2 * random(ROWS, vocabulary, device=device, dtype=dtype)
    wanted = (3 * random(ENTRIES, vocabulary, device=device)).softmax(-1).half()
    entries = torch.arange(ENTRIES, device=device)[-ROWS:]
    total, factors = logits.float().logsumexp(-1), random(ROWS, device=device)
    factors[3] = 0.0
    leaf = logits.double().requires_grad_()
    loss = -(wanted[entries].double() * leaf.log_softmax(-1)).sum(-1)
    (loss * factors.double()).sum().backward()
    assert leaf.grad is not None
    for form in (forms, reference):
        found = form.cross_entropy_gradient(logits, wanted, entries, total, factors)
        assert found.dtype == dtype and not found[3].any()
        assert error(found, leaf.grad) < max(TOLERANCE[dtype], 1e-3)  # of wanted in 16 bits


def test_no_rows_have_no_loss(device: torch.device) -> None:
    logits, wanted = random(0, 24, device=device), random(3, 24, device=device)
    nothing = torch.empty(0, dtype=torch.int64, device=device)
    found = forms.cross_entropy(logits, wanted, nothing)
    assert len(found.losses) == len(found.best) == 0
    gradient = forms.cross_entropy_gradient(logits, wanted, nothing, found.total, found.losses)
    assert gradient.shape == (0, 24)
