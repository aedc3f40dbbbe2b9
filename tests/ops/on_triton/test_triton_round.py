"""Walk and commit equal their references."""

from __future__ import annotations

import random

import pytest
import torch

from alula.ops import reference
from alula.ops import triton as forms


def tree(nodes: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Drafts of 6 sequences out of 2 tokens, so that siblings agree; and the target's choices."""
    draw = random.Random(seed)
    used = [draw.randint(0, nodes) for _ in range(6)]
    tokens = [[draw.randint(0, 1) if i < n else -1 for i in range(nodes)] for n in used]
    parents = [[draw.randint(0, i) for i in range(nodes)] for _ in used]
    choice = [[draw.randint(-1, 1) for _ in range(nodes + 1)] for _ in used]
    return (
        torch.tensor(tokens, dtype=torch.int64).view(6, nodes),
        torch.tensor(parents, dtype=torch.int64).view(6, nodes),
        torch.tensor(choice),
    )


@pytest.mark.parametrize("nodes", [0, 1, 4, 15, 16, 33])
def test_the_walk_is_the_references(nodes: int, device: torch.device) -> None:
    for seed in range(4):
        case = tree(nodes, seed)
        found = forms.walk(*(part.to(device) for part in case))
        for mine, expected in zip(found, reference.walk(*case), strict=True):
            assert torch.equal(mine.cpu(), expected)


def test_a_chain_is_walked_to_its_end(device: torch.device) -> None:
    tokens = torch.arange(5, device=device)[None] % 2
    parents = torch.arange(5, device=device)[None]
    choice = torch.tensor([[0, 1, 0, 1, 0, 9]], device=device)
    path = forms.walk(tokens, parents, choice)
    assert path.rows.tolist() == [[0, 1, 2, 3, 4, 5]]
    assert path.tokens.tolist() == choice.tolist()
    assert path.length.tolist() == [6]


PATHS = [[0, 1, 2, 3, -1], [0, 2, 3, 7, 9], [0, 5, -1, -1, -1], [0, 1, 4, 5, -1], [0, 3, 4, 5, 6]]
COUNTS = [4, 5, 0, 3, 4]
PAGE = 4


@pytest.mark.parametrize("d", [8, 24])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_the_commit_is_the_references(d: int, dtype: torch.dtype, device: torch.device) -> None:
    """Every slot's contents differ; paths overlap, cross pages, and are cut by the counts."""
    generator = torch.Generator().manual_seed(d)
    store = torch.randn(3, 2, 20, 2, PAGE, d, generator=generator).to(dtype)
    last = torch.tensor([0, 3, 2, 5, 1])
    table = torch.randperm(20, generator=generator).view(5, 4)
    moves = (table, last, torch.tensor(PATHS), torch.tensor(COUNTS))
    found, expected = store.clone().to(device), store.clone()
    forms.commit(found, *(part.to(device) for part in moves))
    if dtype == torch.float8_e4m3fn:  # which torch does not index
        expected = expected.view(torch.uint8)
    reference.commit(expected, *moves)
    assert torch.equal(found.cpu().view(torch.uint8), expected.view(torch.uint8))
    assert not torch.equal(found.cpu().view(torch.uint8), store.view(torch.uint8))
