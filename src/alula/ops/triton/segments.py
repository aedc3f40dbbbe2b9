"""Positions in segments, each a sum of its own: what can be computed apart and added in order.

Segment n of a row holds the same positions whatever the launch: 64 of them up to position 2,048,
and twice as many for each further octave, so that a context of 131,072 has 128 segments and the
longest is a thirty-second of the context. The numbers are those of a small floating-point format:
four bits of mantissa below an exponent.
"""

from __future__ import annotations

import triton
import triton.language as tl

SEGMENT_KEYS = 64
"""Of the short ones; a whole number of blocks of keys."""
MANTISSA_BITS = 4
UNIT = tl.constexpr(SEGMENT_KEYS)
_MANTISSA_BITS = tl.constexpr(MANTISSA_BITS)
_OF_AN_OCTAVE = tl.constexpr(1 << MANTISSA_BITS)
_FLOAT_BITS, _FLOAT_BIAS = tl.constexpr(23), tl.constexpr(127)


@triton.jit
def start_of(segment):
    """The first position of a segment."""
    octave = tl.maximum(segment // _OF_AN_OCTAVE - 1, 0)
    return ((segment - octave * _OF_AN_OCTAVE) << octave) * UNIT


@triton.jit
def segment_of(position):
    """The segment of a position that is not negative."""
    unit = position // UNIT
    bits = unit.to(tl.float32).to(tl.int32, bitcast=True)
    number = bits >> (_FLOAT_BITS - _MANTISSA_BITS)
    number -= (_FLOAT_BIAS + _MANTISSA_BITS - 1) * _OF_AN_OCTAVE
    return tl.where(unit < _OF_AN_OCTAVE, unit, number)


@triton.jit
def segments_below(end):
    """How many segments the positions below `end` lie in."""
    return tl.where(end > 0, segment_of(tl.maximum(end - 1, 0)) + 1, 0)


def count(keys: int) -> int:
    """How many segments so many keys lie in: `segments_below` for the host."""
    unit = max(keys - 1, 0) // SEGMENT_KEYS
    octave = max(unit.bit_length() - MANTISSA_BITS - 1, 0)
    return (octave << MANTISSA_BITS) + (unit >> octave) + 1
