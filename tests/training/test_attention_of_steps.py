"""What unrolled steps see of each other, against scores written out."""

import math

import pytest
import torch

from alula.training import attention
from alula.training.attention import Memory

BATCH, LENGTH, HEADS, KV, D, STEPS = 3, 11, 6, 2, 8, 4


def _steps() -> list[list[torch.Tensor]]:
    dice = torch.Generator().manual_seed(4)
    sizes = [HEADS, KV, KV]
    rows = [
        torch.randn(BATCH, LENGTH, sum(sizes), D, generator=dice, dtype=torch.float64)
        for _ in range(STEPS)
    ]
    return [list(part.requires_grad_().split(sizes, dim=2)) for part in rows]


def _written_out(steps: list[list[torch.Tensor]]) -> torch.Tensor:
    """Every query's scores in full: the first step's keys up to its own, one of each later step."""
    mixed = []
    future = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    wide = [
        (q.transpose(1, 2), *(x.transpose(1, 2).repeat_interleave(HEADS // KV, 1) for x in kv))
        for q, *kv in steps
    ]
    for number, (q, _, _) in enumerate(wide):
        scores = [(q @ wide[0][1].mT).masked_fill(future, -math.inf)]
        scores += [(q * k).sum(-1, keepdim=True) for _, k, _ in wide[1 : number + 1]]
        weights = (torch.cat(scores, -1) * D**-0.5).softmax(-1)
        out = weights[..., :LENGTH] @ wide[0][2]
        for other, (_, _, v) in enumerate(wide[1 : number + 1]):
            out = out + weights[..., LENGTH + other, None] * v
        mixed.append(out.transpose(1, 2))
    return torch.stack(mixed)


def _remembered(steps: list[list[torch.Tensor]]) -> torch.Tensor:
    memory = Memory()
    return torch.stack([memory.attend(*step) for step in steps])


@pytest.mark.parametrize("flash", [True, False])
def test_values_and_gradients_equal_those_of_scores_written_out(flash, monkeypatch):
    if not flash:
        monkeypatch.setattr(attention, "_has_flash", lambda _: False)
    steps, same = _steps(), _steps()
    found, expected = _remembered(steps), _written_out(same)
    torch.testing.assert_close(found, expected)
    weights = torch.randn(
        found.shape, dtype=found.dtype, generator=torch.Generator().manual_seed(7)
    )
    leaves = [part for step in steps for part in step]
    others = [part for step in same for part in step]
    (found * weights).sum().backward(inputs=leaves)
    (expected * weights).sum().backward(inputs=others)
    for leaf, other in zip(leaves, others, strict=True):
        assert leaf.grad is not None and leaf.grad.abs().max() > 0
        torch.testing.assert_close(leaf.grad, other.grad)
