"""Segments follow each other without a gap, grow with the context, and are found by position."""

from __future__ import annotations

from itertools import pairwise

import torch
import triton
import triton.language as tl
from torch import Tensor

from alula.ops.triton import segments

MOST = 1 << 21


@triton.jit
def starts_kernel(to, n: tl.constexpr):
    at = tl.arange(0, n)
    tl.store(to + at, segments.start_of(at))


@triton.jit
def segments_kernel(positions, to, below, n: tl.constexpr):
    at = tl.arange(0, n)
    position = tl.load(positions + at)
    tl.store(to + at, segments.segment_of(position))
    tl.store(below + at, segments.segments_below(position))


def starts(device: torch.device) -> Tensor:
    found = torch.empty(256, dtype=torch.int32, device=device)
    starts_kernel[(1,)](found, n=256)
    return found


def test_they_grow_with_the_context(device: torch.device) -> None:
    first = starts(device).tolist()
    assert first[0] == 0
    lengths = [after - start for start, after in pairwise(first)]
    for start, length in zip(first, lengths, strict=False):
        assert length % segments.SEGMENT_KEYS == 0
        assert length == segments.SEGMENT_KEYS or length * 16 <= start <= length * 32
    assert [first.index(end) for end in (2048, 4096, 131072)] == [32, 48, 128]


def test_every_position_finds_its_own(device: torch.device) -> None:
    first = starts(device).long()
    edges = torch.cat([first + offset for offset in (-1, 0, 1, 77)])
    random = torch.randint(MOST, (1024,), generator=torch.Generator().manual_seed(0))
    positions = torch.cat((edges.cpu(), random)).clamp_min(0).to(device, torch.int32)
    found, below = torch.empty_like(positions), torch.empty_like(positions)
    segments_kernel[(1,)](positions, found, below, n=len(positions))
    inside = positions < int(first[-1])
    expected = torch.searchsorted(first, positions.long(), right=True) - 1
    assert torch.equal(found[inside].long(), expected[inside])
    counts = [segments.count(position) if position else 0 for position in positions.tolist()]
    assert below.tolist() == counts
