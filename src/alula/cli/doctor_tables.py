"""A doctor's report as tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from alula.cli.doctor_verdict import verdicts
from alula.cli.doctor_view import (
    Block,
    chain_lines,
    findings,
    overview,
    printable,
    summary,
)

_PIPED_WIDTH = 160


def print_report(report: dict[str, Any]) -> None:
    """The report on standard output; the chains alone where features were asked for."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _PIPED_WIDTH
    for line in verdicts(report):
        console.print(Text(printable(line), style="bold"), soft_wrap=True)
    for line in summary(report):
        console.print(Text(printable(line), style="dim"))
    if not report["features"]:
        _print_blocks(console, overview(report))
    for name, chain in report["features"].items():
        console.print(Text(f"\n{name}", style="bold"))
        for line in chain_lines(chain):
            console.print(Text(printable(line)), soft_wrap=True)
    if report["features"]:
        console.print()
    _print_blocks(console, findings(report))


def _print_blocks(console: Console, blocks: Iterable[Block]) -> None:
    for block in blocks:
        _print_block(console, block)


def _print_block(console: Console, block: Block) -> None:
    table = Table(
        title=block.title,
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        header_style="dim",
        show_header=any(block.headers),
    )
    for header in block.headers:
        table.add_column(header, overflow="fold")
    for row in block.rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    console.print(table)
    console.print()
