"""`alula stack apply`, `switch`, `rollback`, `run`, `adopt`, `prune`: environments that exist."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from alula.cli import options, stack_options
from alula.cli.console import messages, print_dim, print_json, print_text, progress_bar
from alula.cli.stack_history import counted
from alula.errors import UsageError

if TYPE_CHECKING:
    from alula.models.progress import Task
    from alula.stack.link import Move
    from alula.stack.places import Places


Name = Annotated[
    str | None, typer.Option(help="Call the environment this.", metavar="NAME", show_default=False)
]


def apply(
    lock: Annotated[Path, typer.Argument(help="What alula stack plan wrote.", metavar="LOCK")],
    name: Name = None,
    python: Annotated[
        Path | None,
        typer.Option(help="The interpreter to build it with, by default found.", metavar="PATH"),
    ] = None,
    snapshot: Annotated[
        Path | None,
        typer.Option(
            help="Local changes that alula stack patches saved; by default those of the current "
            "environment are looked for.",
            metavar="FOLDER",
        ),
    ] = None,
    drop: stack_options.Drop = None,
    upstream: stack_options.Upstream = None,
    wheels: stack_options.Wheels = None,
    without_changes: Annotated[
        bool, typer.Option("--without-changes", help="Leave all local changes behind.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Build the environment of a lock beside all others; nothing is switched to it.

    Wheels only, each by its address and hash; every one is looked through before anything is
    written. Then the local changes of the current environment are made again. Ended at any
    moment, the same command goes on. Exits with 8 where a wheel is refused, and with 1 where a
    local change has to be decided first.
    """
    from alula.cost.units import size
    from alula.stack.build import apply as build
    from alula.stack.changes import Wanted, told
    from alula.stack.lock import Lock
    from alula.stack.places import stack_home

    began = time.monotonic()
    wanted = Wanted(
        snapshot,
        frozenset(drop or ()),
        stack_options.repositories(upstream),
        stack_options.folders(wheels, "--wheels"),
        without_changes,
    )
    applied = build(stack_home(), Lock.read(lock), _progress, name, python, wanted)
    record, seconds = applied.record, time.monotonic() - began
    packages = len(record.lock.packages) if record.lock else 0
    if json:
        print_json(
            {
                "environment": record.name,
                "path": str(record.path),
                "built": applied.built,
                "packages": packages,
                "python": record.python,
                "size_bytes": record.size_bytes,
                "seconds": seconds,
                "notes": applied.notes,
                "changes": [each.model_dump() for each in record.changes],
            }
        )
        return
    if applied.built:
        about = f"{counted(packages, 'package')}, Python {record.python}, {size(record.size_bytes)}"
        print_text(f"{record.name} is built: {about}, in {seconds:.1f} s")
    else:
        print_text(f"{record.name} was built already, from the same lock")
    for note in applied.notes:
        print_text(f"  {note}")
    if record.changes:
        print_text(f"  {counted(len(record.changes), 'local change')}: {told(record.changes)}")
    for each in record.changes:
        print_text(f"    {each.standing}: {each.id}: {each.reason}")
    print_text(f"  {record.path}")
    print_text(f"  use it: alula stack switch {record.name}")


@contextmanager
def _progress(description: str, total: int, /) -> Iterator[Task]:
    """A bar on a terminal, a line elsewhere: a build takes minutes, and logs are read too."""
    if not messages().is_terminal:
        print_dim([f"{description} …"])
    with progress_bar(description, total) as task:
        yield task


def switch(
    environment: Annotated[
        str, typer.Argument(help="One that alula stack list shows.", metavar="ENV")
    ],
    json: options.Json = False,
) -> None:
    """Make an environment the current one, by one rename; processes that run stay in theirs."""
    from alula.stack import link
    from alula.stack.places import stack_home

    places = stack_home()
    _print_move(places, link.switch(places, environment), json)


def rollback(json: options.Json = False) -> None:
    """Go back to the environment before the latest switch; needs no network."""
    from alula.stack import link
    from alula.stack.places import stack_home

    places = stack_home()
    _print_move(places, link.rollback(places), json)


def _print_move(places: Places, move: Move, json: bool) -> None:
    if json:
        probed = move.probed.model_dump(mode="json") if move.probed else None
        print_json(
            {
                "current": move.after,
                "before": move.before,
                "changed": move.changed,
                "probed": probed,
            }
        )
    elif not move.changed:
        print_text(f"{move.after} is the current environment already")
    else:
        was = f", was {move.before}" if move.before else ""
        print_text(f"current is {move.after}{was}; {_of_probe(move)}")
        print_text(f"  {places.current}")
        if move.probed is None:
            print_text(f"  try it: alula stack probe {move.after}")


def _of_probe(move: Move) -> str:
    if move.probed is None:
        return "it was never probed"
    said = {"passed": "holds", "failed": "failed", "not run": "nothing failed, not all was run"}
    return f"its probe of {move.probed.at:%Y-%m-%d %H:%M}: {said[move.probed.result]}"


def run(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            help="What to run, after --; without it the variables are shown.", metavar="COMMAND"
        ),
    ] = None,
    env: Annotated[
        str | None,
        typer.Option(help="Run in this one instead of the current one.", metavar="ENV"),
    ] = None,
    json: options.Json = False,
) -> None:
    """Run a command in the current environment, where it stays whatever is switched later.

    It gets the environment's own toolkit and compiler caches. Its output and exit code are those
    of the command.
    """
    from alula.stack.launch import prepare
    from alula.stack.places import stack_home

    if command and json:
        raise UsageError(
            "--json stands without a COMMAND",
            "what a command writes is its own",
            "leave out --json, or the command to see the variables",
        )
    launch = prepare(stack_home(), env, os.environ)
    found = launch.variables
    if command:
        print_dim(found.notes)
        _become(command, found.applied(os.environ))
    name = launch.record.name
    if json:
        print_json(
            {
                "environment": name,
                "path": str(launch.record.path),
                "set": dict(found.set),
                "removed": found.removed,
                "handed_on": list(found.handed_on),
                "notes": found.notes,
            }
        )
        return
    print_text(f"# {name}: {len(found.set)} variables are set, {len(found.removed)} removed")
    for key, value in sorted(found.set.items()):
        print_text(f"export {key}={shlex.quote(value)}")
    for key in found.removed:
        print_text(f"unset {key}")
    for key in found.handed_on:
        print_text(f"# {key} is handed on too, its value is not shown")


def _become(command: list[str], environ: dict[str, str]) -> NoReturn:
    try:
        os.execvpe(command[0], command, environ)
    except OSError as error:
        raise UsageError(
            f"{command[0]} cannot be run",
            error.strerror or str(error),
            f"look for it in {environ['PATH'].partition(os.pathsep)[0]}",
        ) from error


def adopt(
    path: Annotated[
        Path, typer.Argument(help="A virtual environment or conda prefix.", metavar="PATH")
    ],
    name: Name = None,
    json: options.Json = False,
) -> None:
    """Record an environment that is there as the baseline, where it lies; it is never changed."""
    from alula.stack.adopt import adopt as record_it
    from alula.stack.places import stack_home

    adopted = record_it(stack_home(), path, name)
    record = adopted.record
    if json:
        print_json(
            {
                "environment": record.name,
                "path": str(record.path),
                "new": adopted.new,
                "packages": adopted.packages,
                "python": record.python,
                "current": adopted.current,
            }
        )
        return
    what = "is adopted" if adopted.new else "was adopted already"
    now = "; it is the current environment" if adopted.current else ""
    about = f"{counted(adopted.packages, 'package')}, Python {record.python or '?'}"
    print_text(f"{record.name} {what}: {about}{now}")
    print_text(f"  {record.path}")


def prune(
    keep: Annotated[int, typer.Option(help="Keep this many of the newest.", metavar="N")],
    json: options.Json = False,
) -> None:
    """Remove old environments, and the wheels that only they were built from.

    Never one that is current, that a rollback leads to, that a process runs in, or that was
    adopted.
    """
    from alula.cost.units import size
    from alula.stack.places import stack_home
    from alula.stack.prune import prune as remove

    pruned = remove(stack_home(), keep, progress_bar)
    if json:
        print_json(pruned._asdict() | {"kept": dict(pruned.kept)})
        return
    removed = f": {', '.join(pruned.removed)}" if pruned.removed else ""
    freed = f"{size(pruned.freed_bytes)} freed, {len(pruned.kept)} kept"
    print_text(f"{counted(len(pruned.removed), 'environment')} removed{removed}; {freed}")
    for name, reason in pruned.kept:
        print_text(f"  {name}  {reason}")
    if pruned.hidden:
        print_text(
            f"  {counted(pruned.hidden, 'process', 'processes')} of others could not be looked into"
        )
