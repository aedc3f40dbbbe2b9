"""Functions that have the same bits on every device and in every form of an op.

They are made of operations that IEEE 754 rounds in one way (sums, products, quotients,
conversions), each by itself, and of integer arithmetic. A library's log and exp differ from
device to device in the last bit, and sums of floats with their order. The Triton form of these
functions, `ops.triton.exact`, takes the constants from here.
"""

from __future__ import annotations

import torch
from torch import Tensor

Mixer = tuple[int, int, int, int, int]

# Two bijections of 32-bit words, as (shift, factor, shift, factor, shift): the finalisers known
# as lowbias32 (C. Wellons, hash prospector) and MurmurHash3 fmix32 (A. Appleby).
INNER: Mixer = (16, 0x7FEB352D, 15, 0x846CA68B, 16)
OUTER: Mixer = (16, 0x85EBCA6B, 13, 0xC2B2AE35, 16)

# Where a row's two words start: fractional bits of the golden ratio and of the square root of 2.
STARTS = (0x9E3779B9, 0x6A09E667)

LARGEST_BELOW_ONE = 1.0 - 2.0**-24
SQRT_HALF_BITS = 0x3F3504F3
LN2 = 0.6931471824645996
LOG_TERMS = (2.0, 0.6666677594184875, 0.399774968624115, 0.298730731010437)
"""log((1 + s) / (1 - s)) / s as a polynomial in s^2 where |s| < 0.172: minimax, within 2e-9."""

LOG2_E = 1.4426950216293335
EXP2_TERMS = (
    1.0,
    0.6931444406509399,
    0.24018670618534088,
    0.05531669408082962,
    0.009228379465639591,
    0.0009540343307889998,
)
"""2^f as a polynomial in f where -1 < f <= 0: minimax, within 6e-8."""
LOWEST_POWER = -64.0
MASS_BITS = 44
"""A mass of 1 in integers: 2^19 of them fit into 63 bits, and what rounding down loses of 2^18
tokens, 2^-26 in all, is less than fp32 can tell top_p from 1 by."""
LARGEST_VOCABULARY = 2**19 - 1

_LOW_32 = 0xFFFFFFFF


def mix(x: Tensor, mixer: Mixer) -> Tensor:
    """Apply a finaliser to int32 words, in place.

    int32 products wrap to the same bits as uint32 ones; its right shift drags the sign along,
    which the mask cuts off.
    """
    first, factor, second, other, third = mixer
    shifted = torch.empty_like(x)
    for shift, multiplier in ((first, factor), (second, other), (third, None)):
        torch.bitwise_right_shift(x, shift, out=shifted)
        x.bitwise_xor_(shifted.bitwise_and_(_LOW_32 >> shift))
        if multiplier is not None:
            x.mul_(signed(multiplier))
    return x


def signed(word: int) -> int:
    """The int32 with the bits of an unsigned 32-bit word."""
    return word - 2**32 if word >= 2**31 else word


def uniform(bits: Tensor) -> Tensor:
    """(bits + 1/2) / 2^32 for int32 words, rounded to fp32 at every step and capped below 1."""
    u = bits.view(torch.uint32).to(torch.float32)
    return u.add_(0.5).mul_(2.0**-32).clamp_(max=LARGEST_BELOW_ONE)


def gumbel(bits: Tensor) -> Tensor:
    """-log(-log1p(-u)) of `uniform`, fp32."""
    return _log(_minus_log1p_of_minus(uniform(bits))).neg_()


def mass(scaled: Tensor) -> Tensor:
    """exp(scaled) in units of 2^-44, rounded down, int64, for scaled <= 0 in fp32."""
    power = (scaled * LOG2_E).clamp_(min=LOWEST_POWER)
    whole = power.to(torch.int32)
    part = power.sub_(whole.to(torch.float32))
    value = part * EXP2_TERMS[-1]
    for term in EXP2_TERMS[-2:0:-1]:
        value.add_(term).mul_(part)
    value.add_(EXP2_TERMS[0])
    bits = whole.add_(MASS_BITS).bitwise_left_shift_(23).add_(value.view(torch.int32))
    return bits.view(torch.float32).long()


def _log(x: Tensor) -> Tensor:
    """Natural logarithm of normal numbers above 0."""
    exponent, part = _parted(x)
    return _log1p(part).add_(exponent.to(torch.float32).mul_(LN2))


def _minus_log1p_of_minus(u: Tensor) -> Tensor:
    """-log(1 - u) for 0 < u < 1, precise for small u too."""
    rest = 1.0 - u
    exponent, part = _parted(rest)
    part.add_((1.0 - rest).sub_(u))  # what rounding took; where the exponent is 0, part is now -u
    return _log1p(part).add_(exponent.to(torch.float32).mul_(LN2)).neg_()


def _parted(x: Tensor) -> tuple[Tensor, Tensor]:
    """k and f with x = 2^k (1 + f), 1 + f within a factor of sqrt(2) of 1."""
    bits = x.view(torch.int32)
    exponent = (bits - SQRT_HALF_BITS).bitwise_right_shift_(23)
    near_one = exponent << 23
    torch.sub(bits, near_one, out=near_one)
    return exponent, near_one.view(torch.float32).sub_(1.0)


def _log1p(part: Tensor) -> Tensor:
    """log(1 + part), which is overwritten, where 1 + part is within a factor of sqrt(2) of 1."""
    quotient = part + 2.0
    torch.div(part, quotient, out=quotient)
    square = torch.mul(quotient, quotient, out=part)
    value = square * LOG_TERMS[3]
    for term in LOG_TERMS[2:0:-1]:
        value.add_(term).mul_(square)
    return value.add_(LOG_TERMS[0]).mul_(quotient)
