"""A comparison of decoding shapes as a table for people."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from alula.bench.compare import PLAIN, Comparison, Measured, Spread, title


def print_comparison(comparison: Comparison) -> None:
    """The table on standard output: a row for each kind of text and shape."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("kind")
    table.add_column("decoding", no_wrap=True)
    for header in ("tok/s", "gain", "τ", "break-even τ", "round / step"):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("acceptance by depth")
    for kind in comparison.kinds:
        for shape in comparison.shapes:
            _add_row(table, comparison.of(kind, shape))
    Console(highlight=False).print(table)


def _add_row(table: Table, measured: Measured) -> None:
    plain = measured.shape == PLAIN
    times = f"{measured.round_seconds * 1e3:.1f} / {measured.step_seconds * 1e3:.1f} ms"
    table.add_row(
        measured.kind if plain else "",
        title(measured.shape),
        _spread(measured.tokens_per_second, ".1f"),
        "" if plain else f"{measured.gain.median:.2f}×",
        "" if plain else f"{measured.tokens_per_round:.2f}",
        "" if plain else f"{measured.break_even:.2f}",
        "" if plain else times,
        " ".join(f"{share:.0%}" for share in measured.acceptance),
        style="dim" if plain else "",
    )


def _spread(spread: Spread, form: str) -> str:
    return f"{spread.median:{form}} ({spread.low:{form}}–{spread.high:{form}})"
