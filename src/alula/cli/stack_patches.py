"""`alula stack patches`: what was changed by hand, and what becomes of it on the target."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from alula.cli.console import print_json, print_text, progress_bar
from alula.errors import UsageError

if TYPE_CHECKING:
    from alula.stack.patches_records import Judged, Snapshot
    from alula.stack.patches_target import Target

_STOPS = 1


def patches(
    environment: Annotated[
        Path | None,
        typer.Argument(
            help="The environment to look at; by default alula's own.",
            metavar="[ENV]",
            show_default=False,
        ),
    ] = None,
    target: Annotated[
        Path | None,
        typer.Option(help="The environment that the changes are to come into.", metavar="ENV"),
    ] = None,
    to: Annotated[
        list[str] | None,
        typer.Option(help="A version that the target has; may be repeated.", metavar="NAME==V"),
    ] = None,
    upstream: Annotated[
        list[str] | None,
        typer.Option(
            help="A repository that has the tag of the target's release, where the checkout does "
            "not know it.",
            metavar="NAME=PATH",
        ),
    ] = None,
    wheels: Annotated[
        list[Path] | None,
        typer.Option(
            help="A folder with the wheels of the environment: the originals of edited files.",
            metavar="FOLDER",
        ),
    ] = None,
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
    drop: Annotated[
        list[str] | None,
        typer.Option(help="Leave this change behind, by its id.", metavar="ID"),
    ] = None,
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
    from alula.stack.patches_find import Named, find
    from alula.stack.patches_preview import preview

    looked_at = environment_at(environment) if environment else own_environment()
    wanted = _target(target, to, upstream, wheels, drop)
    named = Named(
        checkouts={name: Path(path) for name, path in _pairs(checkout, "--checkout", "=").items()},
        variables=_variables(env),
        scripts=script or (),
        built=built or (),
    )
    folder = snapshot or _new_folder()
    found = find(looked_at, folder, named, progress_bar)
    judged = preview(found, folder, wanted, progress_bar)
    _check_dropped(judged, drop or ())
    if json:
        print_json(_as_json(found, judged, folder))
    else:
        _print(found, judged, folder)
    if any(each.stops for each in judged):
        raise typer.Exit(_STOPS)


def _target(
    target: Path | None,
    to: list[str] | None,
    upstream: list[str] | None,
    wheels: list[Path] | None,
    drop: list[str] | None,
) -> Target:
    from alula.machine.environment import canonical, environment_at
    from alula.stack.patches_target import Target

    versions = _pairs(to, "--to", "==")
    repositories = _pairs(upstream, "--upstream", "=")
    return Target(
        environment=environment_at(target) if target else None,
        versions={canonical(name): version for name, version in versions.items()},
        repositories={canonical(name): Path(path) for name, path in repositories.items()},
        wheels=wheels or (),
        dropped=frozenset(drop or ()),
    )


def _pairs(given: list[str] | None, option: str, mark: str) -> dict[str, str]:
    found = {}
    for text in given or ():
        name, sign, value = text.partition(mark)
        if not (name and sign and value):
            raise UsageError(
                f"{option} was given {text!r}",
                f"it takes a name and what belongs to it, with {mark} between",
                f"write {option} NAME{mark}…",
            )
        found[name] = value
    return found


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


def _check_dropped(judged: Sequence[Judged], dropped: Sequence[str]) -> None:
    known = {each.change.id for each in judged}
    if unknown := [name for name in dropped if name not in known]:
        raise UsageError(
            f"there is no change {unknown[0]!r} to drop",
            f"{len(known)} changes were found, and none has that id",
            "take an id from the list that alula stack patches prints",
        )


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
