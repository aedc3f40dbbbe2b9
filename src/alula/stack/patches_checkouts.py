"""Changes of a checkout beyond its release: commits, edits of tracked files, files not tracked."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from alula.machine.environment import Distribution, Environment, canonical, read_text
from alula.machine.source import is_folder
from alula.stack.patches_git import (
    Checkout,
    Git,
    checkout_at,
    copy_trees,
    make_independent,
    reader,
    workshop,
)
from alula.stack.patches_records import Change, Kind, Source, repository_of

_RELEASES = ("v[0-9]*", "[0-9]*", "*")
_PATHS = re.compile(
    r"^\s*(/\S.*?)\s*$|^import sys; sys\.path\.insert\(0, [\"'](/[^\"']+)", re.MULTILINE
)


@dataclass(frozen=True)
class Place:
    """A folder of source that an environment imports from."""

    package: str
    folder: Path
    version: str = ""


def places(environment: Environment, named: Mapping[str, Path]) -> list[Place]:
    """Editable installs, folders that a `.pth` file names, and those that a person names."""
    found: dict[str, Place] = {}
    for key, owner in environment.distributions.items():
        if owner.is_editable:
            found[key] = Place(key, _import_folder(owner), owner.version)
    for site in environment.sites:
        for path in sorted(site.glob("*.pth")):
            for match in _PATHS.finditer(read_text(path)):
                folder = Path(match[1] or match[2])
                known = any(place.folder.is_relative_to(folder) for place in found.values())
                if not known and checkout_at(folder):
                    place = _named(environment, path.stem.removeprefix("alula_"), folder)
                    found[place.package] = place
    for name, folder in named.items():
        found[canonical(name)] = _named(environment, name, folder.resolve())
    return list(found.values())


def _named(environment: Environment, name: str, folder: Path) -> Place:
    known = environment.find(name)
    return Place(canonical(name), folder, known.version if known else "")


def _import_folder(owner: Distribution) -> Path:
    """Where the modules of an editable install lie: its folder, or `src` in it."""
    folder, below = owner.roots[0], owner.roots[1]
    return below if is_folder(below / canonical(owner.name).replace("-", "_")) else folder


def read_checkout(place: Place, folder: Path, notes: list[str]) -> tuple[Source, list[Change]]:
    """A checkout's changes, saved in a repository below the snapshot's `folder`.

    The checkout is only read. What cannot be told is a note.
    """
    checkout = checkout_at(place.folder)
    if checkout is None:
        notes.append(
            f"{place.package} is in {place.folder}, which is no git checkout: not compared"
        )
        return Source(place.package, str(place.folder), version=place.version), []
    target = repository_of(folder.resolve(), place.package)
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        history = reader(Path(scratch) / "git", [checkout])
        source = _source(place, checkout, history, notes)
        git = workshop(target, [checkout])
        changes = list(_changes(source, git, history, checkout))
    _keep(git, source, changes)
    return source, changes


def _source(place: Place, checkout: Checkout, history: Git, notes: list[str]) -> Source:
    head = checkout.git.commit_of("HEAD")
    base, commit = _base(checkout, head)
    if not base:
        notes.append(
            f"{place.package}: no release and no remote branch is known: only what is not "
            "committed was compared"
        )
        base, commit = head[:12], head
    return Source(
        place.package,
        str(checkout.top),
        _below(place.folder, checkout.top),
        place.version,
        base,
        history.tree_of(commit),
        head,
        commit,
    )


def _below(folder: Path, top: Path) -> str:
    inside = folder.resolve().relative_to(top.resolve()).as_posix()
    return "" if inside == "." else inside


def _base(checkout: Checkout, head: str) -> tuple[str, str]:
    """The release that a checkout was made from and its commit; else where remotes end."""
    for pattern in _RELEASES:
        tag = checkout.git.ask("describe", "--tags", "--abbrev=0", f"--match={pattern}", head)
        if tag:
            return tag, checkout.git.commit_of(f"refs/tags/{tag}")
    own = checkout.git.ask("rev-list", "--first-parent", head, "--not", "--remotes").splitlines()
    remotes = checkout.git.ask("for-each-ref", "--count=1", "refs/remotes")
    if not remotes:
        return "", ""
    start = checkout.git.commit_of(f"{own[-1]}^") if own else head
    return (f"{start[:12]}, which a remote has", start) if start else ("", "")


def _changes(source: Source, git: Git, history: Git, checkout: Checkout) -> Iterator[Change]:
    """A merge counts as what it brought, so that all changes add up to what is there."""
    beyond = f"{source.base_commit}..{source.head}"
    commits = history("rev-list", "--first-parent", "--reverse", beyond).splitlines()
    parents = {each: history.commit_of(f"{each}^1", source.base_commit) for each in commits}
    copy_trees(history, git, [source.base_commit, source.head, *commits, *parents.values()])
    for commit in commits:
        before, after = history.tree_of(parents[commit]), history.tree_of(commit)
        if after != before:
            change = _change(source, git, Kind.COMMIT, history.told(commit, "%s"), before, after)
            yield replace(
                change,
                id=f"{source.package}:{commit[:10]}",
                commit=commit,
                author=history.author_of(commit),
                message=history.told(commit, "%B"),
            )
    committed = history.tree_of(source.head)
    tracked, everything = _work_tree(git, checkout, committed)
    if tracked != committed:
        yield _change(source, git, Kind.UNCOMMITTED, "edits of tracked files", committed, tracked)
    if everything != tracked:
        yield _change(source, git, Kind.UNTRACKED, "files git does not track", tracked, everything)


def _change(source: Source, git: Git, kind: Kind, what: str, before: str, after: str) -> Change:
    return Change(
        id=f"{source.package}:{kind.partition(' ')[0]}",
        kind=kind,
        what=what,
        package=source.package,
        files=tuple(git.changed(before, after)),
        where=source.top,
        evidence=f"beyond {source.base}",
        before=before,
        after=after,
        message=what,
        version=source.version,
    )


def _work_tree(git: Git, checkout: Checkout, head: str) -> tuple[str, str]:
    """Trees of the work tree as it lies there: its tracked files, and all that is not ignored."""
    with tempfile.TemporaryDirectory() as scratch:
        where = {"GIT_WORK_TREE": str(checkout.top), "GIT_INDEX_FILE": f"{scratch}/index"}
        inside = Git(git.directory, where)
        ignored = checkout.git("rev-parse", "--git-path", "info/exclude")
        sparse = Path(checkout.git("rev-parse", "--git-path", "info/sparse-checkout")).is_file()
        add = ("-C", str(checkout.top), "-c", f"core.excludesFile={ignored}", "add")
        inside("read-tree", head)
        if sparse:  # what is left out was not deleted
            from_stdin = ("--pathspec-from-file=-", "--pathspec-file-nul")
            listed = inside("ls-files", "-z").split("\0")
            there = [name for name in listed if name and (checkout.top / name).exists()]
            inside(*add, "-u", *from_stdin, stdin="\0".join(there).encode())
        else:
            inside(*add, "-u")
        tracked = inside("write-tree")
        inside(*add, "--ignore-removal" if sparse else "-A", ".")
        return tracked, inside("write-tree")


def _keep(git: Git, source: Source, changes: list[Change]) -> None:
    """Hold the trees by commits of our own, with their authors, and let go of the lender."""
    tip = git.commit(source.base_tree, message=f"{source.package} {source.base}")
    for change in changes:
        if git.tree_of(tip) != change.before:  # its commit has another parent
            tip = git.commit(change.before, tip, message=f"before {change.id}")
        tip = git.commit(change.after, tip, message=change.message, author=change.author)
    git("update-ref", "refs/heads/local-changes", tip)
    git("symbolic-ref", "HEAD", "refs/heads/local-changes")
    make_independent(git)
