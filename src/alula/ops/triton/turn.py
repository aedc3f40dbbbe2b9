"""Cosine and sine inside of kernels, of angles of any size.

The library's, which Triton takes, keeps a table on the stack for arguments that no position in a
text reaches. Here an angle is reduced by a multiple of pi / 2 in three parts (Cody and Waite,
1980), the first short enough for products that are exact up to 2^16 quarter turns; the rest goes
into Cephes' polynomials for single precision (S. Moshier).
"""

from __future__ import annotations

import triton
import triton.language as tl

_PER_QUARTER = tl.constexpr(0.6366197723675814)
_QUARTER = tl.constexpr((1.5703125, 4.837512969970703e-4, 7.549789954891882e-8))
_SINE = tl.constexpr((-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1))
_COSINE = tl.constexpr((2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2))


@triton.jit
def cos_and_sin(angle):
    """Of fp32 angles from 0."""
    quarters = tl.floor(angle * _PER_QUARTER + 0.5)
    rest = tl.fma(quarters, -_QUARTER[0], angle)
    rest = tl.fma(quarters, -_QUARTER[1], rest)
    rest = tl.fma(quarters, -_QUARTER[2], rest)
    square = rest * rest
    sine = ((_SINE[0] * square + _SINE[1]) * square + _SINE[2]) * square * rest + rest
    cosine = ((_COSINE[0] * square + _COSINE[1]) * square + _COSINE[2]) * square * square
    cosine = cosine - 0.5 * square + 1.0
    turn = quarters.to(tl.int32) & 3
    is_odd = (turn & 1) == 1
    c, s = tl.where(is_odd, sine, cosine), tl.where(is_odd, cosine, sine)
    return tl.where((turn == 1) | (turn == 2), -c, c), tl.where(turn >= 2, -s, s)
