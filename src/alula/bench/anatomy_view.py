"""A round's anatomy for people: a stacked bar in the terminal, and the same as SVG."""

from __future__ import annotations

from xml.sax.saxutils import escape

from alula.bench.anatomy import Anatomy, Part
from alula.bench.kinds import KINDS

_LETTERS = dict(zip(KINDS, "LAnraswDo.", strict=True))
_COLOURS = dict(
    zip(
        KINDS,
        (
            *("#3b6fb6", "#d9822b", "#6aa84f", "#8e6bbf", "#c27ba0"),
            *("#cc4c4c", "#45a1a1", "#b8a03a", "#8a8a8a", "#dddddd"),
        ),
        strict=True,
    )
)
_WIDTH = 72
_SVG_WIDTH, _BAR_HEIGHT, _LINE, _MARGIN = 760, 44, 20, 16


def lines(anatomy: Anatomy) -> list[str]:
    """The bar, and a line for each kind."""
    total = sum(part.us for part in anatomy.parts)
    told = [f"{anatomy.name}: {_milliseconds(anatomy.us)} a round, {anatomy.launches} launches"]
    told.append(f"[{bar(anatomy)}]")
    for part in anatomy.parts:
        share = 100 * part.us / total
        letter = _LETTERS[part.kind]
        told.append(f"  {letter} {part.kind:<16}{part.us:9.1f} us{share:6.1f} %  {_count(part)}")
    told.append(_limit(anatomy))
    return told


def bar(anatomy: Anatomy, width: int = _WIDTH) -> str:
    """A stacked bar of letters; every kind ends where its share of the whole does."""
    total = sum(part.us for part in anatomy.parts)
    drawn, until = "", 0.0
    for part in anatomy.parts:
        until += part.us
        drawn += _LETTERS[part.kind] * (round(width * until / total) - len(drawn))
    return drawn


def svg(anatomy: Anatomy) -> str:
    """The bar as a picture, with a legend."""
    total = sum(part.us for part in anatomy.parts)
    inner = _SVG_WIDTH - 2 * _MARGIN
    top, x, shapes = 2 * _LINE, float(_MARGIN), []
    for number, part in enumerate(anatomy.parts):
        width, colour = inner * part.us / total, _COLOURS[part.kind]
        told = f"{part.kind}: {part.us:.1f} us, {100 * part.us / total:.1f} %, {_count(part)}"
        shapes.append(
            f'<rect x="{x:.2f}" y="{top}" width="{width:.2f}" height="{_BAR_HEIGHT}" '
            f'fill="{colour}"><title>{escape(told)}</title></rect>'
        )
        y = top + _BAR_HEIGHT + (number + 1) * _LINE
        shapes.append(
            f'<rect x="{_MARGIN}" y="{y - 10}" width="12" height="12" fill="{colour}"/>'
            + _text(_MARGIN + 20, y, told)
        )
        x += width
    height = top + _BAR_HEIGHT + (len(anatomy.parts) + 2) * _LINE
    title = f"{anatomy.name}: {_milliseconds(anatomy.us)} a round, {anatomy.launches} launches"
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_SVG_WIDTH} {height}" '
            'font-family="sans-serif" font-size="13">',
            f'<rect width="{_SVG_WIDTH}" height="{height}" fill="white"/>',
            _text(_MARGIN, _LINE + 4, title),
            *shapes,
            _text(_MARGIN, height - 12, _limit(anatomy)),
            "</svg>\n",
        )
    )


def _text(x: int, y: int, words: str) -> str:
    return f'<text x="{x}" y="{y}">{escape(words)}</text>'


def _limit(anatomy: Anatomy) -> str:
    return (
        f"{100 * anatomy.of_limit:.0f} % of the memory limit: reading what a plain step must read "
        f"takes {_milliseconds(anatomy.limit_us)} at the speed of a sum"
    )


def _milliseconds(us: float) -> str:
    return f"{us / 1e3:.3f} ms"


def _count(part: Part) -> str:
    return f"{part.launches} launches" if part.launches else "between launches"
