"""From what the chunks of a level found to candidates for a tree: a part of a larger kernel."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from alula.ops.expand import Frontier
from alula.ops.triton.children import Found
from alula.ops.triton.keys import NO_KEY, key_of, number_of, value_of
from alula.ops.triton.launch import power_of_2

_VALUES_PER_WARP = 256


@triton.jit
def add(
    best,
    masses,
    target_ids,
    scores_above,
    numbers_above,
    tokens,
    parents,
    scores,
    sequence,
    first,
    room,
    calibration,
    is_sampled,
    frontier: tl.constexpr,
    width: tl.constexpr,
    chunks: tl.constexpr,
    block_frontier: tl.constexpr,
    block_width: tl.constexpr,
    block_found: tl.constexpr,
):
    """Add the frontier's children to the candidates.

    Their scores as keys by place in the level, and their tokens: [block_frontier, block_width].
    """
    key, gains = _children(
        best,
        masses,
        sequence * frontier,
        calibration,
        is_sampled,
        frontier,
        width,
        chunks,
        block_frontier,
        block_width,
        block_found,
    )
    node, child = tl.arange(0, block_frontier)[:, None], tl.arange(0, block_width)[None, :]
    exists = (node < frontier) & (child < width)
    at = node * width + child
    score, parent = gains, tl.zeros((block_frontier, 1), tl.int64)
    if scores_above is not None:
        of_node = sequence * frontier + node
        score += tl.load(scores_above + of_node, mask=node < frontier, other=0.0)
        parent = tl.load(numbers_above + of_node, mask=node < frontier, other=0)
    to = sequence * room + first + at
    token = tl.load(target_ids + number_of(key), mask=exists, other=0)
    tl.store(tokens + to, token, mask=exists)
    tl.store(parents + to, parent, mask=exists)
    tl.store(scores + to, score, mask=exists)
    return tl.where(exists, key_of(score, at), NO_KEY), token


@triton.jit
def _children(
    best,
    masses,
    first_row,
    calibration,
    is_sampled,
    frontier: tl.constexpr,
    width: tl.constexpr,
    chunks: tl.constexpr,
    block_frontier: tl.constexpr,
    block_width: tl.constexpr,
    block_found: tl.constexpr,
):
    """What `children_kernel` found of the nodes from `first_row` on.

    The keys of their children [block_frontier, block_width], and the log of their probabilities.
    """
    node = tl.arange(0, block_frontier)[:, None]
    child = tl.arange(0, block_width)[None, :]
    at = tl.arange(0, block_found)[None, :]
    row = first_row + node
    exists = (node < frontier) & (at < chunks * width)
    key = tl.load(best + row * chunks * width + at, mask=exists, other=NO_KEY)
    firsts = value_of(tl.where(at % width == 0, key, NO_KEY))
    children = tl.full((block_frontier, block_width), NO_KEY, tl.int64)
    for number in range(width):
        found = tl.max(key, axis=1)[:, None]
        children = tl.where(child == number, found, children)
        key = tl.where(key == found, NO_KEY, key)
    gains = tl.zeros((block_frontier, block_width), tl.float32)
    if width > 1:
        value = value_of(children)
        is_child = (child < width) & (node < frontier)
        if is_sampled:
            value *= calibration
            value = tl.where(is_child, value, -float("inf"))
            largest = tl.max(value, axis=1)[:, None]
            total = tl.sum(tl.where(is_child, tl.exp(value - largest), 0.0), axis=1)[:, None]
        else:
            is_first = exists & (at % width == 0)
            mass = tl.load(masses + row * chunks + at // width, mask=is_first, other=0.0)
            largest = tl.max(tl.where(is_child, value, -float("inf")), axis=1)[:, None]
            parts = tl.where(is_first, mass * tl.exp(firsts - largest), 0.0)
            total = tl.sum(parts, axis=1)[:, None]
        gains = tl.where(is_child, tl.minimum(value - largest - tl.log(total), 0.0), 0.0)
    return children, gains


def above_of(frontier: Frontier | None) -> tuple[Tensor | None, Tensor | None]:
    """Scores and numbers of the nodes whose children are added."""
    return (None, None) if frontier is None else (frontier.scores, frontier.numbers)


def blocks_of(leaders: Found, sequences: int) -> dict[str, Any]:
    """What a program of one sequence is compiled for."""
    rows, chunks, width = leaders.best.shape
    frontier = rows // sequences
    block_frontier = power_of_2(frontier)
    block_found = power_of_2(chunks * width)
    return {
        "frontier": frontier,
        "width": width,
        "chunks": chunks,
        "block_frontier": block_frontier,
        "block_width": power_of_2(width),
        "block_found": block_found,
        "num_warps": min(max(block_frontier * block_found // _VALUES_PER_WARP, 1), 8),
    }
