"""A doctor's report as Markdown, for pasting into an issue."""

from __future__ import annotations

from typing import Any

from alula.cli.doctor_verdict import verdicts
from alula.cli.doctor_view import Block, blocks, printable, summary


def as_markdown(report: dict[str, Any]) -> str:
    """The same tables as the terminal shows."""
    parts = [
        f"## alula doctor {report['alula']}",
        *[f"**{cell(line)}**" for line in verdicts(report)],
        *[f"- {cell(line)}" for line in summary(report)],
    ]
    parts += [_block(block) for block in blocks(report)]
    return "\n\n".join(parts)


def _block(block: Block) -> str:
    lines = [_row(block.headers), _row(("---",) * len(block.headers))]
    lines += [_row(row) for row in block.rows]
    return "\n".join([f"### {cell(block.title)}", "", *lines])


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(map(cell, cells))} |"


def cell(text: str) -> str:
    """A text that stays in its cell and means nothing to Markdown or HTML."""
    text = printable(text)
    for mark in "\\`|*_<>[]":
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.split())
