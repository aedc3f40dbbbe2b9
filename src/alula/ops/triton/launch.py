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
