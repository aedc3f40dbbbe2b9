"""Quantities with their units: read where a person writes them, written where a person reads them.

Inside this floor every name ends in its unit: `_s`, `_bytes`, `_tok_s`.
"""

from __future__ import annotations

import math
import re

from alula.errors import UsageError

_TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9}
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*([^\s\d]*)\s*")


def parse_time(text: str, what: str) -> float:
    """`60us`, `0.35ms` or `1.2s` in seconds. Raises UsageError for another unit, or none."""
    return _parse(text, what, _TIMES, "a time: 60us, 4ms or 1.2s")


def _parse(text: str, what: str, units: dict[str, float], wanted: str) -> float:
    match = _QUANTITY.fullmatch(text)
    if match and match[2] in units:
        return number(float(match[1]) * units[match[2]], what)
    if match is None:
        why = "it is not a number with a unit"
    else:
        why = f"{match[2]!r} is not a unit of it" if match[2] else "it has no unit"
    raise UsageError(f"{what} {text!r} is not understood", why, f"write {wanted}")


def number(value: object, what: str) -> float:
    """A finite number of zero or more. Raises UsageError for anything else."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        found = float(value)
        if math.isfinite(found) and found >= 0:
            return found
    raise UsageError(
        f"{what} {value!r} is not understood",
        "it is a finite number of zero or more",
        "correct it",
    )


def ms(seconds: float) -> str:
    """Milliseconds for people."""
    return f"{seconds * 1e3:.2f} ms"


def us(seconds: float) -> str:
    """Microseconds for people."""
    value = seconds * 1e6
    return f"{value:.1f} µs" if value < 20 else f"{value:.0f} µs"


def size(count_bytes: float) -> str:
    """Bytes for people: decimal from a megabyte, and kibibytes below as all-reduces are listed."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count_bytes >= scale:
            return f"{count_bytes / scale:.2f} {unit}"
    return f"{count_bytes / 1024:.0f} KiB" if count_bytes >= 1024 else f"{count_bytes:.0f} B"


def count(value: float) -> str:
    """Parameters or operations for people."""
    for unit, scale in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if value >= scale:
            return f"{value / scale:.2f} {unit}"
    return f"{value:.0f}"
