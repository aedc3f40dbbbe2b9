"""The package indexes that a plan reads, by name. A package is taken from one of them, never from
whichever offers the highest version."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from alula.errors import UsageError


@dataclass(frozen=True)
class Index:
    """One index: where it is, and what is taken from it."""

    name: str
    address: str
    """As it was given, with credentials where there are any; it is never shown."""
    cuda: str = ""
    """The CUDA that everything in it is built for, as "cu130"; "" for an index of everything."""
    packages: tuple[str, ...] = ()
    """What is taken from it; () is all that no other index is named for."""
    nightly: bool = False
    """Read only where a decision names it."""

    @property
    def url(self) -> str:
        """Its address without credentials, ending in a slash."""
        parts = urlsplit(self.address)
        host = parts.netloc.rpartition("@")[2]
        return urlunsplit((parts.scheme, host, f"{parts.path.rstrip('/')}/", "", ""))

    def serves(self, package: str) -> bool:
        """Whether a package may be taken from it."""
        return not self.packages or package in self.packages


def known_indexes() -> tuple[Index, ...]:
    """The public indexes that ship with alula."""
    text = (files("alula.stack") / "data" / "indexes.toml").read_text("utf-8")
    return tuple(
        Index(
            entry["name"],
            entry["url"],
            entry.get("cuda", ""),
            tuple(entry.get("packages", ())),
            entry.get("nightly", False),
        )
        for entry in tomllib.loads(text)["index"]
    )


def chosen_indexes(given: Sequence[str]) -> tuple[Index, ...]:
    """The indexes of a command line: `NAME=ADDRESS`, or the name of a known one.

    Where any is given, only those are read; one of a known name keeps its packages and its CUDA.
    Raises UsageError for what is neither.
    """
    known = {index.name: index for index in known_indexes()}
    if not given:
        return tuple(known.values())
    found: dict[str, Index] = {}
    for text in given:
        name, _, address = text.partition("=")
        if not address and name not in known:
            raise UsageError(
                f"--index {name!r} is not known",
                "it is neither NAME=ADDRESS nor the name of an index that ships with alula",
                f"name one of {', '.join(known)}, or write for example mine=https://host/simple/",
            )
        base = known.get(name, Index(name, ""))
        found[name] = replace(base, address=_checked(address)) if address else base
    return tuple(found.values())


def _checked(address: str) -> str:
    if urlsplit(address).scheme in ("http", "https", "file"):
        return address
    if Path(address).is_dir():
        return Path(address).resolve().as_uri()
    raise UsageError(
        "an --index has no address that can be read",
        "an index is read over http, https or from a folder",
        "write NAME=https://host/simple/ or NAME=/a/folder",
    )


def binding_of(package: str, cuda: str, indexes: Iterable[Index]) -> list[Index]:
    """Where a package may be taken from for a CUDA, best first; the first that has it is taken."""
    usable = [index for index in indexes if not index.nightly and index.serves(package)]
    own = [index for index in usable if index.cuda and index.cuda == cuda]
    named = [index for index in usable if not index.cuda and index.packages]
    return [*own, *named, *(index for index in usable if not index.cuda and not index.packages)]
