"""From a step to the tensors of one launch.

Sequences come in three groups, in this order: rounds (a root and the nodes of its pending
draft), final chunks (whose last row chooses a token) and partial chunks. The first two emit.

A launch is laid out tightly, with the rows that exist and no others, or dense: rounds alone, with
a row for every node their drafts have room for. What a dense launch computes for a node that does
not exist is never looked at; its shapes follow from the number of sequences and the draft's shape
alone, so that it can be captured once and launched again.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from alula.engine.lines import Lines
from alula.engine.scheduler import Chunk, Step
from alula.ops.kernels import kernels_for
from alula.ops.prepare import Prepared, drafted
from alula.ops.rope import Rotation
from alula.ops.rows import Rows
from alula.speculation.tree import DraftTree, TreeShape, nodes_to, path_tokens, paths


class Launch(NamedTuple):
    """One launch: R rows of S sequences, E of which emit."""

    ids: Tensor
    """[R] int64, token ids."""
    rows: Rows
    lines: Tensor
    """[S] int64."""
    chunks: list[Chunk]
    """Final ones, then partial ones; their rows come last and in this order."""
    hits: list[tuple[int, int]]
    """Sequence number and first position of chunks that begin behind reused pages."""
    tree: DraftTree
    """The drafts of the E emitting sequences; a final chunk has none."""
    depths: Tensor
    """[E, N + 1] int64, depth of each node."""
    row_numbers: Tensor
    """[E, N + 1] int64, the row that computes a node, -1 for none. Node 0 is the row before the
    token to be chosen: a round's root or a final chunk's last row."""
    path: Tensor
    """[E, N + 1, D] int64, drafted ids on each node's way, -1 after it."""
    last: Tensor
    """[E] int64, position of node 0."""
    nodes: Places
    """The E' nodes that have rows, sequence by sequence."""
    prepared: Prepared | None = None
    """What a dense launch was made of."""

    @property
    def is_dense(self) -> bool:
        """Whether it has a row for every node there is room for."""
        return self.prepared is not None

    @property
    def drafted(self) -> Tensor:
        """[E, 2] int64, the nodes of each draft and their deepest level."""
        return self.prepared.drafted if self.prepared else drafted(self.tree.tokens, self.depths)


class Places(NamedTuple):
    """Nodes of several sequences."""

    sequences: Tensor
    """[E'] int64."""
    numbers: Tensor
    """[E'] int64."""


class _Block(NamedTuple):
    """Rows of one kind: ids, rotary positions, logical places, and which sequence they are of."""

    ids: Tensor
    positions: Tensor
    places: Tensor
    sequences: Tensor


def build(step: Step, lines: Lines, page_size: int, shape: TreeShape) -> Launch:
    """Lay out a step, whose pending drafts have the given shape, tightly."""
    chunks = sorted(step.chunks, key=lambda chunk: not chunk.final)
    round_lines = _integers([sequence.line for sequence in step.rounds], lines)
    chunk_lines = _integers([chunk.sequence.line for chunk in chunks], lines)
    tree = _used(lines.pending(round_lines))
    depths, way = paths(tree, min(shape.depth, tree.nodes))
    nodes = _round_block(lines, round_lines, tree, depths)
    known = _chunk_block(lines, chunk_lines, chunks, first=len(round_lines))
    block = _Block(*(torch.cat(parts) for parts in zip(nodes, known, strict=True)))
    all_lines = torch.cat((round_lines, chunk_lines))
    roots = lines.lengths[round_lines] - 1
    rows = Rows(
        positions=block.positions,
        slots=lines.slots(all_lines[block.sequences], block.places, page_size),
        sequences=block.sequences,
        last=block.positions,
        page_table=lines.page_table[all_lines],
        base=torch.cat((roots, _integers([chunk.start for chunk in chunks], lines))),
        tail=None if shape.is_chain else _tail(lines, round_lines, way, tree, known, page_size),
    )
    finals = [chunk for chunk in chunks if chunk.final]
    row_numbers = _row_numbers(tree, len(nodes.ids), finals)
    return Launch(
        ids=block.ids,
        rows=rows,
        lines=all_lines,
        chunks=chunks,
        hits=[
            (number, chunk.start)
            for number, chunk in enumerate(chunks, start=len(round_lines))
            if chunk.start and chunk.sequence in step.admitted
        ],
        tree=DraftTree(*(_more(part, len(finals), fill=-1) for part in tree)),
        depths=_more(depths, len(finals)),
        row_numbers=row_numbers,
        path=_more(path_tokens(tree, way), len(finals), fill=-1),
        last=torch.cat((roots, _integers([chunk.end - 1 for chunk in finals], lines))),
        nodes=Places(*(row_numbers >= 0).nonzero(as_tuple=True)),
    )


def build_dense(
    at: Tensor, lines: Lines, angles: Rotation, page_size: int, shape: TreeShape, depth: int
) -> Launch:
    """Lay out rounds of the lines `at` [S], with room for drafts of `shape` cut to `depth`.

    `angles`: the rotations of all positions.
    """
    made = kernels_for(lines.device).prepare(
        *(at, lines.state(), angles, page_size, nodes_to(shape, depth), depth),
        has_tail=not shape.is_chain,
    )
    return Launch(
        ids=made.ids,
        rows=made.rows,
        lines=at,
        chunks=[],
        hits=[],
        tree=DraftTree(made.tokens, made.parents),
        depths=made.depths,
        row_numbers=made.row_numbers,
        path=made.path,
        last=made.rows.base,
        nodes=Places(made.rows.sequences, made.numbers),
        prepared=made,
    )


def _integers(values: list[int], lines: Lines) -> Tensor:
    return torch.tensor(values, dtype=torch.int64, device=lines.device)


def _more(part: Tensor, count: int, fill: int = 0) -> Tensor:
    """Append `count` lines of `fill` for the sequences that draft nothing."""
    return torch.cat((part, part.new_full((count, *part.shape[1:]), fill)))


def _used(tree: DraftTree) -> DraftTree:
    """Leave out the columns that no sequence uses."""
    used = int((tree.tokens >= 0).sum(dim=1).amax()) if tree.tokens.numel() else 0
    return DraftTree(tree.tokens[:, :used], tree.parents[:, :used])


def _present(tree: DraftTree) -> Tensor:
    """[S, N + 1] bool: the root and the nodes a sequence has."""
    return F.pad(tree.tokens >= 0, (1, 0), value=True)


def _round_block(lines: Lines, at: Tensor, tree: DraftTree, depths: Tensor) -> _Block:
    roots = lines.lengths[at] - 1
    ids = torch.cat((lines.history[at, roots][:, None], tree.tokens), dim=1)
    sequence, node = _present(tree).nonzero(as_tuple=True)
    return _Block(
        ids[sequence, node],
        roots[sequence] + depths[sequence, node],
        roots[sequence] + node,
        sequence,
    )


def _chunk_block(lines: Lines, at: Tensor, chunks: list[Chunk], first: int) -> _Block:
    spans = [torch.arange(chunk.start, chunk.end, device=lines.device) for chunk in chunks]
    positions = torch.cat([*spans, at[:0]])
    sizes = _integers([len(span) for span in spans], lines)
    owner = torch.arange(len(chunks), device=lines.device).repeat_interleave(sizes)
    return _Block(lines.history[at[owner], positions], positions, positions, owner + first)


def _tail(
    lines: Lines, at: Tensor, way: Tensor, tree: DraftTree, known: _Block, page_size: int
) -> Tensor:
    """Slots of each node's way [R, D + 1]; the rows of chunks have none of their own."""
    places = lines.lengths[at, None, None] - 1 + way
    slots = torch.where(way >= 0, lines.slots(at[:, None, None], places, page_size), -1)
    return _more(slots[_present(tree)], len(known.ids), fill=-1)


def _row_numbers(tree: DraftTree, rounds: int, finals: list[Chunk]) -> Tensor:
    present = _present(tree)
    numbers = present.flatten().cumsum(0).view_as(present) - 1
    numbers = _more(torch.where(present, numbers, -1), len(finals), fill=-1)
    row = rounds
    for line, chunk in enumerate(finals, start=len(tree.tokens)):
        row += chunk.end - chunk.start
        numbers[line, 0] = row - 1
    return numbers
