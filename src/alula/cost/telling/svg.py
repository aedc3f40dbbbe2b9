"""Drawings as SVG: stacked bars and the break-even chart."""

from __future__ import annotations

from html import escape

from alula.cost.telling.document import Bars, Chart, ticks

COLOURS = (
    *("#1b6ca8", "#66a182", "#d1495b", "#edae49", "#6b4e9b", "#2e8b9a", "#a0522d"),
    *("#7a9e3b", "#555555", "#c26fa8", "#9aa5b1", "#3d5a80"),
)
_WIDTH = 860
_LEFT, _RIGHT = 150, 90
_BAR, _GAP = 26, 14


def bars_svg(bars: Bars) -> str:
    """All bars on one scale, the legend below them."""
    longest = max((bar.total for bar in bars.bars), default=1.0) or 1.0
    labels = bars.labels()
    scale = (_WIDTH - _LEFT - _RIGHT) / longest
    parts = []
    for number, bar in enumerate(bars.bars):
        x, y = float(_LEFT), 8 + number * (_BAR + _GAP)
        parts.append(_text(_LEFT - 8, y + 17, bar.label, "end"))
        for label, value in bar.segments:
            colour = COLOURS[labels.index(label) % len(COLOURS)]
            parts.append(
                f'<rect x="{x:.1f}" y="{y}" width="{value * scale:.1f}" height="{_BAR}" '
                f'fill="{colour}"><title>{escape(label)}: {value:.2f} ms</title></rect>'
            )
            x += value * scale
        parts.append(_text(x + 6, y + 17, f"{bar.total:.2f} ms", "start"))
    top = 8 + len(bars.bars) * (_BAR + _GAP) + 6
    parts += [_legend(n, label, top) for n, label in enumerate(labels)]
    return _picture(top + 18 * (-(-len(labels) // 4)) + 8, parts, bars.title)


def _legend(number: int, label: str, top: int) -> str:
    x, y = _LEFT + (number % 4) * 172, top + 18 * (number // 4)
    colour = COLOURS[number % len(COLOURS)]
    return f'<rect x="{x}" y="{y}" width="11" height="11" fill="{colour}"/>' + _text(
        x + 16, y + 10, label, "start"
    )


_HEIGHT, _MARGIN = 420, 56


def chart_svg(chart: Chart) -> str:
    """Tokens per round against the time of a round; above the thick line speculation pays."""
    parts = _axes(chart)
    for speed in chart.speeds_tok_s:
        end_ms = min(chart.most_ms, chart.most_tau / speed * 1e3)
        (x0, y0), (x1, y1) = _at(chart, 0, 0), _at(chart, end_ms, speed * end_ms * 1e-3)
        own = speed == chart.plain_tok_s
        stroke = 'stroke="#d1495b" stroke-width="2.5"' if own else 'stroke="#9aa5b1"'
        parts.append(f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" {stroke}/>')
        name = f"{speed:.0f} tok/s" + (", plain" if own else "")
        parts.append(_text(x1 + 4, y1 + (4 if end_ms == chart.most_ms else -6), name, "start"))
    for number, mark in enumerate(chart.marks):
        x, y = _at(chart, mark.round_ms, mark.tau)
        pays = mark.tau >= chart.plain_tok_s * mark.round_ms * 1e-3
        colour = "#1b6ca8" if pays else "#555555"
        shown = f"{mark.label}: {mark.round_ms:.1f} ms, τ {mark.tau:.2f}"
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{colour}">'
            f"<title>{escape(shown)}</title></circle>"
        )
        # In turn above and below, for neighbours' labels to keep apart.
        parts.append(_text(x + 7, y + (17 if number % 2 else -6), mark.label, "start"))
    return _picture(_HEIGHT, parts, chart.title)


def _at(chart: Chart, x_ms: float, tau: float) -> tuple[float, float]:
    width, height = _WIDTH - _MARGIN - 130, _HEIGHT - 2 * _MARGIN
    across, up = x_ms / chart.most_ms, tau / chart.most_tau
    return _MARGIN + across * width, _HEIGHT - _MARGIN - up * height


def _axes(chart: Chart) -> list[str]:
    (x0, y0), (x1, _), (_, y1) = (
        _at(chart, 0, 0),
        _at(chart, chart.most_ms, 0),
        _at(chart, 0, chart.most_tau),
    )
    parts = [
        f'<path d="M{x0:.1f} {y1:.1f}V{y0:.1f}H{x1:.1f}" fill="none" stroke="#333"/>',
        _text((x0 + x1) / 2, y0 + 40, "time of a round, ms", "middle"),
        _text(x0 - 6, y1 - 10, "τ, tokens a round", "start"),
    ]
    for tick_ms in ticks(chart.most_ms):
        x, _ = _at(chart, tick_ms, 0)
        parts.append(_text(x, y0 + 18, f"{tick_ms:g}", "middle"))
    for tau in ticks(chart.most_tau):
        _, y = _at(chart, 0, tau)
        parts.append(_text(x0 - 6, y + 4, f"{tau:g}", "end"))
    return parts


def _picture(height: float, parts: list[str], title: str) -> str:
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" role="img" '
        f'font-family="sans-serif" font-size="12">\n<title>{escape(title)}</title>\n'
        f'<rect width="{_WIDTH}" height="{height:.0f}" fill="white"/>\n{body}\n</svg>\n'
    )


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="#333">{escape(text)}</text>'
