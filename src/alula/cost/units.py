"""Quantities with their units: read where a person writes them, written where a person reads them.

Inside this floor every name ends in its unit: `_s`, `_bytes`, `_tok_s`.
"""

from __future__ import annotations

import re

from alula.errors import UsageError

_TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9}
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*([^\s\d]*)\s*", re.ASCII)
_LEAST, _MOST = 1e-9, 1e9
"""Beyond them, whatever the unit, a figure is a slip, and arithmetic with it means nothing."""
_LARGEST_COUNT = 1 << 24
_LONGEST_S = 3600.0


def parse_time(text: str, what: str) -> float:
    """`60us`, `0.35ms` or `1.2s` in seconds: zero, or from a nanosecond to an hour.

    Raises UsageError for another unit, or none.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None:
        why = "it is not a number with a unit"
    elif match[2] not in _TIMES:
        why = f"{match[2]!r} is not a unit of it" if match[2] else "it has no unit"
    else:
        found = float(match[1]) * _TIMES[match[2]]
        if found == 0 or _LEAST <= found <= _LONGEST_S:
            return found
        why = "it is neither zero nor from a nanosecond to an hour"
    wanted = "write a time: 60us, 4ms or 1.2s"
    raise UsageError(f"{what} {text!r} is not understood", why, wanted)


def number(value: object, what: str) -> float:
    """Zero, or a number from 1e-9 to 1e9. Raises UsageError for anything else."""
    match value:
        case bool():
            pass
        case int() | float() if value == 0 or _LEAST <= value <= _MOST:
            return float(value)
    raise UsageError(
        f"{what} {value!r} is not understood",
        f"it is zero, or a number from {_LEAST:g} to {_MOST:g}",
        "correct it",
    )


def whole(value: object, what: str, least: int = 1) -> int:
    """A whole number, of at most 24 bits. Raises UsageError for anything else."""
    match value:
        case bool():
            pass
        case int() if least <= value <= _LARGEST_COUNT:
            return value
    raise UsageError(
        f"{what} {value!r} is not understood",
        f"it is a whole number from {least} to {_LARGEST_COUNT:,}",
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
    for unit, scale in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if value >= scale:
            return f"{value / scale:.2f} {unit}"
    return f"{value:.0f}"
