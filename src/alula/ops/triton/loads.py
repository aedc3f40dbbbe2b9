"""The order of loads.

Triton lays a tile out for who needs it as soon as it is loaded, through shared memory and with a
barrier, and what is loaded next waits for that. In kernels that are over after a few loads, these
have to be under way together.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton import knobs

_INTERPRETED = tl.constexpr(knobs.runtime.interpret)


@triton.jit
def behind(values):
    """The values as they are; what is done with them comes behind all loads before this."""
    if not _INTERPRETED:
        bits: tl.constexpr = values.dtype.primitive_bitwidth
        if bits == 64:
            values = tl.inline_asm_elementwise(
                "mov.b64 $0, $1;", "=l,l", [values], values.dtype, is_pure=False, pack=1
            )
        else:
            values = tl.inline_asm_elementwise(
                "mov.b32 $0, $1;", "=r,r", [values], values.dtype, is_pure=False, pack=32 // bits
            )
    return values
