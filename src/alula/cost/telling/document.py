"""What a command has to say, before it is drawn in a terminal, as Markdown or as a page."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple


def ticks(most: float) -> list[float]:
    """Round numbers from 0 to `most`, at most six steps apart."""
    step = 10.0 ** math.floor(math.log10(most))
    step *= next(share for share in (0.1, 0.2, 0.5, 1.0, 2.0) if most / (step * share) <= 6)
    return [step * n for n in range(int(most / step) + 1)]


class Segment(NamedTuple):
    """A piece of a stacked bar."""

    label: str
    value: float


class Bar(NamedTuple):
    """A stacked bar."""

    label: str
    segments: tuple[Segment, ...]

    @property
    def total(self) -> float:
        """Its length."""
        return sum(segment.value for segment in self.segments)


@dataclass(frozen=True)
class Bars:
    """Stacked bars on one scale, in milliseconds."""

    title: str
    bars: tuple[Bar, ...]

    def labels(self) -> list[str]:
        """Labels of all segments, each once, as they first come."""
        return list(dict.fromkeys(s.label for bar in self.bars for s in bar.segments))


@dataclass(frozen=True)
class Table:
    """Rows of texts under headers; the first column is read, the others are compared."""

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    wordy: bool = False
    """Whether the cells hold sentences."""

    def is_numeric(self, column: int) -> bool:
        """Whether most cells of a column are figures, which are compared by their ends."""
        cells = [row[column] for row in self.rows if row[column]]
        return 2 * sum(cell[0].isdigit() or cell[0] in "+-" for cell in cells) > len(cells)


class Mark(NamedTuple):
    """A setting on the break-even chart: milliseconds of a round, tokens it emits."""

    label: str
    round_ms: float
    tau: float


@dataclass(frozen=True)
class Chart:
    """The break-even chart: τ against the time of a round; lines of equal speed fan out from 0."""

    title: str
    plain_tok_s: float
    """The line that settings must lie above."""
    marks: tuple[Mark, ...]

    @property
    def speeds_tok_s(self) -> tuple[float, ...]:
        """The lines: half, one, one and a half and two times plain decoding."""
        return tuple(self.plain_tok_s * times for times in (0.5, 1.0, 1.5, 2.0))

    @property
    def most_ms(self) -> float:
        """The right edge."""
        return 1.15 * max((mark.round_ms for mark in self.marks), default=2e3 / self.plain_tok_s)

    @property
    def most_tau(self) -> float:
        """The upper edge."""
        highest = max((mark.tau for mark in self.marks), default=0.0)
        return 1.15 * max(highest, self.plain_tok_s * self.most_ms * 1e-3)


Block = Bars | Table | Chart


@dataclass(frozen=True)
class Document:
    """A verdict, what stands behind it, and where the figures come from."""

    verdict: str
    blocks: tuple[Block, ...]
    notes: tuple[str, ...]
    data: dict[str, Any] = field(default_factory=dict)
    """The same for programs; every key names its unit."""
