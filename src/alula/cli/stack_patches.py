"""`alula stack patches`: what was changed by hand, and what becomes of it on the target."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from alula.cli import stack_options
from alula.cli.console import print_json, print_text, progress_bar
from alula.cli.stack_options import environment_named, pairs
from alula.errors import UsageError

if TYPE_CHECKING:
    from alula.stack.changes import Wanted
    from alula.stack.patches_records import Judged, Snapshot
    from alula.stack.patches_target import Target

_STOPS = 1


def patches(
    environment: Annotated[
        str | None,
        typer.Argument(
            help="The environment to look at: current, baseline, a name of alula stack list or a "
            "folder; by default alula's own.",
            metavar="[ENV]",
            show_default=False,
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(help="The environment that the changes are to come into.", metavar="ENV"),
    ] = None,
    lock: Annotated[
        Path | None,
        typer.Option(
            help="What alula stack plan wrote, where the target is not built yet.", metavar="LOCK"
        ),
    ] = None,
    to: Annotated[
        list[str] | None,
        typer.Option(help="A version that the target has; may be repeated.", metavar="NAME==V"),
    ] = None,
    upstream: stack_options.Upstream = None,
    wheels: stack_options.Wheels = None,
    checkout: Annotated[
        list[str] | None,
        typer.Option(help="A checkout that nothing points at.", metavar="NAME=PATH"),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(
            help="An environment variable that belongs to the system, with its value or as it is "
            "set here.",
            metavar="NAME[=VALUE]",
        ),
    ] = None,
    script: Annotated[
        list[Path] | None, typer.Option(help="A script that starts it.", metavar="FILE")
    ] = None,
    built: Annotated[
        list[str] | None,
        typer.Option(help="A package that was built here and is on no index.", metavar="NAME"),
    ] = None,
    drop: stack_options.Drop = None,
    snapshot: Annotated[
        Path | None,
        typer.Option(
            help="Where the changes are saved; by default a new folder of alula's cache.",
            metavar="FOLDER",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="The answer as JSON.")] = False,
) -> None:
    """Every local change of an environment, and what becomes of each on a target.

    Editable installs and checkouts beyond their release, files unlike their RECORD, files of no
    package, packages built here, variables and scripts that are named. All of it is saved; nothing
    of the environment, of a checkout or of the target is written to. Exits with 1 where something
    has to be decided before an upgrade goes on.
    """
    from alula.machine.environment import environment_at, own_environment
    from alula.stack.changes import Wanted, check_dropped
    from alula.stack.patches_find import Named, find
    from alula.stack.patches_preview import preview

    at = environment_named(environment).path if environment else None
    looked_at = environment_at(at) if at else own_environment()
    wanted = _target(
        target,
        lock,
        to,
        Wanted(
            None,
            frozenset(drop or ()),
            stack_options.repositories(upstream),
            stack_options.folders(wheels, "--wheels"),
        ),
    )
    named = Named(
        checkouts={name: Path(path) for name, path in pairs(checkout, "--checkout", "=").items()},
        variables=_variables(env),
        scripts=script or (),
        built=built or (),
    )
    folder = snapshot or _new_folder()
    found = find(looked_at, folder, named, progress_bar)
    check_dropped(found, wanted.dropped)
    judged = preview(found, folder, wanted, progress_bar)
    if json:
        print_json(_as_json(found, judged, folder))
    else:
        _print(found, judged, folder)
    if any(each.stops for each in judged):
        raise typer.Exit(_STOPS)


def _target(target: str | None, lock: Path | None, to: list[str] | None, wanted: Wanted) -> Target:
    """What is known of the target, of which --to has the last word."""
    from alula.machine.environment import canonical, environment_at
    from alula.stack.changes import target_of_lock
    from alula.stack.lock import Lock
    from alula.stack.places import stack_home

    there = environment_named(target) if target else None
    plan = Lock.read(lock) if lock else there.record.lock if there and there.record else None
    known = target_of_lock(plan, stack_home(), wanted)
    versions = {canonical(name): version for name, version in pairs(to, "--to", "==").items()}
    return replace(
        known,
        environment=environment_at(there.path) if there else None,
        versions={**(known.versions if lock else {}), **versions},
    )


def _variables(given: list[str] | None) -> dict[str, str]:
    found = {}
    for text in given or ():
        name, sign, value = text.partition("=")
        if not sign and name not in os.environ:
            raise UsageError(
                f"the variable {name} has no value",
                "it is not set in this shell",
                f"write --env {name}=VALUE",
            )
        found[name] = value if sign else os.environ[name]
    return found


def _new_folder() -> Path:
    from datetime import UTC, datetime

    from alula.models.home import cache_folder

    return cache_folder("patches") / datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")


def _as_json(snapshot: Snapshot, judged: Sequence[Judged], folder: Path) -> dict[str, Any]:
    from alula.machine.privacy import own_redactor
    from alula.machine.records import to_json

    shown = own_redactor()
    return {
        "verdict": _verdict(judged),
        "environment": snapshot.environment,
        "snapshot": str(folder),
        "changes": [
            {
                "standing": each.standing,
                "reason": shown.text(each.reason),
                "stops": each.stops,
                "conflicts": list(each.conflicts),
                **{
                    key: value
                    for key, value in to_json(each.change).items()
                    if key not in ("author", "message", "before", "after")
                },
            }
            for each in judged
        ],
        "notes": list(snapshot.notes),
    }


def _verdict(judged: Sequence[Judged]) -> str:
    if not judged:
        return "no local change was found"
    counts: dict[str, int] = {}
    for each in judged:
        counts[each.standing] = counts.get(each.standing, 0) + 1
    said = ", ".join(f"{number} {standing}" for standing, number in counts.items())
    stops = sum(each.stops for each in judged)
    wait = f"; {stops} to be decided before an upgrade" if stops else ""
    return f"{len(judged)} local change{'s' if len(judged) > 1 else ''}: {said}{wait}"


def _print(snapshot: Snapshot, judged: Sequence[Judged], folder: Path) -> None:
    from alula.machine.privacy import own_redactor

    shown = own_redactor()
    print_text(_verdict(judged), "bold")
    for each in judged:
        print_text(f"\n{each.standing}: {each.change.id}", "bold red" if each.stops else "bold")
        files = f", {len(each.change.files)} files" if len(each.change.files) > 1 else ""
        print_text(f"  {each.change.kind}: {each.change.what} ({each.change.evidence}{files})")
        print_text(f"  {shown.text(each.reason)}")
        for path in each.conflicts:
            print_text(f"  conflict in {path}")
    for note in snapshot.notes:
        print_text(f"\nnote: {note}")
    print_text(f"\nsaved in {folder}; nothing that was looked at was written to", "dim")
