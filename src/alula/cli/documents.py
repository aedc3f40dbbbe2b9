"""A document in a terminal: tables, stacked bars and the break-even chart as text."""

from __future__ import annotations

from typing import Literal

from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from alula.cost.telling.document import Bars, Block, Chart, Document, Table, ticks

_PIPED_WIDTH = 120
_LEAST_PHRASE = 20
_STYLES = (
    *("white on blue", "black on green", "white on red", "black on yellow", "white on magenta"),
    *("black on cyan", "white on bright_black", "black on bright_green", "black on bright_blue"),
    *("black on bright_magenta", "black on bright_cyan", "black on white"),
)
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_CHART_HEIGHT = 16


def print_document(document: Document) -> None:
    """The verdict first; then everything on standard output."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _PIPED_WIDTH
    console.print(Text(document.verdict, style="bold"), soft_wrap=True)
    for block in document.blocks:
        console.print()
        console.print(Text(block.title, style="bold"))
        _print_block(console, block)
    console.print()
    for note in document.notes:
        console.print(Text(note, style="dim"))


def _print_block(console: Console, block: Block) -> None:
    match block:
        case Table() if block.wordy and len(block.headers) > 2:
            _print_statements(console, block)
        case Table():
            table = _table(block)
            # Wider than a narrow terminal rather than with names and figures cut off.
            console.print(table, width=max(console.width, _least_width(table)), crop=False)
        case Bars():
            _print_bars(console, block)
        case Chart():
            _print_chart(console, block)


def _table(block: Table) -> RichTable:
    table = RichTable(box=None, pad_edge=False, header_style="dim", show_header=any(block.headers))
    for column, header in enumerate(block.headers):
        numeric = block.is_numeric(column)
        justify: Literal["left", "right"] = "right" if numeric else "left"
        words = [*header.split(), *(row[column] for row in block.rows)]
        longest = max(map(cell_len, words))
        least = longest if numeric or column == 0 else min(longest, _LEAST_PHRASE)
        table.add_column(Text(header), justify=justify, min_width=least)
    for row in block.rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _least_width(table: RichTable) -> int:
    """Of all columns at their least, a space of two between them."""
    return sum((column.min_width or 0) + 2 for column in table.columns)


def _print_statements(console: Console, block: Table) -> None:
    """A wide table of sentences, each row as a paragraph: its first two cells head it."""
    for row in block.rows:
        console.print()
        console.print(Text.assemble((row[0], "bold"), f"  {row[1]}"), soft_wrap=True)
        for header, cell in zip(block.headers[2:], row[2:], strict=True):
            console.print(
                Padding(Text.assemble((f"{header}: ", "dim"), cell), (0, 0, 0, 4), expand=False)
            )


def _print_bars(console: Console, block: Bars) -> None:
    """Each segment in its colour and its letter, which alone remains where colours are off."""
    labels = block.labels()
    named = max(len(bar.label) for bar in block.bars)
    longest = max(bar.total for bar in block.bars) or 1.0
    scale = (console.width - named - 14) / longest
    for bar in block.bars:
        line, drawn, reached = Text(f"{bar.label:<{named}} "), 0, 0.0
        for label, value in bar.segments:
            reached += value * scale
            cells = round(reached) - drawn
            drawn += cells
            line.append(_LETTERS[labels.index(label)] * cells, _style(labels.index(label)))
        line.append(f" {bar.total:.2f} ms")
        console.print(line, soft_wrap=True)
    shares = [dict(bar.segments) for bar in block.bars]
    table = RichTable(box=None, pad_edge=False, header_style="dim")
    table.add_column("")
    for bar in block.bars:
        table.add_column(f"{bar.label}, ms", justify="right")
    for number, label in enumerate(labels):
        name = Text.assemble((f" {_LETTERS[number]} ", _style(number)), f" {label}")
        table.add_row(name, *(f"{share.get(label, 0.0):.2f}" for share in shares))
    console.print(table)


def _style(number: int) -> str:
    return _STYLES[number % len(_STYLES)]


def _print_chart(console: Console, block: Chart) -> None:
    """Lines of equal speed, that of plain decoding bold: settings above it pay."""
    width = min(console.width, 100) - 8
    grid = [[" "] * width for _ in range(_CHART_HEIGHT)]
    for speed in sorted(block.speeds_tok_s, key=lambda each: each == block.plain_tok_s):
        glyph = "•" if speed == block.plain_tok_s else "·"
        for column in range(width):
            tau = speed * block.most_ms * (column + 0.5) / width * 1e-3
            _put(grid, column, tau / block.most_tau, glyph)
    for mark, letter in zip(block.marks, _LETTERS.upper(), strict=False):
        _put(grid, int(mark.round_ms / block.most_ms * width), mark.tau / block.most_tau, letter)
    labels = {_row_at(tau / block.most_tau): f"{tau:g}" for tau in ticks(block.most_tau)}
    for number, cells in enumerate(grid):
        console.print(Text(f"{labels.get(number, ''):>4} │{''.join(cells)}"), soft_wrap=True)
    console.print(Text("     └" + "─" * width), soft_wrap=True)
    console.print(Text(f"τ against ms of a round, 0 to {block.most_ms:.0f}".rjust(width)))
    lines = ", ".join(f"{speed:.0f}" for speed in block.speeds_tok_s)
    console.print(Text(f"Lines of equal speed: {lines} tok/s; • is plain decoding."))
    for mark, letter in zip(block.marks, _LETTERS.upper(), strict=False):
        needed = block.plain_tok_s * mark.round_ms * 1e-3
        told = f"{mark.round_ms:.1f} ms, τ {mark.tau:.2f}, even at {needed:.2f}"
        console.print(Text(f"{letter} {mark.label}: {told}"), soft_wrap=True)


def _row_at(height: float) -> int:
    return _CHART_HEIGHT - 1 - int(height * _CHART_HEIGHT)


def _put(grid: list[list[str]], column: int, height: float, glyph: str) -> None:
    row = _row_at(height)
    if 0 <= row < _CHART_HEIGHT and 0 <= column < len(grid[0]):
        grid[row][column] = glyph
