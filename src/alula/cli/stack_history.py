"""`alula stack list` and `log`: what is there, and what was done."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated, Any

import typer

from alula.cli import options
from alula.cli.console import print_json, print_text
from alula.errors import UsageError

if TYPE_CHECKING:
    from alula.stack.inventory import Known
    from alula.stack.journal import Entry

_SHOWN = 80
"""Of the reason of a broken environment; --json and the log have all of it."""


def counted(number: int, one: str, many: str = "") -> str:
    """A number and its noun."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def list_environments(json: options.Json = False) -> None:
    """The environments: which is current, which are whole, who runs in them."""
    from alula.stack.inventory import inventory
    from alula.stack.places import stack_home

    found = inventory(stack_home())
    if json:
        print_json({**found._asdict(), "environments": [_as_json(e) for e in found.environments]})
        return
    print_text(
        f"current is {found.current or 'none'}; {counted(len(found.environments), 'environment')}"
        + (f"; a rollback leads to {found.previous}" if found.previous else "")
    )
    _print_rows([_row(each, found.current) for each in found.environments])


def _as_json(known: Known) -> dict[str, Any]:
    record = known.record
    return record.model_dump(mode="json", exclude={"lock", "format", "variables"}) | {
        "variables": list(record.variables),
        "packages": {each.name: each.version for each in record.lock.packages}
        if record.lock
        else None,
        "held": known.held,
        "processes": known.processes,
    }


def _row(known: Known, current: str | None) -> tuple[str, ...]:
    from alula.cost.units import size

    record = known.record
    mark = "*" if record.name == current else " "
    about = "adopted" if record.lock is None else counted(len(record.lock.packages), "package")
    return (
        f"{mark} {record.name}",
        record.state,
        f"{record.created:%Y-%m-%d %H:%M}",
        f"Python {record.python or '?'}",
        about,
        size(record.size_bytes) if record.size_bytes else "",
        _users(known),
    )


def _users(known: Known) -> str:
    if known.processes:
        return f"in use by {', '.join(map(str, known.processes))}"
    if known.held:
        return "in use"
    if known.record.state == "building":
        return "ended; the same alula stack apply goes on"
    return shorten(known.record.reason, _SHOWN, placeholder=" …")


def log(
    last: Annotated[
        int | None, typer.Option(help="Only this many of the latest.", metavar="N")
    ] = None,
    json: options.Json = False,
) -> None:
    """What was done to the environments, the oldest first."""
    from alula.stack.journal import read
    from alula.stack.places import stack_home

    if last is not None and last < 1:
        raise UsageError(
            f"--last {last} shows nothing", "it is a number of entries", "give 1 or more"
        )
    found = read(stack_home())
    entries = found.entries[-last:] if last else found.entries
    if json:
        shown = [entry.model_dump(mode="json") for entry in entries]
        print_json({"entries": shown, "damaged": found.damaged})
        return
    latest = f"; the latest: {_told(found.entries[-1])}" if found.entries else ""
    damaged = f"; {counted(found.damaged, 'line')} damaged" if found.damaged else ""
    print_text(f"{counted(len(found.entries), 'entry', 'entries')}{damaged}{latest}")
    _print_rows([_log_row(entry) for entry in entries])


def _told(entry: Entry) -> str:
    return f"{entry.action} {entry.environment}"


def _log_row(entry: Entry) -> tuple[str, ...]:
    came = f"from {entry.before}" if entry.before else entry.note
    return (f"  {entry.at:%Y-%m-%d %H:%M:%S}", entry.action, entry.environment, came)


def _print_rows(rows: Sequence[tuple[str, ...]]) -> None:
    """Columns as wide as they need; the same on a terminal and in a pipe."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print_text("  ".join(cells).rstrip())
