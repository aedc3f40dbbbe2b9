"""Loops within an answer, and conversations that nearly repeat others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

REPETITION = 0.3
"""Share of repeated 4-grams above which an answer is cut."""
SIMILAR = 0.7
"""Estimated Jaccard index of 8-grams from which a conversation counts as a duplicate."""
_GRAM = 8
SIGNATURE = 64
"""Entries of a signature."""
_BANDS = 16
_LOOP = 8  # 4-grams in a row that all occurred before: a copy, no longer a coincidence
_PRIME = (1 << 61) - 1


def repetition(tokens: Sequence[int]) -> float:
    """Share of the 4-grams that occurred before in the same text."""
    repeated = _repeated(tokens)
    return sum(repeated) / len(repeated) if repeated else 0.0


def cut_loop(tokens: list[int]) -> list[int]:
    """The tokens up to where they begin to loop; all of them where few repeat."""
    repeated = _repeated(tokens)
    if not repeated or sum(repeated) / len(repeated) <= REPETITION:
        return tokens
    run = 0
    for number, again in enumerate(repeated):
        run = run + 1 if again else 0
        if run == _LOOP:
            return tokens[: number - _LOOP + 1]
    return []


def _repeated(tokens: Sequence[int]) -> list[bool]:
    seen: set[tuple[int, ...]] = set()
    found = []
    for start in range(len(tokens) - 3):
        gram = tuple(tokens[start : start + 4])
        found.append(gram in seen)
        seen.add(gram)
    return found


def signature(tokens: Sequence[int]) -> NDArray[np.uint32]:
    """MinHash of a text's 8-grams, [64]; equal entries estimate the Jaccard index.

    Broder, On the resemblance and containment of documents, 1997.
    """
    ids = [token + 1 for token in tokens] + [0] * max(0, _GRAM - len(tokens))
    grams = {hash(tuple(ids[start : start + _GRAM])) for start in range(len(ids) - _GRAM + 1)}
    values = np.array([gram % _PRIME for gram in grams], np.uint64)
    factors, shifts = _permutations()
    mixed = values[:, None] * factors + shifts
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    smallest: NDArray[np.uint32] = (mixed >> np.uint64(32)).min(0).astype(np.uint32)
    return smallest


def _permutations() -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    dice = np.random.default_rng(0)
    drawn = dice.integers(1, 2**62, (2, SIGNATURE), dtype=np.uint64)
    return drawn[0] | np.uint64(1), drawn[1]


class NearDuplicates:
    """Signatures seen so far, found by bands that agree."""

    def __init__(self, signatures: Iterable[NDArray[np.uint32]] = ()) -> None:
        self._buckets: dict[tuple[int, bytes], list[int]] = {}
        self._signatures: list[NDArray[np.uint32]] = []
        for each in signatures:
            self._keep(each)

    def add(self, candidate: NDArray[np.uint32]) -> bool:
        """Keep a signature unless it nearly equals one kept before; whether it was kept."""
        near = {number for band in _bands(candidate) for number in self._buckets.get(band, ())}
        for number in near:
            if float((self._signatures[number] == candidate).mean()) >= SIMILAR:
                return False
        self._keep(candidate)
        return True

    def _keep(self, kept: NDArray[np.uint32]) -> None:
        for band in _bands(kept):
            self._buckets.setdefault(band, []).append(len(self._signatures))
        self._signatures.append(kept)


def _bands(values: NDArray[np.uint32]) -> list[tuple[int, bytes]]:
    return [(number, part.tobytes()) for number, part in enumerate(np.split(values, _BANDS))]
