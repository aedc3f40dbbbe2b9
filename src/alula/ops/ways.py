"""The ways down a draft tree, from its root to each of its nodes."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor


def ways(parents: Tensor, depth: int) -> tuple[Tensor, Tensor]:
    """Each node's way down: depths [S, N + 1] and node numbers [S, N + 1, depth + 1].

    `parents` [S, N] int64 are those of the nodes 1 … N; 0 is the root. Entry [s, i, j] is node i's
    ancestor at depth j (itself at its own depth), -1 below it. `depth` is the deepest level that
    the tree may have.
    """
    sequences, nodes = parents.shape
    parents = F.pad(parents, (1, 0))
    here = torch.arange(nodes + 1, device=parents.device).expand(sequences, -1)
    upward = [here]
    for _ in range(depth):
        upward.append(parents.gather(1, upward[-1]))
    up = torch.stack(upward, dim=2)
    depths = (up > 0).sum(dim=2)
    back = depths[:, :, None] - torch.arange(depth + 1, device=parents.device)
    return depths, torch.where(back >= 0, up.gather(2, back.clamp_min(0)), -1)


def way_tokens(tokens: Tensor, way: Tensor) -> Tensor:
    """Drafted ids along each node's way [S, N + 1, D]: the root left out, -1 where it ends."""
    padded = F.pad(tokens, (1, 0), value=-1)
    sequences, rows, depth = way.shape
    picked = padded.gather(1, way.clamp_min(0).flatten(1)).view(sequences, rows, depth)
    return torch.where(way > 0, picked, -1)[:, :, 1:]
