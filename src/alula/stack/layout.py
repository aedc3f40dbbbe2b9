"""Where the files of wheels go in an environment, and which two would want the same place."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from alula.errors import PackageError
from alula.stack.contents import Contents

_OWN = re.compile(r"pyvenv\.cfg|bin/(?:python[0-9.]*|activate.*)|lib64")
"""Files of the virtual environment itself."""


class Place(NamedTuple):
    """One file in an environment."""

    path: str
    """Relative to the environment."""
    content: str
    """Its hash, or what the script calls: equal where two files are."""
    written: bool
    """As it lies in the wheel; scripts get the environment's interpreter as their first line."""


def site_packages(python: str) -> str:
    """Relative to a virtual environment of this Python, "3.12"."""
    return f"lib/python{python}/site-packages"


def places(contents: Contents, python: str) -> Iterator[Place]:
    """Every file of a wheel at its place."""
    stem = contents.info.removesuffix(".dist-info")
    site = site_packages(python)
    folders = {
        "purelib": site,
        "platlib": site,
        "scripts": "bin",
        "data": ".",
        "headers": f"include/site/python{python}/{contents.wheel.name}",
    }
    for name, member in contents.members.items():
        parts = PurePosixPath(name).parts
        inside = parts[0] == f"{stem}.data"
        folder = folders[parts[1]] if inside else site
        path = PurePosixPath(folder, *(parts[2:] if inside else parts))
        if path.parts[0] == "lib64":  # a link to lib
            path = PurePosixPath("lib", *path.parts[1:])
        written = not (inside and parts[1] == "scripts") and bool(member.sha256)
        yield Place(str(path), member.sha256, written)
    for command, call in contents.commands.items():
        yield Place(f"bin/{command}", call, False)


def check_owners(wheels: Sequence[Contents], python: str) -> None:
    """PackageError where two wheels own a file with unlike content, or one owns the environment's.

    Packages of one family bring the same `__init__.py`: that harms nobody.
    """
    owners: dict[str, tuple[str, str]] = {}
    for contents in wheels:
        for place in places(contents, python):
            owner = contents.wheel.filename
            if _OWN.fullmatch(place.path):
                raise _twice(place.path, "the environment itself", owner)
            other, content = owners.setdefault(place.path, (owner, place.content))
            if other != owner and content != place.content:
                raise _twice(place.path, other, owner)
    for path, (owner, _) in owners.items():
        for above in PurePosixPath(path).parents:
            if str(above) in owners:
                raise _twice(str(above), owners[str(above)][0], owner)


def _twice(path: str, one: str, other: str) -> PackageError:
    return PackageError(
        f"{path} is owned twice",
        f"{one} and {other} would both write it, and the later one would break the earlier",
        "nothing was written; plan without one of the two",
    )
