"""Files that were edited where they were installed, merged with what the target has."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from alula.machine.environment import canonical
from alula.stack.patches_git import merge_file
from alula.stack.patches_records import Change, Judged, Standing
from alula.stack.patches_target import Target
from alula.stack.recorded import hash_of_bytes


class NoOriginalError(Exception):
    """The file that was edited is not at hand as it was before."""


def judge_edit(change: Change, folder: Path, target: Target) -> Judged:
    """What becomes of a file that was edited, or removed, in site-packages."""
    if not target.known:
        return Judged(change, Standing.ONLY_THERE, "no target was named")
    version = target.version(change.package)
    if not version:
        return Judged(change, Standing.OBSOLETE, f"the target has no {change.package}")
    name, (file,) = f"{change.package} {version}", change.files
    try:
        there = content_there(change, target)
    except FileNotFoundError:
        reason = f"{name} is neither installed nor in a folder named by --wheels"
        return Judged(change, Standing.ONLY_THERE, reason)
    if there is None:
        gone = Standing.OBSOLETE if change.saved else Standing.UPSTREAM
        return Judged(change, gone, f"{name} has no {file}")
    if not change.saved:
        return Judged(change, Standing.CONFLICT, f"{name} has the file that was removed", (file,))
    return _judge_content(change, folder, target, there, name)


def _judge_content(change: Change, folder: Path, target: Target, there: bytes, name: str) -> Judged:
    if there == (folder / change.saved).read_bytes():
        return Judged(change, Standing.UPSTREAM, f"{name} has the same file")
    if change.compiled:
        return Judged(change, Standing.REBUILD, f"it is machine code that {name} has another of")
    try:
        merged = merged_edit(change, folder, target, there)
    except NoOriginalError:
        reason = (
            f"{name} has another {change.files[0]}, and no folder named by --wheels has the "
            f"wheel of {change.package} {change.version}, with the original to merge from"
        )
        return Judged(change, Standing.ONLY_THERE, reason)
    if merged is None:
        return Judged(change, Standing.CONFLICT, f"{name} changed the same lines", change.files)
    if merged == there:
        return Judged(change, Standing.UPSTREAM, f"{name} has the edit already")
    return Judged(change, Standing.APPLIED, f"it merges into {name}")


def content_there(change: Change, target: Target) -> bytes | None:
    """The file as the target has it, None where it has none.

    FileNotFoundError where the target is neither installed nor there as a wheel.
    """
    if owner := target.find(change.package):
        path = owner.site / change.files[0]
        return path.read_bytes() if path.is_file() else None
    wheel = _wheel(change.package, target.version(change.package), target.wheels)
    if wheel is None:
        raise FileNotFoundError(change.package)
    return _member(wheel, change.files[0])


def merged_edit(change: Change, folder: Path, target: Target, there: bytes) -> bytes | None:
    """The target's file with the edit in it, None for a conflict; NoOriginalError."""
    edited = folder / change.saved
    if hash_of_bytes(there) == change.recorded:
        return edited.read_bytes()
    wheel = _wheel(change.package, change.version, target.wheels)
    original = _member(wheel, change.files[0]) if wheel else None
    if original is None or hash_of_bytes(original) != change.recorded:
        raise NoOriginalError(change.id)
    with tempfile.TemporaryDirectory() as scratch:
        ours, base = Path(scratch, "ours"), Path(scratch, "base")
        ours.write_bytes(there)
        base.write_bytes(original)
        return merge_file(ours, base, edited)


def _wheel(package: str, version: str, folders: Sequence[Path]) -> Path | None:
    for folder in folders:
        for wheel in sorted(folder.glob("**/*.whl")):
            name, found = [*wheel.name.split("-"), ""][:2]
            if canonical(name) == package and found == version:
                return wheel
    return None


def _member(wheel: Path, file: str) -> bytes | None:
    """A file of a wheel, None where it has none."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            return archive.read(file)
    except (KeyError, zipfile.BadZipFile):
        return None
