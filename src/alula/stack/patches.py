"""Local changes made again in a new environment: the clean ones, up to the first that is not."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from alula.errors import MachineError, UsageError
from alula.machine.environment import Environment, environment_at, read_text
from alula.models.progress import Progress, silent
from alula.stack.patches_edits import content_there, merged_edit
from alula.stack.patches_git import Git, make_independent
from alula.stack.patches_preview import Series, preview
from alula.stack.patches_records import (
    SERIES,
    Change,
    Judged,
    Kind,
    Snapshot,
    Source,
    Standing,
    read_snapshot,
)
from alula.stack.patches_target import Target
from alula.stack.recorded import hash_of

RECORD = "alula-patches.json"
"""In the environment: the files that were changed on purpose, each with its hash."""


@dataclass(frozen=True, slots=True)
class Reapplied:
    """What was done, and where it stopped."""

    done: tuple[Judged, ...]
    stopped: Judged | None = None
    left: tuple[Judged, ...] = ()
    """What was not looked at any more."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Those that are kept, to be set where the environment is used."""
    written: tuple[str, ...] = ()
    """Files and folders that are now in the environment."""


def reapply(
    prefix: Path, folder: Path, target: Target | None = None, watch: Progress = silent
) -> Reapplied:
    """Make the changes of the snapshot in `folder` again in the environment at `prefix`.

    They are previewed first. Nothing at or behind the first change that conflicts, was not
    previewed or is only in site-packages is made; a second run finds what the first has done.
    Raises UsageError where `prefix` is the environment that the changes come from.
    """
    snapshot = read_snapshot(folder)
    environment = environment_at(prefix)
    if environment.prefix == Path(snapshot.environment).resolve():
        raise UsageError(
            f"{prefix} is the environment that these changes come from",
            "they are in it already",
            "name the new environment",
        )
    target = replace(target or Target(), environment=environment)
    judged = preview(snapshot, folder, target, watch)
    end = next((n for n, each in enumerate(judged) if each.stops), len(judged))
    done, rest = judged[:end], judged[end:]
    writer = _Writer(environment, folder, snapshot, target)
    written = [path for source in snapshot.sources for path in writer.checkout(source, done)]
    written += [path for each in done for path in writer.make(each)]
    _note(environment.prefix, folder, done, written)
    kept = {each.change.what for each in done if each.standing is Standing.KEEP}
    return Reapplied(
        done,
        rest[0] if rest else None,
        rest[1:],
        {name: value for name, value in snapshot.variables.items() if name in kept},
        tuple(written),
    )


class _Writer:
    """Writes into one environment, never through a link to a file that others share."""

    def __init__(
        self, environment: Environment, folder: Path, snapshot: Snapshot, target: Target
    ) -> None:
        self.environment, self.folder = environment, folder
        self.snapshot, self.target = snapshot, target
        self.site = environment.sites[0]

    def make(self, judged: Judged) -> list[str]:
        """One change that is no part of a checkout; the paths that were written."""
        change, standing = judged.change, judged.standing
        if change.kind is Kind.EDIT and standing is Standing.APPLIED:
            return [self._edit(change)]
        if change.kind is Kind.STRAY and standing is Standing.KEEP:
            return self._copy(change)
        if change.kind is Kind.BUILT and standing is Standing.KEEP:
            return self._unpack(change)
        return []

    def _edit(self, change: Change) -> str:
        owner, there = self.environment.find(change.package), content_there(change, self.target)
        assert owner is not None and there is not None  # the preview has found them
        content = merged_edit(change, self.folder, self.target, there)
        assert content is not None
        path = owner.site / change.files[0]
        self._write(path, content)
        return str(path)

    def _copy(self, change: Change) -> list[str]:
        saved = self.folder / change.saved
        written = []
        for file in change.files:
            path = saved / Path(file).relative_to(change.place) if saved.is_dir() else saved
            if path.is_file():  # a link that leads nowhere is no file
                self._write(self._below(file), path.read_bytes())
                written.append(str(self.site / file))
        return written

    def _unpack(self, change: Change) -> list[str]:
        with zipfile.ZipFile(self.folder / change.saved) as archive:
            names = [name for name in archive.namelist() if not name.endswith("/")]
            paths = {name: self._below(name) for name in names}
            for name, path in paths.items():
                self._write(path, archive.read(name))
        return [str(path) for path in paths.values()]

    def _below(self, file: str) -> Path:
        path = self.site / file
        if ".." in path.parts or Path(file).is_absolute():
            raise MachineError(
                f"{file} does not lie in site-packages",
                f"the snapshot in {self.folder} names it",
                "make the snapshot again",
            )
        return path

    def _write(self, path: Path, content: bytes) -> None:
        """A file anew: an installer may have linked the old one to its cache."""
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
        partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}.partial")
        partial.write_bytes(content)
        partial.chmod(mode)
        partial.replace(path)

    def checkout(self, source: Source, done: tuple[Judged, ...]) -> list[str]:
        """A checkout of the target with the changes that merge, and the path to import it by."""
        mine = [each for each in done if each.change.package == source.package]
        mine = [each for each in mine if each.change.kind in SERIES]
        made = [e for e in mine if e.standing in (Standing.APPLIED, Standing.REBUILD)]
        if not made:
            return []
        place = self.environment.prefix / "src" / source.package
        partial = place.with_name(f".{source.package}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        tree = self._commit_series(source, [each.change for each in made], partial)
        inside = self._import_root(source, partial)
        if place.exists():
            self._check_same(place, tree)
            shutil.rmtree(partial)
        else:
            partial.replace(place)
        if any(each.standing is Standing.REBUILD for each in made):
            return [str(place)]
        return [str(place), self._path_file(source, place / inside)]

    def _commit_series(self, source: Source, changes: list[Change], folder: Path) -> str:
        scratch = folder / ".git-scratch"
        scratch.mkdir()
        series = Series(source, self.folder, self.target, scratch)
        list(series.judge(changes))
        git = series.git
        tip = git.commit(series.start, message=series.name)
        git("update-ref", f"refs/tags/{series.tag}", tip)  # the next upgrade counts from here
        for change in changes:
            step = series.steps[change.id]
            tip = git.commit(step, tip, message=change.message, author=change.author)
        git("update-ref", "refs/heads/local-changes", tip)
        git("symbolic-ref", "HEAD", "refs/heads/local-changes")
        make_independent(git)
        git("config", "core.bare", "false")
        (scratch / "git").rename(folder / ".git")
        shutil.rmtree(scratch)
        inside = Git(folder / ".git", {"GIT_WORK_TREE": str(folder)})
        inside("-C", str(folder), "reset", "--hard", "-q", tip)
        return inside.tree_of(tip)

    def _check_same(self, place: Path, tree: str) -> None:
        git = Git(place / ".git", {"GIT_WORK_TREE": str(place)})
        clean = not git.ask("-C", str(place), "status", "--porcelain")
        if not clean or git.ask("rev-parse", "HEAD^{tree}") != tree:
            raise UsageError(
                f"{place} holds something else already",
                "it is not what the changes of this snapshot come to",
                "move it away, or commit it elsewhere, and run this again",
            )

    def _import_root(self, source: Source, folder: Path) -> Path:
        """Where below a checkout its modules lie, found by those that the package installs."""
        there = self.environment.find(source.package)
        modules = [f for f in there.files if f.endswith("/__init__.py")] if there else []
        modules = [file for file in modules if file.count("/") == 1]
        roots = [folder / source.prefix]
        roots += sorted({path.parent.parent for path in folder.rglob("__init__.py")})
        for root in roots:
            if not modules or any((root / module).is_file() for module in modules):
                return root.relative_to(folder)
        raise MachineError(
            f"the checkout of {source.package} cannot be put before the package",
            f"{modules[0]}, which the package installs, lies nowhere in it",
            f"leave its changes behind with --drop, or build {source.package} from {source.top}",
        )

    def _path_file(self, source: Source, root: Path) -> str:
        """A `.pth` by which the checkout comes before the package that was installed."""
        path = self.site / f"alula_{source.package}.pth"
        folder = json.dumps(str(root))
        self._write(path, f"import sys; sys.path.insert(0, {folder})\n".encode())
        return str(path)


def _note(prefix: Path, folder: Path, done: tuple[Judged, ...], written: list[str]) -> None:
    """Say in the environment what was changed on purpose."""
    noted = changed_on_purpose(prefix)
    files = (Path(path) for path in written if Path(path).is_file())
    noted |= {os.path.relpath(path, prefix): hash_of(path) for path in files}
    changes = [{"id": each.change.id, "standing": each.standing} for each in done]
    value = {"snapshot": str(folder.resolve()), "changes": changes, "files": noted}
    partial = prefix / f"{RECORD}.partial"
    partial.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")
    partial.replace(prefix / RECORD)


def changed_on_purpose(prefix: Path) -> dict[str, str]:
    """Files of an environment that `reapply` wrote, relative to it, with their hashes."""
    try:
        files = json.loads(read_text(prefix / RECORD) or "{}").get("files", {})
        return {str(name): str(value) for name, value in files.items()}
    except (ValueError, AttributeError):
        return {}
