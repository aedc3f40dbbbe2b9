"""How the kernels of a model are launched.

What one kernel computes another may compute too, joined with something else or for other numbers
of rows, and both have to give the same bits. So nothing is left to the compiler that it may decide
in one kernel one way and in another the other way: a product and a sum become one operation only
where `fma` says so.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from triton.runtime import driver

_FIRST_OVERLAPPING = 90
"""Compute capability that programmatic dependent launch begins with."""


def options(x: Tensor) -> dict[str, Any]:
    """What a kernel over x is launched with: its constant `overlaps` (see `overlap`), and what
    Triton is told.
    """
    found = {"enable_fp_fusion": False, "overlaps": False}
    if x.device.type == "cpu":  # Triton's interpreter
        return found
    target = driver.active.get_current_target()
    if target.backend != "cuda" or target.arch < _FIRST_OVERLAPPING:
        return found
    return {**found, "overlaps": True, "launch_pdl": True}


# Triton has functions for these, which are made to run in kernels too and take ten times as long.


def ceil_div(value: int, by: int) -> int:
    """The quotient, rounded up."""
    return -(-value // by)


def power_of_2(value: int) -> int:
    """The least power of two that is not below `value`, at least 1."""
    return 1 << max(value - 1, 0).bit_length()
