"""Draft trees: what a drafter proposes, and the shapes a proposal can take."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from alula.errors import UsageError


@dataclass(frozen=True)
class TreeShape:
    """How much is drafted: `depth` levels, `width` children a node, `nodes` verified in all."""

    depth: int
    width: int
    nodes: int

    @property
    def is_chain(self) -> bool:
        """Whether every node has one child."""
        return self.width == 1

    def __str__(self) -> str:
        if self.is_chain:
            return f"chain:{self.depth}"
        return f"tree:{self.depth}x{self.width}:{self.nodes}"


NO_DRAFT = TreeShape(depth=0, width=1, nodes=0)


def nodes_to(shape: TreeShape, depth: int) -> int:
    """Nodes of a tree of this shape that is cut after `depth` levels."""
    depth = min(depth, shape.depth)
    if depth == 0:
        return 0
    return min(shape.nodes, shape.width + (depth - 1) * shape.width**2)


class DraftTree(NamedTuple):
    """Drafted continuations of S sequences, up to N nodes each.

    Nodes are numbered from 1; 0 is the root, the sequence's last token. A node comes after its
    parent. A node that a sequence does not use has token -1.
    """

    tokens: Tensor
    """[S, N] int64, ids in the target's vocabulary."""
    parents: Tensor
    """[S, N] int64, node numbers."""

    @property
    def nodes(self) -> int:
        """N, the number of nodes a sequence has room for."""
        return int(self.tokens.shape[1])


def chain(tokens: Tensor) -> DraftTree:
    """A tree of width 1 from tokens [S, K] in order, -1 after the last that is drafted."""
    parents = torch.arange(tokens.shape[1], device=tokens.device)
    return DraftTree(tokens, parents.expand_as(tokens))


def parse_shape(text: str, words: Iterable[str] = ()) -> TreeShape:
    """Read `chain:K` or `tree:DEPTHxWIDTH:NODES`; K = 0 drafts nothing.

    Raises UsageError for anything else, which names `words` too: what else the caller takes.
    """
    if found := re.fullmatch(r"chain:(\d+)", text):
        depth = int(found[1])
        return TreeShape(depth, 1, depth)
    if found := re.fullmatch(r"tree:(\d+)[x×](\d+):(\d+)", text):
        depth, width, nodes = (int(part) for part in found.groups())
        _check_tree(text, depth, width, nodes)
        return TreeShape(depth, width, nodes)
    raise UsageError(
        f"the draft shape {text!r} is not understood",
        f"a shape is {''.join(f'{word}, ' for word in words)}chain:K or tree:DEPTHxWIDTH:NODES, "
        "with whole numbers from 0",
        "write for example chain:4, or tree:4x4:16 (at most 4 levels, 4 children, 16 nodes)",
    )


def _check_tree(text: str, depth: int, width: int, nodes: int) -> None:
    # Every level below the first expands the best `width` nodes of the one above.
    room = width + (depth - 1) * width**2
    if depth < 1 or width < 1 or not depth <= nodes <= room:
        raise UsageError(
            f"the draft shape {text!r} cannot be built",
            f"{depth} levels of width {width} hold between {depth} and {room} nodes",
            "give a depth and width of at least 1 and a node count between those bounds",
        )


def paths(tree: DraftTree, depth: int) -> tuple[Tensor, Tensor]:
    """Each node's way down from the root: depths [S, N + 1] and node numbers [S, N + 1, depth + 1].

    Entry [s, i, j] is node i's ancestor at depth j (itself at its own depth), -1 below it. Row 0
    is the root. `depth` is the deepest level the tree may have.
    """
    sequences, nodes = tree.parents.shape
    root = torch.zeros(sequences, 1, dtype=torch.int64, device=tree.parents.device)
    parents = torch.cat((root, tree.parents), dim=1)
    here = torch.arange(nodes + 1, device=root.device).expand(sequences, -1)
    upward = [here]
    for _ in range(depth):
        upward.append(parents.gather(1, upward[-1]))
    up = torch.stack(upward, dim=2)
    depths = (up > 0).sum(dim=2)
    back = depths[:, :, None] - torch.arange(depth + 1, device=root.device)
    return depths, torch.where(back >= 0, up.gather(2, back.clamp_min(0)), -1)


def path_tokens(tree: DraftTree, way: Tensor) -> Tensor:
    """Drafted ids along each node's way [S, N + 1, D]: the root left out, -1 where it ends."""
    tokens = torch.nn.functional.pad(tree.tokens, (1, 0), value=-1)
    sequences, rows, depth = way.shape
    picked = tokens.gather(1, way.clamp_min(0).flatten(1)).view(sequences, rows, depth)
    return torch.where(way > 0, picked, -1)[:, :, 1:]
