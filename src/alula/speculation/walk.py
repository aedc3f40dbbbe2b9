"""The walk: which drafted tokens the target would have chosen itself."""

from __future__ import annotations

from torch import Tensor

from alula.ops.kernels import kernels_for
from alula.ops.walk import Path
from alula.speculation.tree import DraftTree

__all__ = ["Path", "walk"]


def walk(tree: DraftTree, choice: Tensor) -> Path:
    """Descend from the root while a child's token equals the parent's choice.

    `choice` [S, N + 1] is the target's own token after the root and after each node. A drafted
    token is accepted if and only if it equals the choice before it, so every emitted token is the
    target's and the draft decides nothing but speed. Of equal siblings the first is taken.
    """
    return kernels_for(choice.device).walk(tree.tokens, tree.parents, choice)
