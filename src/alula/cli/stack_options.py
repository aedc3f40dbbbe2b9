"""Options that several commands of `alula stack` take."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from alula.errors import UsageError

if TYPE_CHECKING:
    from alula.stack.naming import Named

Upstream = Annotated[
    list[str] | None,
    typer.Option(
        help="A repository that has the tag of the target's release, where the checkout does "
        "not know it.",
        metavar="NAME=PATH",
    ),
]
Wheels = Annotated[
    list[Path] | None,
    typer.Option(
        help="A folder with the wheels of the old environment: the originals of edited files.",
        metavar="FOLDER",
    ),
]
Drop = Annotated[
    list[str] | None,
    typer.Option(help="Leave this change behind, by its id; may be repeated.", metavar="ID"),
]


def pairs(given: list[str] | None, option: str, mark: str) -> dict[str, str]:
    """Names and what belongs to them, as an option was given them."""
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


def repositories(given: list[str] | None) -> dict[str, Path]:
    """What --upstream was given, by canonical name."""
    from alula.machine.environment import canonical

    found = pairs(given, "--upstream", "=")
    paths = {canonical(name): Path(path) for name, path in found.items()}
    folders(list(paths.values()), "--upstream")
    return paths


def folders(given: list[Path] | None, option: str) -> list[Path]:
    """Folders that an option was given, all of which are there."""
    for path in given or ():
        if not path.is_dir():
            raise UsageError(
                f"{option} {path} is no folder", "something is to be read from it", "name one"
            )
    return given or []


def environment_named(text: str) -> Named:
    """A recorded environment, `current`, `baseline` or a path."""
    from alula.stack.naming import named
    from alula.stack.places import stack_home

    return named(stack_home(), text)
