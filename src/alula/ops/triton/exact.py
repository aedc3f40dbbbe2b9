"""`ops.exact` inside of kernels: the same operations in the same order, hence the same bits.

A kernel that uses these is launched with `launch.options`, which fuse nothing: a product and a sum
in one rounding are another number than in two.
"""

from __future__ import annotations

import triton
import triton.language as tl

from alula.ops import exact

_INNER = tl.constexpr(exact.INNER)
_OUTER = tl.constexpr(exact.OUTER)
_STARTS = tl.constexpr(exact.STARTS)
_LARGEST_BELOW_ONE = tl.constexpr(exact.LARGEST_BELOW_ONE)
_SQRT_HALF_BITS = tl.constexpr(exact.SQRT_HALF_BITS)
_LN2 = tl.constexpr(exact.LN2)
_LOG_TERMS = tl.constexpr(exact.LOG_TERMS)
_LOG2_E = tl.constexpr(exact.LOG2_E)
_EXP2_TERMS = tl.constexpr(exact.EXP2_TERMS)
_LOWEST_POWER = tl.constexpr(exact.LOWEST_POWER)
_MASS_BITS = tl.constexpr(exact.MASS_BITS)


@triton.jit
def mix(x, mixer: tl.constexpr):
    """See `exact.mix`; for uint32."""
    x = (x ^ (x >> mixer[0])) * mixer[1]
    x = (x ^ (x >> mixer[2])) * mixer[3]
    return x ^ (x >> mixer[4])


@triton.jit
def noise(key, position, token):
    """`sampling.noise.exact_gumbel` of one key (int64) and position for any tokens."""
    low, high = key.to(tl.uint32), (key >> 32).to(tl.uint32)
    at = position.to(tl.uint32)
    first = mix(mix(mix(low + _STARTS[0], _INNER) + high, _INNER) + at, _INNER)
    second = mix(mix(mix(low + _STARTS[1], _INNER) + high, _INNER) + at, _INNER)
    return gumbel(mix(mix(token.to(tl.uint32) + first, _INNER) + second, _OUTER))


@triton.jit
def gumbel(bits):
    """See `exact.gumbel`; for uint32."""
    u = (bits.to(tl.float32) + 0.5) * 2.3283064365386963e-10
    u = tl.minimum(u, _LARGEST_BELOW_ONE)
    rest = 1.0 - u
    exponent, part = _parted(rest)
    part += (1.0 - rest) - u
    drawn = -(_log1p(part) + exponent.to(tl.float32) * _LN2)
    exponent, part = _parted(drawn)
    return -(_log1p(part) + exponent.to(tl.float32) * _LN2)


@triton.jit
def mass(scaled):
    """See `exact.mass`."""
    power = tl.maximum(scaled * _LOG2_E, _LOWEST_POWER)
    whole = power.to(tl.int32)
    part = power - whole.to(tl.float32)
    value = part * _EXP2_TERMS[5] + _EXP2_TERMS[4]
    for term in tl.static_range(3, -1, -1):
        value = value * part + _EXP2_TERMS[term]
    bits = value.to(tl.int32, bitcast=True) + ((whole + _MASS_BITS) << 23)
    return bits.to(tl.float32, bitcast=True).to(tl.int64)


@triton.jit
def _parted(x):
    bits = x.to(tl.int32, bitcast=True)
    exponent = (bits - _SQRT_HALF_BITS) >> 23
    return exponent, (bits - (exponent << 23)).to(tl.float32, bitcast=True) - 1.0


@triton.jit
def _log1p(part):
    quotient = tl.div_rn(part, part + 2.0)
    square = quotient * quotient
    value = (square * _LOG_TERMS[3] + _LOG_TERMS[2]) * square + _LOG_TERMS[1]
    return (value * square + _LOG_TERMS[0]) * quotient
