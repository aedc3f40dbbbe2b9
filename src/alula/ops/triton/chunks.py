"""Rows of a whole vocabulary, cut into chunks: one program takes one chunk of one row.

A launch passes on what its chunks found, and the programs of the next one put it together, each
for itself: maxima with the lowest id, and sums of integers, which have no order. So a row's
result is the same, to the bit, in any chunks.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from alula.ops.sample import LineSettings

_NO_ID = tl.constexpr(2**31 - 1)

Pair = tuple[Tensor, Tensor]
NOTHING: tuple[None, None] = (None, None)


class Chunks(NamedTuple):
    """What the launches of one call share: R rows, cut into chunks."""

    logits: Tensor
    lines: Tensor
    settings: LineSettings
    best: Pair
    """The largest logit of each chunk, and its id."""
    chunk: int
    """Tokens of one."""

    @property
    def rows(self) -> int:
        """R."""
        return self.logits.shape[0]

    @property
    def vocabulary(self) -> int:
        """V."""
        return self.logits.shape[1]

    @property
    def chunks(self) -> int:
        """Of a row."""
        return -(-self.vocabulary // self.chunk)

    @property
    def warps(self) -> int:
        """Of a program."""
        return min(max(self.chunk // 512, 4), 8)

    @property
    def block_chunks(self) -> int:
        """The chunks, padded to a power of two."""
        return 1 << (self.chunks - 1).bit_length()

    def found(self) -> Pair:
        """Room for the best value of each chunk, and its id."""
        shape = (self.rows, self.chunks)
        return self.empty(shape, torch.float32), self.empty(shape, torch.int32)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Room on the logits' device."""
        return torch.empty(shape, dtype=dtype, device=self.logits.device)


@triton.jit
def best_of(values, ids):
    """The largest value and the lowest id that has it."""
    best = tl.max(values, axis=0)
    return best, tl.min(tl.where(values == best, ids, _NO_ID), axis=0)


@triton.jit
def found(values, ids, row, chunks, block_chunks: tl.constexpr):
    """The best of what a row's chunks found."""
    at = tl.arange(0, block_chunks)
    value = tl.load(values + row * chunks + at, mask=at < chunks, other=-float("inf"))
    return best_of(value, tl.load(ids + row * chunks + at, mask=at < chunks, other=_NO_ID))


@triton.jit
def largest_of(values, row, chunks, block_chunks: tl.constexpr):
    """The largest value that a row's chunks found."""
    at = tl.arange(0, block_chunks)
    value = tl.load(values + row * chunks + at, mask=at < chunks, other=-float("inf"))
    return tl.max(value, axis=0)


@triton.jit
def ranked_filters(top_k, top_p, line, vocabulary):
    """Whether a line has top_k on, and top_p."""
    return tl.load(top_k + line) < vocabulary, tl.load(top_p + line) < 1.0


@triton.jit
def is_finite(value):
    """For infinities of both signs; a NaN is not finite either."""
    return (value > -float("inf")) & (value < float("inf"))


@triton.jit
def scale(logits, token, vocabulary, largest, temperature):
    """See `transforms.scale`; and the bits of its size, which grow as the likelihood falls."""
    value = tl.load(logits + token, mask=token < vocabulary, other=-float("inf"))
    scaled = tl.div_rn(value - largest, temperature)
    return scaled, scaled.to(tl.int32, bitcast=True) & 0x7FFFFFFF
