"""Diagnoses as people read them."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from alula.diagnosis.answer import escaped
from alula.diagnosis.behind import Met
from alula.diagnosis.cause import Cause, Certainty, Diagnosis
from alula.diagnosis.events import Event
from alula.diagnosis.lines import split_prefix
from alula.diagnosis.signatures import Kind
from alula.diagnosis.together import Judged, Pair, Together, verdict

_PIPED_WIDTH = 120
_STYLES = {Certainty.CERTAIN: "bold red", Certainty.LIKELY: "yellow", Certainty.UNKNOWN: "magenta"}


def console() -> Console:
    """Standard output; wide where it is a file."""
    found = Console(highlight=False)
    if not found.is_terminal:
        found.width = _PIPED_WIDTH
    return found


def print_diagnosis(diagnosis: Diagnosis, gates: Iterable[Met] = ()) -> None:
    """The verdict in one sentence first, then its evidence, the cascade and the notes."""
    out = console()
    if diagnosis.cause is None:
        out.print(Text("Nothing found that ended the run.", style="bold"))
    else:
        _print_cause(out, diagnosis.cause)
        _print_gates(out, gates)
    if diagnosis.cascade:
        title = "Errors that ended nothing" if diagnosis.cause is None else "What followed"
        out.print(Text(f"\n{title}", style="bold"))
        for line in _followed(diagnosis.cascade):
            out.print(Text(f"  {line}"), no_wrap=True, overflow="ellipsis")
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
        if cause.event.frames:
            table.add_row("raised at", Text(escaped(cause.event.frames[-1])))
    if cause.because:
        table.add_row("because", Text("\n".join(map(escaped, cause.because))))
    table.add_row("refuted by", Text(ruling.refuted_by))
    table.add_row("fix", Text(ruling.fix))
    if cause.sources:
        table.add_row("seen in", ", ".join(cause.sources))
    out.print(Padding(table, (0, 0, 0, 2)))


def _followed(cascade: tuple[Event, ...]) -> list[str]:
    """A line for each kind of failure and start, with how many ranks said the same."""
    kinds: dict[tuple[str, int], list[Event]] = {}
    for event in cascade:
        message = split_prefix(event.text).message
        known = event.signature.name if event.signature else message
        kind = known if event.kind is Kind.FAILURE else message
        kinds.setdefault((kind, event.start), []).append(event)
    return [
        f"{_place(first)}{_others(len(rest))}  {escaped(split_prefix(first.text).message)}"
        for first, *rest in kinds.values()
    ]


def _others(count: int) -> str:
    return f" and {count} more" if count else ""


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


def _place(event: Event) -> str:
    rank = f" [{event.rank}]" if event.rank else ""
    return escaped(f"{event.file}:{event.number}") + rank


def print_together(found: Together) -> None:
    """The answer in one sentence, then the attempts, what they share, and what would help."""
    out = console()
    out.print(Text(verdict(found), style="bold"))
    out.print(_attempts(found))
    for each in found.judged:
        _print_attempt(out, each)
    out.print(Text("\nIn common", style="bold"))
    for text in _common(found):
        out.print(Text(f"  {text}"))
    out.print(Text("\nOne change alone", style="bold"))
    for change, names in found.openers:
        out.print(Text(f"  {change} unblocks {', '.join(names) or 'none of them'}"))
    if not found.openers:
        out.print(Text("  no change of the software opens a gate; each attempt has its own fix"))


def _attempts(found: Together) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for header in ("attempt", "cause", "layer", "owner", "sure", "gates behind"):
        table.add_column(header)
    if found.plan is not None:
        table.add_column(f"{found.plan.name} unblocks")
    for each in found.judged:
        cause = each.diagnosis.cause
        row = ["nothing found", "", "", ""]
        if cause is not None:
            ruling = cause.ruling
            row = [ruling.failure_class, ruling.layer, ruling.owner, str(cause.certainty)]
        unblocked = [] if found.plan is None else [_yes(each.attempt.name in found.unblocked)]
        cells = (each.attempt.name, *row, str(len(each.behind)), *unblocked)
        table.add_row(*(Text(escaped(cell)) for cell in cells))
    return table


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"


def _print_attempt(out: Console, each: Judged) -> None:
    out.print(Text(f"\n{escaped(each.attempt.name)}", style="bold cyan"))
    if each.diagnosis.cause is None:
        out.print(Text("Nothing found that ended the run."))
    else:
        _print_cause(out, each.diagnosis.cause)
    for line in _followed(_other_failures(each.diagnosis)):
        out.print(Text(f"  then {line}"), no_wrap=True, overflow="ellipsis")
    _print_gates(out, each.behind)


def _print_gates(out: Console, gates: Iterable[Met]) -> None:
    for met in gates:
        gate = met.gate
        words = f"  behind it ({met.when}): {gate.component}, {gate.layer}: {gate.predicate}"
        out.print(Text(words), Text(f"    {gate.evidence}", style="dim"), sep="\n")


def _other_failures(diagnosis: Diagnosis) -> tuple[Event, ...]:
    """The failures that are not the cause itself on another rank."""
    name = diagnosis.cause.name if diagnosis.cause else ""
    found = (event for event in diagnosis.cascade if event.kind is Kind.FAILURE)
    return tuple(event for event in found if event.signature and event.signature.name != name)


def _common(found: Together) -> list[str]:
    said = [
        f"{pair.first} and {pair.second}: {text}" for pair in found.pairs if (text := _of(pair))
    ]
    return said or ["nothing, not even a word"]


def _of(pair: Pair) -> str:
    words = ", ".join(pair.words)
    if pair.same_cause:
        return "the same root cause"
    if pair.kind:
        return f"the same kind of cause ({pair.kind}) with different owners, so not the same cause"
    return f"only words ({words})" if words else ""
