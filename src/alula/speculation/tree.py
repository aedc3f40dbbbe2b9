"""Draft trees: what a drafter proposes, and the shapes a proposal can take."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from alula.errors import UsageError
from alula.ops.ways import way_tokens, ways


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
    """Each node's way down from the root: see `ops.ways.ways`."""
    return ways(tree.parents, depth)


def path_tokens(tree: DraftTree, way: Tensor) -> Tensor:
    """Drafted ids along each node's way: see `ops.ways.way_tokens`."""
    return way_tokens(tree.tokens, way)
