"""The shape of a draft, and how many tokens a round emits with it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import mul
from typing import NamedTuple

from alula.errors import UsageError

_SHAPE = re.compile(r"chain:(\d{1,4})|tree:(\d{1,4})x(\d{1,4}):(\d{1,4})", re.ASCII)
_MOST_DEPTH = 64
_MOST_NODES = 1024


class Draft(NamedTuple):
    """So many nodes, found in `depth` draft steps of `width` rows."""

    depth: int
    width: int
    nodes: int

    @property
    def rows(self) -> int:
        """Rows that the target verifies: the nodes, and the token they grow from."""
        return 1 + self.nodes

    @property
    def name(self) -> str:
        """As it is typed."""
        if self.width == 1:
            return f"chain:{self.depth}"
        return f"tree:{self.depth}x{self.width}:{self.nodes}"


def chain(depth: int) -> Draft:
    """A draft of width 1."""
    return Draft(depth, 1, depth)


def parse_draft(text: str) -> Draft:
    """`chain:K` or `tree:DEPTHxWIDTH:NODES`. Raises UsageError for anything else."""
    match = _SHAPE.fullmatch(text)
    if match and match[1] and 0 < int(match[1]) <= _MOST_DEPTH:
        return chain(int(match[1]))
    if match and match[2]:
        depth, width, nodes = (int(match[n]) for n in (2, 3, 4))
        most = width + (depth - 1) * width * width
        if 0 < depth <= _MOST_DEPTH and max(depth, width) <= nodes <= min(most, _MOST_NODES):
            return Draft(depth, width, nodes)
    raise UsageError(
        f"--draft {text!r} is not understood",
        f"a draft is chain:K or tree:DEPTHxWIDTH:NODES, at most {_MOST_DEPTH} deep, "
        f"with a node for each depth and width and no more than candidates, {_MOST_NODES} in all",
        "write for example chain:3 or tree:5x4:15",
    )


@dataclass(frozen=True)
class Acceptance:
    """How likely each depth is accepted, given that all before it were.

    Depths beyond the last given one are taken to be accepted as it is.
    """

    conditional: tuple[float, ...]
    origin: str

    def survival(self, depth: int) -> list[float]:
        """How likely a draft is accepted down to each depth."""
        longer = [*self.conditional, *[self.conditional[-1]] * depth][:depth]
        return list(accumulate(longer, mul))

    def tau(self, depth: int) -> float:
        """Tokens emitted per round, the bonus token included."""
        return 1.0 + sum(self.survival(depth))


def from_conditional(shares: Sequence[float]) -> Acceptance:
    """`--acceptance`: conditional, by position. Raises UsageError for no probabilities."""
    return Acceptance(_probabilities(shares, "--acceptance"), _beyond("--acceptance", len(shares)))


def from_survival(shares: Sequence[float]) -> Acceptance:
    """`--survival`: cumulative, so that it never rises. Raises UsageError otherwise."""
    cumulative = _probabilities(shares, "--survival")
    for before, after in pairwise(cumulative):
        if after > before:
            raise UsageError(
                f"--survival rises from {before:g} to {after:g}",
                "it is cumulative: how likely all drafts up to each position are accepted",
                "give conditional probabilities as --acceptance instead",
            )
    pairs = zip((1.0, *cumulative), cumulative, strict=False)
    conditional = tuple(after / before if before else 0.0 for before, after in pairs)
    return Acceptance(conditional, _beyond("--survival", len(shares)))


def _beyond(flag: str, given: int) -> str:
    return f"{flag}, beyond depth {given} as likely as there"


def from_tau(tau: float, draft: Draft) -> Acceptance:
    """`--tau` of one draft: the same probability at every depth that gives it.

    Raises UsageError for fewer than one token a round, or more than the draft can give.
    """
    if not 1.0 <= tau <= draft.depth + 1:
        raise UsageError(
            f"--tau {tau:g} is impossible for {draft.name}",
            f"a round emits from 1 to {draft.depth + 1} tokens with it",
            "correct --tau or --draft",
        )
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        enough = Acceptance((middle,), "").tau(draft.depth) >= tau
        low, high = (low, middle) if enough else (middle, high)
    return Acceptance((high,), f"--tau {tau:g} with {draft.name}: {high:.2f} at every depth")


def _probabilities(shares: Sequence[float], flag: str) -> tuple[float, ...]:
    if not shares or not all(0.0 <= share <= 1.0 for share in shares):
        raise UsageError(
            f"{flag} {','.join(f'{share:g}' for share in shares)} is not understood",
            "these are probabilities, from 0 to 1, with commas between them",
            f"write for example {flag} 0.6,0.5,0.4",
        )
    return tuple(shares)
