"""A walk that accepts as much of a draft as it is told to, whatever the target chose: for timing.

Its tokens are not the target's. No setting and no sampling parameter reaches it; `bench` puts it
in the place of an engine's walk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from alula.errors import UsageError
from alula.speculation.tree import DraftTree, TreeShape, paths
from alula.speculation.walk import Path, walk

EXPLAINED = "acceptance is SIMULATED: tokens are not the model's, only times mean something"
_DRAWS = 4096


class SimulatedWalk:
    """Accepts level d of a draft with probability `rates[d - 1]`, given the levels above it.

    What is accepted is drawn beforehand and lies on the device, with a counter that the round
    itself advances: a captured graph goes on to the next draw whenever it is replayed, and nothing
    comes from the host.
    """

    def __init__(
        self, rates: Sequence[float], shape: TreeShape, sequences: int, device: torch.device
    ) -> None:
        """For drafts of `shape` and up to `sequences` at a time. Levels beyond the rates are never
        accepted.
        """
        generator = torch.Generator().manual_seed(0)
        levels = torch.tensor(rates[: shape.depth])
        passed = torch.rand(_DRAWS, sequences, len(levels), generator=generator) < levels
        self._wanted = passed.long().cumprod(dim=2).sum(dim=2).to(device)
        self._round = torch.zeros(1, dtype=torch.int64, device=device)
        self._shape = shape

    def __call__(self, tree: DraftTree, choice: Tensor) -> Path:
        """The walk down the one path that is left, to the choice that was forced."""
        if not tree.nodes:
            return walk(tree, choice)
        self._round.add_(1).remainder_(_DRAWS)
        wanted = self._wanted[self._round, : len(choice)].T
        if self._shape.is_chain:
            return walk(*_forced_down_a_chain(tree, choice, wanted))
        return walk(*_forced_down_a_tree(tree, choice, wanted, self._shape.depth))

    def trial(self) -> Callable[[], Path]:
        """What walks down a draft of its shape for all sequences there may be: for timing."""
        sequences, node = self._wanted.shape[1], torch.arange(self._shape.nodes)
        # One way as deep as the shape allows; what else there is begins at the root.
        parents = torch.where(node < self._shape.depth, node, 0)
        device = self._wanted.device
        tree = DraftTree(*(part.repeat(sequences, 1).to(device) for part in (node, parents)))
        choice = tree.tokens.new_zeros(sequences, self._shape.nodes + 1)
        return lambda: self(tree, choice)


def parse_rates(text: str) -> tuple[float, ...]:
    """Read `0.6,0.5,…`, conditional by depth. Raises UsageError for what is no probability."""
    try:
        rates = tuple(float(part) for part in text.split(","))
    except ValueError:
        rates = ()
    if not rates or not all(0.0 <= rate <= 1.0 for rate in rates):
        raise UsageError(
            f"--simulate-acceptance {text!r} is not understood",
            "it holds probabilities from 0 to 1, by depth, with commas between them",
            "write for example --simulate-acceptance 0.6,0.5,0.4",
        )
    return rates


def _forced_down_a_chain(
    tree: DraftTree, choice: Tensor, wanted: Tensor
) -> tuple[DraftTree, Tensor]:
    """The first `wanted` [S, 1] nodes of a chain, and choices that follow them."""
    numbers = torch.arange(tree.nodes, device=choice.device)
    tokens = torch.where(numbers < wanted, tree.tokens, -1)
    following = F.pad(tokens, (0, 1), value=-1)
    return DraftTree(tokens, tree.parents), torch.where(following >= 0, following, choice)


def _forced_down_a_tree(
    tree: DraftTree, choice: Tensor, wanted: Tensor, levels: int
) -> tuple[DraftTree, Tensor]:
    """One path of `wanted` [S, 1] levels, or of fewer where the tree is not so deep, and choices
    that follow it.
    """
    nodes = tree.nodes
    depths, way = paths(tree, min(levels, nodes))
    numbers = torch.arange(nodes + 1, device=choice.device)
    reachable = F.pad(tree.tokens >= 0, (1, 0), value=True) & (depths <= wanted)
    # The deepest, of equals the first.
    end = torch.where(reachable, depths * (nodes + 1) - numbers, -1 - nodes).argmax(dim=1)
    path = way.gather(1, end[:, None, None].expand(-1, 1, way.shape[2]))
    on_path = (path.mT == numbers).any(dim=1)[:, 1:]
    # A node on the path hands its token to its parent's choice; all others write beside.
    to = torch.where(on_path, tree.parents, nodes + 1)
    forced = F.pad(choice, (0, 1)).scatter(1, to, tree.tokens)[:, :-1].contiguous()
    return DraftTree(torch.where(on_path, tree.tokens, -1), tree.parents), forced
