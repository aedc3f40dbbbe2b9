"""Changes of a checkout beyond its release: commits, edits of tracked files, files not tracked."""

from __future__ import annotations

import os
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

_NO_BASE = "no release and no remote branch is known"
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
    inside: str = ""
    """The package whose submodule it is."""
    recorded: str = ""
    """The commit that a submodule is recorded with."""


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


def read_checkout(place: Place, folder: Path) -> Iterator[tuple[Source, list[Change]]]:
    """A checkout's changes, saved in a repository below the snapshot's `folder`.

    Submodules with changes of their own follow it. A checkout is only read.
    """
    checkout = checkout_at(place.folder)
    if checkout is None or not checkout.git.commit_of("HEAD"):
        yield _without_git(place, folder)
        return
    target = repository_of(folder.resolve(), place.package)
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        history = reader(Path(scratch) / "git", [checkout])
        source = _source(place, checkout, history)
        git = workshop(target, [checkout])
        changes = list(_changes(source, git, history, checkout))
    _keep(git, source, changes)
    yield source, [*_unknown(source), *changes]
    for inner in _submodules(place, checkout, source.head):
        for found, own in read_checkout(inner, folder):
            if own:
                yield found, own


def _without_git(place: Place, folder: Path) -> tuple[Source, list[Change]]:
    """A folder of source of which nothing says what is somebody's own: all of it is saved."""
    saved = f"sources/{place.package}"
    left_out = shutil.ignore_patterns(".git", "__pycache__", "*.pyc")
    copy = folder / saved
    shutil.copytree(place.folder, copy, symlinks=True, ignore=left_out, dirs_exist_ok=True)
    change = Change(
        id=f"{place.package}:source",
        kind=Kind.UNTRACKED,
        what=f"source in {place.folder}",
        package=place.package,
        files=tuple(p.relative_to(copy).as_posix() for p in sorted(copy.rglob("*")) if p.is_file()),
        where=str(place.folder),
        evidence="it is no git checkout with a commit",
        version=place.version,
        saved=saved,
    )
    return Source(place.package, str(place.folder), version=place.version), [change]


def _submodules(place: Place, checkout: Checkout, head: str) -> Iterator[Place]:
    listed = checkout.git("ls-tree", "-r", "-z", head).split("\0")
    for line in (line for line in listed if line.startswith("160000 ")):
        facts, _, name = line.partition("\t")
        inner = checkout_at(checkout.top / name) if is_folder(checkout.top / name) else None
        if inner is not None and inner.top != checkout.top:
            package = f"{place.package}.{name.replace('/', '.')}"
            yield Place(package, inner.top, inside=place.package, recorded=facts.split()[2])


def _unknown(source: Source) -> Iterator[Change]:
    """Commits of which nothing says where somebody's own begin."""
    if source.base == _NO_BASE:
        yield Change(
            id=f"{source.package}:commits",
            kind=Kind.COMMIT,
            what=f"all commits up to {source.head[:12]}",
            package=source.package,
            where=source.top,
            evidence=source.base,
            version=source.version,
        )


def _source(place: Place, checkout: Checkout, history: Git) -> Source:
    head = checkout.git.commit_of("HEAD")
    base, commit = place.recorded[:12], checkout.git.commit_of(place.recorded or "none")
    if not commit:
        base, commit = _base(checkout, head)
    return Source(
        place.package,
        str(checkout.top),
        _below(place.folder, checkout.top),
        place.version,
        base,
        history.tree_of(commit),
        head,
        commit,
        place.inside,
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
    start = checkout.git.commit_of(f"{own[-1]}^") if own else head
    if not remotes or not start:
        return _NO_BASE, head
    return f"{start[:12]}, which a remote has", start


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
            inside(*add, "-u", *from_stdin, stdin=os.fsencode("\0".join(there)))
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
