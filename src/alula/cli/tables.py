"""A comparison of decoding shapes as a table for people."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from alula.bench.compare import PLAIN, Comparison, Measured, Spread, title

_PIPED_WIDTH = 120


def print_comparison(comparison: Comparison) -> None:
    """The table on standard output: a block for each kind of text, a row for each shape."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("")
    for header in ("tok/s", "gain", "τ", "break-even", "ms a round"):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("acceptance by depth, %")
    for kind in comparison.kinds:
        table.add_row(kind, style="bold")
        for shape in comparison.shapes:
            _add_row(table, comparison.of(kind, shape))
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _PIPED_WIDTH
    console.print(table)


def _add_row(table: Table, measured: Measured) -> None:
    compared = measured.shape != PLAIN
    table.add_row(
        f"  {title(measured.shape)}",
        _spread(measured.tokens_per_second),
        f"{measured.gain.median:.2f}×" if compared else "",
        f"{measured.tokens_per_round:.2f}" if compared else "",
        f"{measured.break_even:.2f}" if compared else "",
        f"{measured.round_seconds * 1e3:.1f}",
        " ".join(f"{share * 100:.0f}" for share in measured.acceptance),
    )


def _spread(spread: Spread) -> str:
    return f"{spread.median:.1f} ({spread.low:.1f}–{spread.high:.1f})"
