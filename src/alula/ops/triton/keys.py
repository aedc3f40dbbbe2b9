"""A value and the number that has it as one integer, that orders like them: values rising, and of
equals the lower number last.

So a maximum tells both, and is the same in any order of looking.
"""

from __future__ import annotations

import triton
import triton.language as tl

NO_KEY = tl.constexpr(-(2**63))
_LARGEST = tl.constexpr(2**31 - 1)


@triton.jit
def key_of(value, number):
    """int64, above NO_KEY, for fp32 values, NaN lowest, and numbers below 2^31."""
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
