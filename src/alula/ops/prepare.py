"""What a round of a fixed size computes and where, from where its lines stand."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from alula.ops.lines import LineState
from alula.ops.rope import Rotation
from alula.ops.rows import Rows
from alula.ops.store import Places, places
from alula.ops.ways import way_tokens, ways


class Prepared(NamedTuple):
    """Rounds of S lines, a row for the root and for each of N nodes: R = S * (N + 1) rows."""

    ids: Tensor
    """[R] int64; of an unused node 0."""
    rows: Rows
    """With the page tables of the S lines alone."""
    places: Places
    """Those of the rows' slots."""
    rotation: Rotation
    """That of the rows' positions."""
    lines: Tensor
    """[R] int64, each row's line."""
    following: Tensor
    """[R] int64, position of the token that is chosen after each row."""
    numbers: Tensor
    """[R] int64, each row's node number."""
    tokens: Tensor
    """[S, N] int64, the pending drafts."""
    parents: Tensor
    """[S, N] int64."""
    depths: Tensor
    """[S, N + 1] int64, depth of each node."""
    row_numbers: Tensor
    """[S, N + 1] int64, the row of each node."""
    path: Tensor
    """[S, N + 1, D] int64, drafted ids on each node's way, -1 after it."""
    drafted: Tensor
    """[S, 2] int64, used nodes and their deepest level."""


def prepare(
    at: Tensor,
    state: LineState,
    angles: Rotation,
    page_size: int,
    nodes: int,
    depth: int,
    *,
    has_tail: bool,
) -> Prepared:
    """Lay out rounds of the lines `at` [S] int64.

    Their drafts are cut to `nodes`, of which none is deeper than `depth`; `angles` are the
    rotations of the positions 0, 1, …; `has_tail` says that the drafts are no chains.
    """
    tokens, parents = state.draft_tokens[at][:, :nodes], state.draft_parents[at][:, :nodes]
    depths, way = ways(parents, depth)
    row_numbers = torch.arange(depths.numel(), device=at.device).view_as(depths)
    numbers = row_numbers.flatten() % (nodes + 1)
    sequences = row_numbers.flatten() // (nodes + 1)
    roots, table = state.lengths[at] - 1, state.page_table[at]
    ids = torch.cat((state.history[at, roots][:, None], tokens.clamp_min(0)), dim=1)
    positions = (roots[:, None] + depths).flatten()
    slots = _slots(table, roots[:, None] + numbers.view_as(depths), page_size).flatten()
    tail = None
    if has_tail:
        there = _slots(table, (roots[:, None, None] + way.clamp_min(0)).flatten(1), page_size)
        tail = torch.where(way >= 0, there.view_as(way), -1).flatten(0, 1)
    return Prepared(
        ids=ids.flatten(),
        rows=Rows(positions, slots, sequences, positions, table, roots, tail),
        places=places(slots, page_size),
        rotation=Rotation(angles.cos[positions], angles.sin[positions]),
        lines=at[sequences],
        following=positions + 1,
        numbers=numbers,
        tokens=tokens.contiguous(),
        parents=parents.contiguous(),
        depths=depths,
        row_numbers=row_numbers,
        path=way_tokens(tokens, way).contiguous(),
        drafted=drafted(tokens, depths),
    )


def drafted(tokens: Tensor, depths: Tensor) -> Tensor:
    """Used nodes of drafts [S, N] and their deepest level, [S, 2]; depths as in `Prepared`."""
    used = F.pad(tokens >= 0, (1, 0))
    return torch.stack((used.sum(dim=1), torch.where(used, depths, 0).amax(dim=1)), dim=1)


def _slots(table: Tensor, places: Tensor, page_size: int) -> Tensor:
    """Slots of logical positions `places` [S, m] in the page tables [S, P]."""
    return table.gather(1, places // page_size) * page_size + places % page_size
