"""The walk down a draft tree: which drafted tokens the target would have chosen itself."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Path(NamedTuple):
    """The accepted path of S sequences through trees of N nodes."""

    rows: Tensor
    """[S, N + 1] int64, node numbers from the root (0) down, -1 after the last accepted."""
    tokens: Tensor
    """[S, N + 1] int64, emitted ids: the target's choice at each row of the path, -1 after."""
    length: Tensor
    """[S] int64, emitted tokens: the accepted ones and the bonus."""


def walk(tokens: Tensor, parents: Tensor, choice: Tensor) -> Path:
    """Descend from the root while a child's token equals the parent's choice.

    `tokens` and `parents` [S, N] int64 are a tree's; `choice` [S, N + 1] int64 is the target's own
    token after the root and after each node. Of equal siblings the first is taken.
    """
    sequences, nodes = tokens.shape
    numbers = torch.arange(1, nodes + 1, device=choice.device)
    here = torch.zeros(sequences, dtype=torch.int64, device=choice.device)
    alive = torch.ones(sequences, dtype=torch.bool, device=choice.device)
    rows, emitted = [], []
    for _ in range(nodes + 1):
        chosen = choice.gather(1, here[:, None])[:, 0]
        rows.append(torch.where(alive, here, -1))
        emitted.append(torch.where(alive, chosen, -1))
        follows = (parents == here[:, None]) & (tokens == chosen[:, None])
        follows &= tokens >= 0
        first = torch.where(follows, numbers, nodes + 1).amin(dim=1) if nodes else here
        alive = alive & follows.any(dim=1)
        here = torch.where(alive, first, 0)
    path = torch.stack(rows, dim=1)
    return Path(path, torch.stack(emitted, dim=1), (path >= 0).sum(dim=1))
