"""Diagnoses as people read them."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from alula.diagnosis.answer import escaped
from alula.diagnosis.diagnose import Cause, Certainty, Diagnosis
from alula.diagnosis.events import Event

_PIPED_WIDTH = 120
_STYLES = {Certainty.CERTAIN: "bold red", Certainty.LIKELY: "yellow", Certainty.UNKNOWN: "magenta"}


def console() -> Console:
    """Standard output; wide where it is a file."""
    found = Console(highlight=False)
    if not found.is_terminal:
        found.width = _PIPED_WIDTH
    return found


def print_diagnosis(diagnosis: Diagnosis) -> None:
    """The verdict in one sentence first, then its evidence, the cascade and the notes."""
    out = console()
    if diagnosis.cause is None:
        out.print(Text("Nothing found that ended the run.", style="bold"))
    else:
        _print_cause(out, diagnosis.cause)
    if diagnosis.cascade:
        out.print(Text(f"\nWhat followed ({len(diagnosis.cascade)})", style="bold"))
        for event in diagnosis.cascade:
            out.print(Text(f"  {_place(event)}  {escaped(event.text)}"), overflow="ellipsis")
    if diagnosis.notes:
        out.print(Text("\nNotes", style="bold"))
        for note in diagnosis.notes:
            where = f"  ({_place(note.event)})" if note.event else ""
            out.print(Text(f"  {note.text}{where}"))


def _print_cause(out: Console, cause: Cause) -> None:
    ruling = cause.ruling
    out.print(Text(_sentence(ruling.meaning), style="bold"))
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    table.add_row("cause", ", ".join(filter(None, (ruling.failure_class, ruling.layer))))
    table.add_row("owner", ruling.owner or "not known")
    table.add_row("sure", Text(cause.certainty, style=_STYLES[cause.certainty]))
    if cause.event is not None:
        table.add_row("line", Text(f"{_place(cause.event)}\n{escaped(cause.event.text)}"))
    if cause.because:
        table.add_row("because", Text("\n".join(map(escaped, cause.because))))
    table.add_row("refuted by", Text(ruling.refuted_by))
    table.add_row("fix", Text(ruling.fix))
    if cause.sources:
        table.add_row("seen in", ", ".join(cause.sources))
    out.print(Padding(table, (0, 0, 0, 2)))


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


def _place(event: Event) -> str:
    rank = f" [{event.rank}]" if event.rank else ""
    return escaped(f"{event.file}:{event.number}") + rank
