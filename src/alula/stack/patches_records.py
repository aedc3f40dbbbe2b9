"""Local changes of an environment, what becomes of each, and the folder that they are saved in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from alula.errors import UsageError
from alula.machine.records import from_json, to_json

FORMAT = 1
_FILE = "snapshot.json"


class Kind(StrEnum):
    """Where a change was made."""

    COMMIT = "commit"
    UNCOMMITTED = "uncommitted changes"
    UNTRACKED = "untracked files"
    EDIT = "edit in site-packages"
    STRAY = "file of no package"
    BUILT = "locally built package"
    VARIABLE = "environment variable"
    SCRIPT = "launch script"


SERIES = (Kind.COMMIT, Kind.UNCOMMITTED, Kind.UNTRACKED)
"""Those of a checkout, which build on each other."""


class Standing(StrEnum):
    """What becomes of a change on the target."""

    APPLIED = "applied"
    UPSTREAM = "already upstream"
    CONFLICT = "conflict"
    OBSOLETE = "obsolete"
    ONLY_THERE = "only in site-packages"
    """Its original is not at hand, so that it cannot be merged with what the target has."""
    KEEP = "keep"
    REBUILD = "rebuild"
    DROP = "drop"
    NOT_PREVIEWED = "not previewed"


STOPS = (Standing.CONFLICT, Standing.ONLY_THERE, Standing.NOT_PREVIEWED)
"""What somebody has to decide before an upgrade goes on."""


@dataclass(frozen=True, slots=True)
class Change:
    """One local change."""

    id: str
    """Names it on the command line: "sglang:1a2b3c4d", "site:sitecustomize.py"."""
    kind: Kind
    what: str
    """In a person's words: a commit's subject, a file, NAME=value."""
    package: str = ""
    files: tuple[str, ...] = ()
    where: str = ""
    """The checkout, the folder or the file that it was found in."""
    place: str = ""
    """Of a file of no package: the path below site-packages, a folder's with a slash at its end."""
    evidence: str = ""
    """Why it counts as a local change."""
    before: str = ""
    after: str = ""
    """Trees in the snapshot's repository of this checkout."""
    commit: str = ""
    author: str = ""
    """Of a commit: name, address and time on a line each."""
    message: str = ""
    recorded: str = ""
    """The hash that RECORD has for the file."""
    version: str = ""
    """Of the package, in the environment that the change was found in."""
    compiled: tuple[str, ...] = ()
    """Machine code among its files."""
    saved: str = ""
    """Where the snapshot has it, relative to the snapshot."""


@dataclass(frozen=True, slots=True)
class Source:
    """A checkout that an environment imports from."""

    package: str
    top: str
    prefix: str = ""
    """The folder below `top` that modules are imported from, "" for `top` itself."""
    version: str = ""
    base: str = ""
    """The release that changes are counted from."""
    base_tree: str = ""
    head: str = ""
    base_commit: str = ""
    inside: str = ""
    """The package whose submodule it is."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that was found, and saved where `saved` says so."""

    environment: str
    created: str
    python: str = ""
    changes: tuple[Change, ...] = ()
    sources: tuple[Source, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    """Values of the variables that were named."""
    notes: tuple[str, ...] = ()
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class Judged:
    """A change and what becomes of it."""

    change: Change
    standing: Standing
    reason: str
    conflicts: tuple[str, ...] = ()

    @property
    def stops(self) -> bool:
        """Whether somebody has to decide first."""
        return self.standing in STOPS


def repository_of(folder: Path, package: str) -> Path:
    """The repository of a checkout's changes within a snapshot."""
    return folder / "checkouts" / f"{package}.git"


def write_snapshot(folder: Path, snapshot: Snapshot) -> None:
    """Write what was found; the last step of a snapshot, so that half of one is none."""
    partial = folder / f"{_FILE}.partial"
    partial.touch(mode=0o600)  # variables may hold keys
    partial.write_text(json.dumps(to_json(snapshot), indent=1, sort_keys=True) + "\n")
    partial.replace(folder / _FILE)


def is_snapshot(folder: Path) -> bool:
    """Whether a folder holds one that was written to its end."""
    return (folder / _FILE).is_file()


def read_snapshot(folder: Path) -> Snapshot:
    """A snapshot; UsageError where a folder holds none, or one that is damaged."""
    try:
        value: Any = json.loads((folder / _FILE).read_text())
        snapshot = from_json(Snapshot, value, "snapshot")
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(
            f"{folder} holds no snapshot of local changes",
            str(error),
            "make one with alula stack patches --snapshot FOLDER",
        ) from error
    if snapshot.format != FORMAT:
        raise UsageError(
            f"the snapshot in {folder} has format {snapshot.format}",
            f"this alula reads format {FORMAT}",
            "make it again with alula stack patches --snapshot FOLDER",
        )
    return snapshot
