"""How many experts a launch must read."""

from __future__ import annotations

import math
from functools import lru_cache

_NEGLIGIBLE = 1e-8


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
    """Of `drawn` balls without replacement from `ranks` boxes of `each`: the fullest box's.

    The sum over m of the probability that it has more than m, from the least it can have on.
    """
    if drawn in (0, each * ranks):
        return float(drawn // ranks)
    most = float(least := -(-drawn // ranks))
    share = drawn / (each * ranks)
    box = [_binomial(each, taken, share) for taken in range(each + 1)]
    all_boxes = _binomial(each * ranks, drawn, share)
    for m in range(least, each):
        more = 1.0 - _coefficient(box[: m + 1], ranks, drawn) / all_boxes
        if more < _NEGLIGIBLE:
            break
        most += more
    return most


def _binomial(number: int, taken: int, share: float) -> float:
    """Boxes filled with this chance each are, given their sum, boxes drawn from together."""
    ways = math.lgamma(number + 1) - math.lgamma(taken + 1) - math.lgamma(number - taken + 1)
    return math.exp(ways + taken * math.log(share) + (number - taken) * math.log1p(-share))


def _coefficient(base: list[float], power: int, degree: int) -> float:
    """Of x^degree in a power of the polynomial `base`: of its last product, this one alone."""
    half = [1.0]
    for bit in format(power // 2, "b"):
        half = _product(half, half, degree)
        if bit == "1":
            half = _product(half, base, degree)
    other = _product(half, base, degree) if power % 2 else half
    pairs = range(max(0, degree - len(other) + 1), min(len(half), degree + 1))
    return sum(half[i] * other[degree - i] for i in pairs)


def _product(left: list[float], right: list[float], degree: int) -> list[float]:
    """Of two polynomials, up to `degree`, without what is negligible."""
    result = [0.0] * min(len(left) + len(right) - 1, degree + 1)
    for i, a in enumerate(left):
        if a > _NEGLIGIBLE**2:
            for j, b in enumerate(right[: len(result) - i]):
                result[i + j] += a * b
    return result
