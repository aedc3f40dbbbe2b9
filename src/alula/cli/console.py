"""What a person sees besides the answer: errors, notes and progress, all on stderr.

Standard output carries answers and results only, so that it can be piped.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.text import Text

from alula.errors import AlulaError

_FIRST_LINE_SECONDS = 10.0
_BETWEEN_LINES_SECONDS = 60.0
"""At most: the second line comes as long after the first as that after the beginning, and so on."""

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from alula.models.progress import Task


def messages() -> Console:
    """Standard error; colours and bars where it is a terminal."""
    return Console(stderr=True, highlight=False)


def print_error(error: AlulaError) -> None:
    """Three lines: what happened, why, what to do."""
    console = messages()
    for label, style, text in (
        ("error", "bold red", error.what),
        ("  why", "bold", error.why),
        ("  fix", "bold", error.fix),
    ):
        line = Text.assemble((f"{label}: ", style), " ".join(text.split()))
        console.print(line, soft_wrap=True)


def print_error_json(error: AlulaError) -> None:
    """The same for a program, which reads it where it expected the answer."""
    parts = {"what": error.what, "why": error.why, "fix": error.fix}
    print_json({"error": {**parts, "exit_code": error.exit_code}})


def print_json(value: object) -> None:
    """One JSON value on one line of standard output, escaped where the encoding lacks something."""
    encoding = sys.stdout.encoding or "utf-8"  # a text in memory has none
    escaped = not encoding.lower().startswith("utf")
    sys.stdout.write(json.dumps(value, ensure_ascii=escaped) + "\n")
    sys.stdout.flush()


def print_text(text: str, style: str = "") -> None:
    """One piece of text on standard output, styled where it is a terminal."""
    Console(highlight=False).print(Text(text, style=style), soft_wrap=True)


def print_dim(lines: Iterable[str]) -> None:
    """Remarks beside the answer."""
    console = messages()
    for line in lines:
        console.print(Text(line, style="dim"), soft_wrap=True)


def print_help_alone(context: typer.Context) -> None:
    """The help of a group of commands, where none of them was named."""
    if context.invoked_subcommand is None:
        sys.stdout.write(context.get_help() + "\n")


@contextmanager
def progress_bar(description: str, total: int, /) -> Iterator[Task]:
    """One bar while work is under way, gone afterwards; in a pipe a plain line now and then.

    A `total` of 0: the end is not known, and something turns.
    """
    console = messages()
    if not console.is_terminal:
        with _Lines(description, total) as lines:
            yield lines
    elif total:
        yield from _bar(console, description, total)
    else:
        from alula.models.progress import silent

        with console.status(description), silent(description, total) as task:
            yield task


def _bar(console: Console, description: str, total: int) -> Iterator[Task]:
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), Remaining())
    with Progress(*columns, console=console, transient=True) as bars:
        yield _Bar(bars, bars.add_task(description, total=total))


class _Bar:
    def __init__(self, bars: Progress, task: TaskID) -> None:
        self._bars = bars
        self._task = task

    def advance(self, amount: int, /) -> None:
        self._bars.advance(self._task, amount)


class _Lines:
    """Progress for a log: work that is over soon says nothing, long work less and less often."""

    def __init__(self, description: str, total: int) -> None:
        self._description = description
        self._total = total
        self._done = 0
        self._began = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Task:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def advance(self, amount: int, /) -> None:
        self._done += amount

    def _run(self) -> None:
        patience = _FIRST_LINE_SECONDS
        while not self._over.wait(patience):
            with suppress(OSError, ValueError):  # a log that is full or closed stops no work
                sys.stderr.write(f"{self._told(time.monotonic() - self._began)}\n")
                sys.stderr.flush()
            patience = min(2 * patience, _BETWEEN_LINES_SECONDS)

    def _told(self, seconds: float) -> str:
        if not self._total:
            return f"{self._description}: {seconds:.0f} s so far"
        told = f"{self._description}: {self._done / self._total:.0%} after {seconds:.0f} s"
        if not 0 < self._done < self._total:
            return told
        return f"{told}, about {seconds * (self._total / self._done - 1):.0f} s left"
