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


@pytest.mark.parametrize(("vocabulary", "count"), [(40, 24), (5000, 2500)])
def test_restrict(vocabulary: int, count: int, device: torch.device) -> None:
    logits = 5 * random(ROWS, vocabulary, device=device)
    logits[1, vocabulary - 2 :] = 60.0
    dice = torch.Generator().manual_seed(2)
    ids = torch.randperm(vocabulary, generator=dice)[:count].sort().values.to(device)
    found = forms.restrict(logits, ids, torch.float16)
    expected = reference.restrict(logits, ids, torch.float32)
    assert torch.equal(found.best, logits.argmax(-1)) and torch.equal(expected.best, found.best)
    assert int(found.best[1]) == vocabulary - 2
    assert error(found.probabilities, expected.probabilities) < 1e-3
    assert error(forms.restrict(logits, ids, torch.float32)[1], expected.probabilities) < 1e-5


def test_no_rows_have_no_loss(device: torch.device) -> None:
    logits, wanted = random(0, 24, device=device), random(3, 24, device=device)
    nothing = torch.empty(0, dtype=torch.int64, device=device)
    found = forms.cross_entropy(logits, wanted, nothing)
    assert len(found.losses) == len(found.best) == 0
    gradient = forms.cross_entropy_gradient(logits, wanted, nothing, found.total, found.losses)
    assert gradient.shape == (0, 24)


@pytest.mark.parametrize("width", [80, 1536])
def test_gradient_of_silu_and_mul(width: int, device: torch.device, dtype: torch.dtype) -> None:
    gate_up = random(ROWS, 2 * width, device=device, dtype=dtype)
    gradient = random(ROWS, width, device=device, dtype=dtype)
    leaf = gate_up.double().requires_grad_()
    gate, up = leaf.chunk(2, dim=-1)
    torch.nn.functional.silu(gate).mul(up).backward(gradient.double())
    assert leaf.grad is not None
    assert error(forms.silu_and_mul_gradient(gate_up, gradient), leaf.grad) < TOLERANCE[dtype]
    in_fp32 = reference.silu_and_mul_gradient(gate_up.float(), gradient.float())
    assert error(in_fp32, leaf.grad) < TOLERANCE[dtype]


@pytest.mark.parametrize(("heads", "kv", "d"), [(9, 3, 64), (4, 4, 24), (6, 2, 96)])
def test_a_key_of_its_own(
    heads: int, kv: int, d: int, device: torch.device, dtype: torch.dtype
) -> None:
    """Attention over two keys is one over the first with the second added."""
    batch, length, scale = 3, 13, d**-0.5
    rows = random(batch, length, heads + 4 * kv, d, device=device, dtype=dtype)
    q, *own = rows.split([heads, kv, kv, kv, kv], dim=2)
    gradient = random(batch, length, heads, d, device=device, dtype=dtype)
    wide = [part.double().requires_grad_() for part in (q, *own)]
    by_head = [part.repeat_interleave(heads // kv, 2) for part in wide[1:]]
    scores = torch.stack([(wide[0] * key).sum(-1) * scale for key in by_head[:2]])
    mixed = (scores.softmax(0)[..., None] * torch.stack(by_head[2:])).sum(0)
    mixed.backward(gradient.double())
    for form, bound in ((forms, TOLERANCE[dtype]), (reference, max(TOLERANCE[dtype], 4e-3))):
        out = by_head[2].detach().to(dtype).contiguous()
        lse = scores[0].detach().transpose(1, 2).float().contiguous()
        form.attend_own(q, own[1], own[3], out, lse, scale)
        assert error(out, mixed.detach()) < bound
        assert error(lse, scores.logsumexp(0).detach().transpose(1, 2)) < bound
        q_gradient = torch.zeros_like(out)
        for number in (0, 1):
            k, v = own[number], own[2 + number]
            found = form.attend_own_gradient(gradient, q, k, v, out, lse, scale, q_gradient)
            assert error(found[0], wide[1 + number].grad) < 3 * bound
            assert error(found[1], wide[3 + number].grad) < 3 * bound
        assert error(q_gradient, wide[0].grad) < 3 * bound
