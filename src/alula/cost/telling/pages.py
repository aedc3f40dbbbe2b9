"""A document as Markdown, and as one page that needs nothing else."""

from __future__ import annotations

from html import escape

from alula.cost.telling.document import Bars, Block, Chart, Document, Table
from alula.cost.telling.svg import bars_svg, chart_svg

_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;"
    "color:#222;background:#fff}h1{font-size:1.3rem;line-height:1.4}h2{font-size:1.05rem;"
    "margin-top:2rem}table{border-collapse:collapse;width:100%}td,th{padding:.25rem .6rem;"
    "border-bottom:1px solid #ddd;text-align:left;vertical-align:top}.n{text-align:right}"
    "svg{width:100%;height:auto}"
    ".notes{color:#555;font-size:.9rem}"
)


def markdown(document: Document) -> str:
    """For pasting into an issue."""
    parts = [f"**{document.verdict}**"]
    parts += [markdown_block(block) for block in document.blocks]
    parts.append("\n".join(f"- {note}" for note in document.notes))
    return "\n\n".join(part for part in parts if part) + "\n"


def markdown_block(block: Block) -> str:
    """One table, or what a drawing shows as one, under its title."""
    match block:
        case Table(title, headers, rows):
            table = (headers, rows)
        case Bars(title):
            labels = block.labels()
            table = (
                ("ms", *labels, "all"),
                tuple(
                    (
                        bar.label,
                        *(f"{dict(bar.segments).get(label, 0.0):.2f}" for label in labels),
                        f"{bar.total:.2f}",
                    )
                    for bar in block.bars
                ),
            )
        case Chart(title):
            table = (
                ("setting", "round ms", "τ", f"break-even at {block.plain_tok_s:.1f} tok/s"),
                tuple(
                    (
                        mark.label,
                        f"{mark.round_ms:.1f}",
                        f"{mark.tau:.2f}",
                        f"{block.plain_tok_s * mark.round_ms * 1e-3:.2f}",
                    )
                    for mark in block.marks
                ),
            )
    headers, rows = table
    kinds = tuple("---:" if numeric else "---" for numeric in _numeric(block, len(headers)))
    lines = [_row(headers), _row(kinds)]
    return f"### {title}\n\n" + "\n".join([*lines, *map(_row, rows)])


def _numeric(block: Block, columns: int) -> list[bool]:
    if isinstance(block, Table):
        return [block.is_numeric(column) for column in range(columns)]
    return [column > 0 for column in range(columns)]


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def html(document: Document) -> str:
    """A self-contained page: no scripts, nothing fetched."""
    parts = [f"<h1>{escape(document.verdict)}</h1>"]
    for block in document.blocks:
        parts.append(f"<h2>{escape(block.title)}</h2>")
        parts.append(_html_block(block))
    notes = "".join(f"<li>{escape(note)}</li>" for note in document.notes)
    parts.append(f'<h2>Where the figures come from</h2><ul class="notes">{notes}</ul>')
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>alula estimate</title><style>{_STYLE}</style></head>\n"
        f"<body>\n{body}\n</body></html>\n"
    )


def _html_block(block: Block) -> str:
    match block:
        case Bars():
            return bars_svg(block)
        case Chart():
            return chart_svg(block)
        case Table():
            kinds = [
                ' class="n"' if block.is_numeric(column) else ""
                for column in range(len(block.headers))
            ]
            head = _html_row("th", block.headers, kinds) if any(block.headers) else ""
            rows = "".join(_html_row("td", row, kinds) for row in block.rows)
            return f"<table>{head}{rows}</table>"


def _html_row(tag: str, cells: tuple[str, ...], kinds: list[str]) -> str:
    pairs = zip(cells, kinds, strict=True)
    return (
        "<tr>" + "".join(f"<{tag}{kind}>{escape(cell)}</{tag}>" for cell, kind in pairs) + "</tr>"
    )
