"""The best children of draft nodes, in chunks of the drafter's vocabulary."""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from alula.ops.expand import Growth, Roots
from alula.ops.triton.exact import noise
from alula.ops.triton.keys import NO_KEY, key_of
from alula.ops.triton.launch import ceil_div, options
from alula.ops.triton.overlap import release, wait

_CHUNK = 1024


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


class Found(NamedTuple):
    """What the chunks of R nodes found."""

    best: Tensor
    """[R, chunks, width] int64 keys."""
    masses: Tensor
    """[R, chunks] fp32, sums of exponentials over that of the chunk's largest."""


def children(logits: Tensor, roots: Roots, growth: Growth, level: int) -> Found:
    """The best of each chunk of logits [S * F, Vd]; the noise is that of `level`."""
    rows, vocabulary = logits.shape
    chunks = ceil_div(vocabulary, _CHUNK)
    best = roots.lines.new_empty(rows, chunks, growth.width)
    masses = logits.new_empty(rows, chunks)
    children_kernel[(chunks, rows)](
        *(logits, roots.lines, roots.lengths, roots.keys, roots.temperatures),
        *(growth.target_ids, best, masses, level, vocabulary),
        frontier=rows // len(roots.lines),
        width=growth.width,
        draws=growth.noise is not None,
        chunk=_CHUNK,
        **options(logits),
    )
    return Found(best, masses)
