"""What somebody has changed in an environment by hand, found without running anything of it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from shutil import copy2, copytree

from alula.errors import MachineError, UsageError
from alula.machine.environment import Environment, canonical
from alula.machine.source import is_file
from alula.models.progress import Progress, silent
from alula.stack.patches_built import built_here, compiled_of
from alula.stack.patches_checkouts import places, read_checkout
from alula.stack.patches_records import Change, Kind, Snapshot, Source, write_snapshot
from alula.stack.recorded import Differing, differing, size_of, unowned


@dataclass(frozen=True)
class Named:
    """What no search finds, so that a person names it."""

    checkouts: Mapping[str, Path] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    scripts: Sequence[Path] = ()
    built: Sequence[str] = ()
    """Packages known to be on no index."""


def find(
    environment: Environment, folder: Path, named: Named | None = None, watch: Progress = silent
) -> Snapshot:
    """Every local change of an environment, each saved in `folder`, which holds the snapshot.

    Nothing of the environment or of a checkout is written to. Raises UsageError for a script or a
    checkout that is not there, and where `folder` lies in what is looked at.
    """
    named = named or Named()
    _check(environment, folder, named)
    _make(folder)
    sources, changes = _checkouts(environment, folder, named, watch)
    with watch("comparing files with their RECORD", size_of(environment)) as task:
        changed = differing(environment, task.advance)
    changes += [_edit(each, folder) for each in changed]
    changes += _strays(environment, folder, sources, watch)
    changes += built_here(environment, folder, named.built, watch)
    changes += [_variable(name) for name in named.variables]
    changes += [_script(path, folder) for path in named.scripts]
    snapshot = Snapshot(
        environment=str(environment.prefix),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        python=environment.python,
        changes=tuple(_with_own_ids(changes)),
        sources=tuple(sources),
        variables=dict(named.variables),
        notes=tuple(_without_record(environment)),
    )
    write_snapshot(folder, snapshot)
    return snapshot


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MachineError(
            f"a snapshot cannot be written to {folder}",
            error.strerror or str(error),
            "name another folder with --snapshot",
        ) from error


def _with_own_ids(changes: Sequence[Change]) -> Iterator[Change]:
    """Two scripts of one name, or a file in two sites, are two changes."""
    seen: dict[str, int] = {}
    for change in changes:
        seen[change.id] = number = seen.get(change.id, 0) + 1
        yield change if number == 1 else replace(change, id=f"{change.id} ({number})")


def _check(environment: Environment, folder: Path, named: Named) -> None:
    inside = [environment.prefix, *named.checkouts.values()]
    if any(folder.resolve().is_relative_to(each.resolve()) for each in inside):
        raise UsageError(
            f"a snapshot cannot lie in {folder}",
            "it would change what it is a snapshot of",
            "name a folder outside of the environment and of its checkouts",
        )
    wanted = {canonical(name) for name in named.built}
    if missing := sorted(wanted - set(environment.distributions)):
        raise UsageError(
            f"{missing[0]} is not installed in {environment.prefix}",
            "it was named as a package of no index",
            "name a package of that environment",
        )
    for path in named.scripts:
        if not is_file(path):
            raise UsageError(
                f"there is no script {path}", "it is not a file", "name the script that you start"
            )
    for name, path in named.checkouts.items():
        if not path.is_dir():
            raise UsageError(
                f"there is no checkout of {name} at {path}",
                "it is not a folder",
                "name the folder that git works in",
            )


def _checkouts(
    environment: Environment, folder: Path, named: Named, watch: Progress
) -> tuple[list[Source], list[Change]]:
    found = places(environment, named.checkouts)
    sources, changes = list[Source](), list[Change]()
    with watch("reading checkouts", len(found)) as task:
        for place in found:
            for source, own in read_checkout(place, folder):
                sources.append(source)
                changes += own
            task.advance(1)
    return sources, changes


def _edit(each: Differing, folder: Path) -> Change:
    owner = each.distribution
    key = canonical(owner.name)
    found = "it is gone" if not each.found else "its hash differs from RECORD"
    change = Change(
        id=f"{key}:{each.file}",
        kind=Kind.EDIT,
        what=f"{each.file} {'removed' if not each.found else 'edited'}",
        package=key,
        files=(each.file,),
        where=str(each.path),
        evidence=f"{found} in {owner.info.name}",
        recorded=each.recorded,
        version=owner.version,
        compiled=compiled_of([each.file]),
    )
    return _saved(change, each.path, folder) if each.found else change


def _without_record(environment: Environment) -> Iterator[str]:
    for key, owner in environment.distributions.items():
        if not owner.files and not owner.is_editable:
            yield f"{key} has no RECORD: edits of its files cannot be seen"


def _strays(
    environment: Environment, folder: Path, sources: Sequence[Source], watch: Progress
) -> Iterator[Change]:
    mine = {f"alula_{source.package}" for source in sources}
    found = list(unowned(environment))
    with watch("saving files of no package", len(found)) as task:
        for site, file in found:
            yield from _stray(site, file, folder, mine)
            task.advance(1)


def _stray(site: Path, file: str, folder: Path, mine: set[str]) -> Iterator[Change]:
    path = site / file
    if path.suffix == ".pth" and path.stem in mine:
        return  # alula's own, to a checkout whose changes are told
    inside = [p.relative_to(site).as_posix() for p in sorted(path.rglob("*")) if p.is_file()]
    files = inside if file.endswith("/") else [file]
    change = Change(
        id=f"site:{file}",
        kind=Kind.STRAY,
        what=f"{file} ({len(files)} files)" if file.endswith("/") else file,
        files=tuple(files),
        where=str(path),
        place=file,
        evidence="no RECORD lists it",
        compiled=compiled_of(files),
    )
    yield _saved(change, path, folder)


def _variable(name: str) -> Change:
    return Change(id=f"env:{name}", kind=Kind.VARIABLE, what=name, evidence="it was named")


def _script(path: Path, folder: Path) -> Change:
    change = Change(
        id=f"script:{path.name}",
        kind=Kind.SCRIPT,
        what=path.name,
        files=(path.name,),
        where=str(path.resolve()),
        evidence="it was named",
    )
    return _saved(change, path, folder)


def _saved(change: Change, path: Path, folder: Path) -> Change:
    """The same change, with a copy of its file or folder in the snapshot."""
    name = hashlib.sha256(os.fsencode(f"{change.id} {path}")).hexdigest()[:16]
    target = folder / "files" / name / path.name
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        copytree(path, target, symlinks=True, dirs_exist_ok=True)
    else:
        copy2(path, target, follow_symlinks=path.is_file())
    return replace(change, saved=target.relative_to(folder).as_posix())
