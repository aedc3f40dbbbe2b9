"""How many experts a launch must read."""

from __future__ import annotations

import math
from functools import lru_cache


def distinct(count: int, active: int, rows: int) -> float:
    """Expected distinct experts of one layer for `rows` rows that choose independently.

    An expert is left out by a row with probability 1 − active/count.
    """
    return count * (1.0 - (1.0 - active / count) ** rows)


def busiest(count: int, active: int, rows: int, ranks: int) -> float:
    """Expected distinct experts on the rank that has most of them, `count`/`ranks` on each.

    Given how many are distinct, every set of that size is equally likely (by symmetry), so their
    number on each rank is multivariate hypergeometric. The expected number of distinct experts is
    interpolated between its two neighbouring whole numbers.
    """
    wanted = distinct(count, active, rows)
    below = math.floor(wanted)
    low = _expected_maximum(count // ranks, ranks, below)
    high = _expected_maximum(count // ranks, ranks, min(below + 1, count))
    return low + (wanted - below) * (high - low)


@lru_cache(maxsize=1024)
def _expected_maximum(each: int, ranks: int, drawn: int) -> float:
    """Of `drawn` balls without replacement from `ranks` boxes of `each`: the fullest box's."""
    ways = math.comb(each * ranks, drawn)
    return float(sum(1.0 - _at_most(each, ranks, drawn, m) / ways for m in range(each)))


def _at_most(each: int, ranks: int, drawn: int, most: int) -> int:
    """Ways to draw so that no box gives more than `most`: a coefficient of a power."""
    base = [math.comb(each, taken) for taken in range(most + 1)]
    power = [1]
    for bit in format(ranks, "b"):
        power = _product(power, power, drawn)
        if bit == "1":
            power = _product(power, base, drawn)
    return power[drawn] if drawn < len(power) else 0


def _product(left: list[int], right: list[int], degree: int) -> list[int]:
    """Of two polynomials, up to `degree`."""
    result = [0] * min(len(left) + len(right) - 1, degree + 1)
    for i, a in enumerate(left):
        for j, b in enumerate(right[: len(result) - i]):
            result[i + j] += a * b
    return result
