"""The border that top_k and top_p draw in a row, found digit by digit in the size of a logit.

A scaled logit is at most 0, so that the bits of its size grow as the likelihood falls. Every
launch takes four of them: it counts a row's tokens, or adds their masses, by that digit, among
those that share the digits before it. The digit in which the count or the mass is reached is the
border's.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from alula.ops.triton.chunks import (
    NOTHING,
    Chunks,
    Pair,
    is_finite,
    largest_of,
    ranked_filters,
    scale,
)
from alula.ops.triton.exact import mass
from alula.ops.triton.launch import options
from alula.ops.triton.overlap import release, wait

LEVELS = 8
_DIGITS = tl.constexpr(16)
_LEVELS = tl.constexpr(LEVELS)
_THREADS = 32


@triton.jit
def _size_mass(size):
    """The mass of a token whose scaled logit has this size."""
    return mass(-size.to(tl.int32).to(tl.float32, bitcast=True))


@triton.jit
def _sums(sums, row, level, chunks, block_chunks: tl.constexpr):
    """What the chunks of a row counted at a level, [chunks, 16]."""
    at, digit = tl.arange(0, block_chunks)[:, None], tl.arange(0, _DIGITS)[None, :]
    start = sums + ((row * _LEVELS + level) * chunks) * _DIGITS
    return tl.load(start + at * _DIGITS + digit, mask=at < chunks, other=0)


@triton.jit
def _descend(sum_of_digit, size, left):
    """Take the digit in which `left` is reached: the longer size, and what is left within it."""
    digit = tl.arange(0, _DIGITS)
    up_to = tl.where(digit[None, :] <= digit[:, None], sum_of_digit[None, :], 0)
    chosen = tl.sum((tl.sum(up_to, axis=1) < left).to(tl.int32), axis=0)
    return size * _DIGITS + chosen, left - tl.sum(tl.where(digit < chosen, sum_of_digit, 0), axis=0)


@triton.jit
def find_border(sums, states, row, number, chunks, weighs, block_chunks: tl.constexpr):
    """Where a search ended: the size at the border, how many tokens of just that size are kept,
    how many there are, and how many in the chunks before this one."""
    state = states + (row * _LEVELS + _LEVELS - 1) * 2
    all_sums = _sums(sums, row, _LEVELS - 1, chunks, block_chunks)
    size, left = _descend(tl.sum(all_sums, axis=0), tl.load(state), tl.load(state + 1))
    each = tl.where(weighs, tl.maximum(_size_mass(size), 1), 1)
    at, digit = tl.arange(0, block_chunks)[:, None], tl.arange(0, _DIGITS)[None, :]
    equal = tl.where(digit == size % _DIGITS, all_sums, 0)
    before = tl.sum(tl.sum(tl.where(at < number, equal, 0), axis=1), axis=0)
    every = tl.sum(tl.sum(equal, axis=1), axis=0)
    return size, (left + each - 1) // each, every // each, before // each


@triton.jit
def _needed(total, top_p):
    """See `transforms.needed_mass`."""
    exact = top_p.to(tl.float64) * total.to(tl.float64)
    below = exact.to(tl.int64)
    return tl.minimum(below + (below.to(tl.float64) < exact).to(tl.int64), total)


@triton.jit(do_not_specialize=["level"])
def search_kernel(
    logits,
    lines,
    temperature,
    top_k,
    top_p,
    best_values,
    first_sums,
    first_states,
    sums,
    states,
    logits_stride,
    level,
    chunks,
    vocabulary,
    second: tl.constexpr,
    chunk: tl.constexpr,
    step: tl.constexpr,
    block_chunks: tl.constexpr,
    overlaps: tl.constexpr,
):
    """One digit of the border's size: counts tokens, or adds their masses, by their digit.

    The first search is for top_k, or for top_p where top_k is off; the second for top_p among
    what top_k left.
    """
    release(overlaps)
    wait(overlaps)
    number, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    line = tl.load(lines + row)
    warmth = tl.load(temperature + line)
    has_k, has_p = ranked_filters(top_k, top_p, line, vocabulary)
    largest = largest_of(best_values, row, chunks, block_chunks)
    if second:
        wanted, weighs = has_k & has_p, has_p
    else:
        wanted, weighs = has_k | has_p, has_k == 0
    if wanted & (warmth > 0.0) & is_finite(largest):
        bound = tl.full((), 0x7FFFFFFF, tl.int64)
        surplus = tl.zeros((), tl.int64)
        if second:
            bound, kept, there, _before = find_border(
                first_sums, first_states, row, number, chunks, False, block_chunks
            )
            surplus = (there - kept) * _size_mass(bound)
        size = tl.zeros((), tl.int64)
        if level > 0:
            state = states + (row * _LEVELS + level - 1) * 2
            of_digit = tl.sum(_sums(sums, row, level - 1, chunks, block_chunks), axis=0)
            if level == 1:
                needed = _needed(tl.sum(of_digit, axis=0) - surplus, tl.load(top_p + line))
                left = tl.where(weighs, needed, tl.load(top_k + line))
            else:
                size, left = tl.load(state), tl.load(state + 1)
            size, left = _descend(of_digit, size, left)
            if number == 0:
                tl.store(state + 2, size)
                tl.store(state + 3, left)
        digit = tl.arange(0, _DIGITS)
        total = tl.zeros((step, _DIGITS), tl.int64)
        shift = 4 * (_LEVELS - 1 - level)
        for start in tl.range(0, chunk, step, loop_unroll_factor=4):
            token = number * chunk + start + tl.arange(0, step)
            scaled, own = scale(logits + row * logits_stride, token, vocabulary, largest, warmth)
            rest = own >> shift
            counts = (token < vocabulary) & (own <= bound) & ((rest >> 4) == size)
            weight = tl.full((step,), 1, tl.int64)
            if weighs:
                weight = mass(scaled)
            weight = tl.where(counts, weight, 0)
            total += tl.where((rest & 15)[:, None] == digit[None, :], weight[:, None], 0)
        to = sums + ((row * _LEVELS + level) * chunks + number) * _DIGITS + digit
        tl.store(to, tl.sum(total, axis=0))


def search(work: Chunks, first: Pair | None = None) -> Pair:
    """Find where the filters' border lies: the first, or the second within it.

    Gives the sums [R, levels, chunks, 16] and the states [R, levels, 2] that `find_border` reads.
    """
    settings = work.settings
    sums = work.empty((work.rows, LEVELS, work.chunks, 16), torch.int64)
    states = work.empty((work.rows, LEVELS, 2), torch.int64)
    for level in range(LEVELS):
        search_kernel[(work.chunks, work.rows)](
            *(work.logits, work.lines, settings.temperature, settings.top_k, settings.top_p),
            *(work.best[0], *(first or NOTHING), sums, states),
            *(work.logits.stride(0), level, work.chunks, work.vocabulary),
            second=first is not None,
            chunk=work.chunk,
            step=_THREADS * work.warps,
            block_chunks=work.block_chunks,
            num_warps=work.warps,
            **options(work.logits),
        )
    return sums, states
