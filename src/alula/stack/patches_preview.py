"""What becomes of each local change on a target, found without writing to anything."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from alula.models.progress import Progress, silent
from alula.stack.patches_decide import judge_built, judge_script, judge_stray, judge_variable
from alula.stack.patches_edits import judge_edit
from alula.stack.patches_git import (
    Checkout,
    Git,
    checkout_at,
    copy_trees,
    reader,
    repository_at,
)
from alula.stack.patches_records import (
    SERIES,
    Change,
    Judged,
    Kind,
    Snapshot,
    Source,
    Standing,
    repository_of,
)
from alula.stack.patches_target import Target


def preview(
    snapshot: Snapshot, folder: Path, target: Target, watch: Progress = silent
) -> tuple[Judged, ...]:
    """Class every change of the snapshot in `folder`; none is left out."""
    judged: dict[str, Judged] = {}
    with watch("trying changes on the target", len(snapshot.changes)) as task:
        for source in snapshot.sources:
            own = [c for c in snapshot.changes if c.kind in SERIES and c.package == source.package]
            with tempfile.TemporaryDirectory() as scratch:
                series = Series(source, folder, target, Path(scratch))
                judged |= {each.change.id: each for each in series.judge(own)}
            task.advance(len(own))
        for change in snapshot.changes:
            if change.kind not in SERIES:
                judged[change.id] = _judge(change, snapshot, folder, target)
                task.advance(1)
    decided = (_decided(judged[change.id], target) for change in snapshot.changes)
    return tuple(decided)


def _decided(judged: Judged, target: Target) -> Judged:
    if judged.change.id not in target.dropped or judged.standing is Standing.DROP:
        return judged
    return Judged(judged.change, Standing.DROP, f"as you decided; otherwise: {judged.standing}")


def _judge(change: Change, snapshot: Snapshot, folder: Path, target: Target) -> Judged:
    old = Path(snapshot.environment)
    there = target.environment
    match change.kind:
        case Kind.EDIT:
            return judge_edit(change, folder, target)
        case Kind.STRAY:
            return judge_stray(change, folder, old, there)
        case Kind.BUILT:
            offered = target.offered.get(change.package)
            return judge_built(change, there, target.version(change.package), offered)
        case Kind.VARIABLE:
            return judge_variable(change, snapshot.variables.get(change.what, ""), old)
        case _:
            return judge_script(change, folder, old)


class Series:
    """The changes of one checkout, tried one after the other on the release that is the target."""

    def __init__(self, source: Source, folder: Path, target: Target, scratch: Path) -> None:
        """`scratch` is a folder for the repositories that this works in."""
        self.source, self.target = source, target
        saved = repository_of(folder.resolve(), source.package)
        lender = Checkout(saved, Git(saved), saved / "objects")
        upstream = target.repositories.get(source.package)
        known = [repository_at(upstream) if upstream else None, checkout_at(Path(source.top))]
        self._repositories = [each for each in known if each is not None]
        self.history = reader(scratch / "history", [lender, *self._repositories])
        self.git = reader(scratch / "git", [lender])
        self.commit, self.name, self.tag = self._target_commit()
        if self.commit:
            copy_trees(self.history, self.git, [self.commit])
        self.start = self.tip = self.git.tree_of(self.commit) if self.commit else ""
        self.steps: dict[str, str] = {}
        """The tree after each change that merged, by its id."""

    def _target_commit(self) -> tuple[str, str, str]:
        version = self.target.version(self.source.package)
        names = (f"v{version}", version, f"{self.source.package}-v{version}")
        known = version and self.source.base_tree and not self.source.inside
        for repository in self._repositories if known else ():
            for name in names:
                if found := repository.git.commit_of(f"refs/tags/{name}"):
                    return found, f"{self.source.package} {version}", name
        return "", "", ""

    def judge(self, changes: Sequence[Change]) -> Iterator[Judged]:
        """What becomes of each; those that merge cleanly are part of what the next meets."""
        upstream = self._upstream() if self.commit and changes else frozenset()
        refused: dict[str, Change] = {}
        for change in changes:
            if change.id in self.target.dropped:
                refused |= dict.fromkeys(change.files, change)
                yield Judged(change, Standing.DROP, "as you decided")
            elif self.source.base_tree and not change.before:
                reason = "which of its commits are yours is not known: git fetch --tags"
                yield Judged(change, Standing.NOT_PREVIEWED, reason)
            elif not self.commit:
                yield Judged(change, *self._without_target())
            elif change.commit in upstream:
                yield Judged(change, Standing.UPSTREAM, f"{self.name} has the same commit")
            else:
                judged = self._try(change, refused)
                if judged.standing in (Standing.CONFLICT, Standing.OBSOLETE):
                    refused |= dict.fromkeys(change.files, change)
                yield judged

    def _without_target(self) -> tuple[Standing, str]:
        package, version = self.source.package, self.target.version(self.source.package)
        if not self.source.base_tree:
            reason = "without git nothing says what in it is yours; all of it is saved"
            return Standing.NOT_PREVIEWED, reason
        if self.source.inside:
            reason = f"it is a submodule of {self.source.inside}: to be made again by hand"
            return Standing.NOT_PREVIEWED, reason
        if not self.target.known:
            return Standing.NOT_PREVIEWED, "no target was named"
        if not version and not self.source.version:
            return Standing.KEEP, f"it is no package: imported from {self.source.top} as before"
        if not version:
            return Standing.OBSOLETE, f"the target has no {package}"
        return (
            Standing.NOT_PREVIEWED,
            f"no repository at hand has the tag of {package} {version}: git fetch --tags in "
            f"{self.source.top}, or name one with --upstream {package}=PATH",
        )

    def _upstream(self) -> frozenset[str]:
        """Commits of which the target has one that changes the same."""
        source = self.source
        if not all(map(self.history.commit_of, (source.head, source.base_commit))):
            return frozenset()  # the checkout is gone; what merges to nothing is found all the same
        listed = self.history.ask("cherry", self.commit, source.head, source.base_commit)
        walk = ("rev-list", "--first-parent", source.head)
        own = self.history.ask(*walk, f"^{source.base_commit}").split()
        contained = set(own) - set(self.history.ask(*walk, f"^{self.commit}").split())
        same = {line[2:] for line in listed.splitlines() if line.startswith("- ")}
        return frozenset(same | contained)

    def _try(self, change: Change, refused: Mapping[str, Change]) -> Judged:
        merged = self.git.merge(change.before, self.tip, change.after)
        if merged.conflicts:
            return self._conflict(change, merged.conflicts, refused)
        if merged.tree == self.tip:
            return Judged(change, Standing.UPSTREAM, f"{self.name} has it already")
        self.tip = self.steps[change.id] = merged.tree
        there = self.target.find(change.package)
        machine_code = [file for file in there.files if ".so" in file] if there else []
        if machine_code:
            return Judged(
                change,
                Standing.REBUILD,
                f"it merges, but {self.name} comes with {len(machine_code)} compiled libraries "
                f"({machine_code[0]}): build the merged checkout for the new environment",
            )
        return Judged(change, Standing.APPLIED, f"it merges into {self.name}")

    def _conflict(
        self, change: Change, paths: tuple[str, ...], refused: Mapping[str, Change]
    ) -> Judged:
        gone = [path for path in change.files if self._is_gone(path)]
        if len(gone) == len(change.files):
            files = ", ".join(gone[:3])
            return Judged(change, Standing.OBSOLETE, f"{self.name} no longer has {files}")
        if behind := next((refused[path] for path in paths if path in refused), None):
            reason = f"it builds on {behind.id}, which is not in the target"
            return Judged(change, Standing.CONFLICT, reason, paths)
        return Judged(change, Standing.CONFLICT, f"{self.name} changed the same lines", paths)

    def _is_gone(self, path: str) -> bool:
        """Whether the release had a file that the target has not; one of ours is not gone."""
        had = self.git.holds(self.source.base_tree, path)
        return had and not self.git.holds(self.start, path)
