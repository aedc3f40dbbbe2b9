"""The best children of draft nodes: which tokens of a drafter's vocabulary lead, and by how much.

A value and the number that has it make one integer that orders like them, equal values by number:
so a maximum tells both, and is the same in any order of looking.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from alula.ops.expand import Growth, Roots
from alula.ops.triton.exact import noise
from alula.ops.triton.overlap import dependent, release, wait

CHUNK = 1024
NO_KEY = tl.constexpr(-(2**63))
_LARGEST = tl.constexpr(2**31 - 1)


@triton.jit
def key_of(value, number):
    """int64 that orders fp32 values, NaN lowest, and of equals the lower number first."""
    value = tl.where(value == value, value, -float("inf"))
    value = tl.where(value == 0.0, 0.0, value)
    bits = value.to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & _LARGEST)
    return (ordered.to(tl.int64) << 32) | (number ^ _LARGEST).to(tl.int64)


@triton.jit
def number_of(key):
    """The number in a key."""
    return (key & _LARGEST).to(tl.int32) ^ _LARGEST


@triton.jit
def value_of(key):
    """The value in a key."""
    ordered = (key >> 32).to(tl.int32)
    return (ordered ^ ((ordered >> 31) & _LARGEST)).to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=["level"])
def children_kernel(
    logits,
    lines,
    lengths,
    keys,
    temperatures,
    target_ids,
    best,
    masses,
    level,
    vocabulary,
    frontier: tl.constexpr,
    width: tl.constexpr,
    draws: tl.constexpr,
    chunk: tl.constexpr,
    overlaps: tl.constexpr,
):
    """Program (i, r) finds the best of chunk i of node r, and the chunk's mass in its best's."""
    release(overlaps)
    number, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    token = number * chunk + tl.arange(0, chunk)
    inside = token < vocabulary
    wait(overlaps)
    value = tl.load(logits + row * vocabulary + token, mask=inside, other=-float("inf"))
    if draws:
        line = tl.load(lines + row // frontier)
        warmth = tl.load(temperatures + line)
        if warmth > 0.0:
            position = tl.load(lengths + line) + level - 1
            target = tl.load(target_ids + token, mask=inside, other=0)
            value = value / warmth + noise(tl.load(keys + line), position, target)
    key = tl.where(inside, key_of(value, token), NO_KEY)
    to = row * tl.num_programs(0) + number
    if width > 1:
        largest = tl.max(tl.where(inside, value, -float("inf")), axis=0)
        weight = tl.where(inside, tl.exp(value - largest), 0.0)
        tl.store(masses + to, tl.sum(weight, axis=0))
    for child in range(width):
        found = tl.max(key, axis=0)
        tl.store(best + to * width + child, found)
        key = tl.where(key == found, NO_KEY, key)


@triton.jit
def put_together(
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


class Found(NamedTuple):
    """What the chunks of R nodes found."""

    best: Tensor
    """[R, chunks, width] int64 keys."""
    masses: Tensor
    """[R, chunks] fp32, sums of exponentials over that of the chunk's largest."""


def children(logits: Tensor, roots: Roots, growth: Growth, level: int) -> Found:
    """The best of each chunk of logits [S * F, Vd]; the noise is that of `level`."""
    rows, vocabulary = logits.shape
    chunks = triton.cdiv(vocabulary, CHUNK)
    best = roots.lines.new_empty(rows, chunks, growth.width)
    masses = logits.new_empty(rows, chunks)
    children_kernel[(chunks, rows)](
        *(logits, roots.lines, roots.lengths, roots.keys, roots.temperatures),
        *(growth.target_ids, best, masses, level, vocabulary),
        frontier=rows // len(roots.lines),
        width=growth.width,
        draws=growth.noise is not None,
        chunk=CHUNK,
        enable_fp_fusion=False,
        **dependent(logits),
    )
    return Found(best, masses)
