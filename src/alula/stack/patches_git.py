"""Git, so used that the repository one looks at is not written to, not even its index.

Whatever writes runs in a *workshop*: a bare repository of our own with copies of the objects that
it needs, for git sets the times of objects that it finds written already. A repository's hooks,
filters and helpers are configured in its own and the user's settings, which a workshop does not
have, so none of them runs.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from alula.errors import MachineError

_SECONDS = 120.0
_NOBODY = {
    f"GIT_{role}_{part}": value
    for role in ("AUTHOR", "COMMITTER")
    for part, value in (("NAME", "alula"), ("EMAIL", "alula@localhost"), ("DATE", "@0 +0000"))
}
_QUIET = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}


class Merge(NamedTuple):
    """What a three-way merge of trees comes to."""

    tree: str
    conflicts: tuple[str, ...]
    """Paths; none where it is clean."""


@dataclass(frozen=True)
class Git:
    """One repository."""

    directory: Path
    """The repository itself: `.git`, or a bare one."""
    variables: Mapping[str, str] = field(default_factory=dict)

    def run(self, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """One command, whatever comes of it. MachineError where git is missing or hangs."""
        return _run(arguments, {"GIT_DIR": str(self.directory), **self.variables}, stdin)

    def __call__(self, *arguments: str, stdin: bytes = b"") -> str:
        """One command's output, without the last line end; MachineError where it fails."""
        done = self.run(*arguments, stdin=stdin)
        if done.returncode:
            raise _failed(arguments, done.stderr, self.directory)
        return _text(done.stdout)

    def ask(self, *arguments: str) -> str:
        """One command's output, "" where it fails."""
        done = self.run(*arguments)
        return "" if done.returncode else _text(done.stdout)

    def commit_of(self, *names: str) -> str:
        """The commit that the first of these names stands for, "" for none."""
        found = (self.ask("rev-parse", "--verify", "-q", f"{name}^{{commit}}") for name in names)
        return next((commit for commit in found if commit), "")

    def tree_of(self, name: str) -> str:
        """The tree of a commit."""
        return self("rev-parse", "--verify", f"{name}^{{tree}}")

    def changed(self, before: str, after: str) -> dict[str, str]:
        """Paths that differ between two trees, with A, M, D or T for how."""
        words = self("diff-tree", "-r", "-z", "--no-renames", "--name-status", before, after)
        parts = words.split("\0")
        return dict(zip(parts[1::2], parts[0::2], strict=False))

    def holds(self, tree: str, path: str) -> bool:
        """Whether a tree has a file at a path."""
        return self.run("cat-file", "-e", f"{tree}:{path}").returncode == 0

    def commit(self, tree: str, *parents: str, message: str = "", author: str = "") -> str:
        """A commit object of a tree, by the author that `author_of` has told, or by nobody."""
        named = [word for parent in parents for word in ("-p", parent)]
        writer = Git(self.directory, {**_NOBODY, **self.variables, **_as_variables(author)})
        return writer("commit-tree", tree, *named, stdin=os.fsencode(message))

    def author_of(self, commit: str) -> str:
        """Name, address and time, a line each."""
        return self.told(commit, "%an%n%ae%n@%at %ad")

    def told(self, commit: str, form: str) -> str:
        """What a commit says of itself, in a form of `git log`."""
        asked = ("-1", "--no-show-signature", "--date=format:%z", f"--format={form}")
        return self("log", *asked, commit)

    def merge(self, base: str, ours: str, theirs: str) -> Merge:
        """Three trees merged without a work tree.

        `git merge-tree` takes the base from history, so that the trees are given one.
        """
        root = self.commit(base)
        mine, other = self.commit(ours, root), self.commit(theirs, root)
        arguments = ("merge-tree", "--write-tree", "-z", "--name-only", mine, other)
        done = self.run(*arguments)
        if done.returncode not in (0, 1):
            raise _failed(arguments, done.stderr, self.directory)
        tree, *rest = done.stdout.decode("utf-8", "surrogateescape").split("\0")
        paths = rest[: rest.index("")] if done.returncode and "" in rest else []
        return Merge(tree.strip(), tuple(dict.fromkeys(paths)))


class Checkout(NamedTuple):
    """A work tree and the repository that it belongs to."""

    top: Path
    git: Git
    objects: Path


def checkout_at(folder: Path) -> Checkout | None:
    """The checkout that a folder lies in, None for none."""
    asked = ("--show-toplevel", "--absolute-git-dir", "--git-path", "objects")
    done = _run(("-c", "safe.directory=*", "-C", str(folder), "rev-parse", *asked), {}, b"")
    lines = _text(done.stdout).splitlines()
    if done.returncode or len(lines) != 3:
        return None
    top, directory, objects = lines
    return Checkout(Path(top), Git(Path(directory)), folder / objects)


def repository_at(folder: Path) -> Checkout | None:
    """The same for a repository that may be bare."""
    found = checkout_at(folder)
    if found is None and (folder / "objects").is_dir() and (folder / "HEAD").is_file():
        return Checkout(folder, Git(folder), folder / "objects")
    return found


def reader(folder: Path, lenders: Iterable[Checkout]) -> Git:
    """A bare repository that borrows the objects of others, to be read from and no more.

    Where git writes an object that a lender has, it sets the time of the lender's file.
    """
    lent = [each for each in lenders if each.objects.is_dir()]
    git = workshop(folder, lent)
    lines = "".join(f"{each.objects.resolve()}\n" for each in lent)
    (folder / "objects/info/alternates").write_text(lines)
    cut = [each.git.ask("rev-parse", "--git-path", "shallow") for each in lent]
    shallow = [Path(path) for path in cut if path and Path(path).is_file()]
    if shallow:
        (folder / "shallow").write_text("".join(path.read_text() for path in shallow))
    return git


def workshop(folder: Path, like: Iterable[Checkout] = ()) -> Git:
    """A new bare repository, with ids of the kind that others have."""
    kind = next((each.git.ask("rev-parse", "--show-object-format") for each in like), "")
    wanted = [f"--object-format={kind}"] if kind else []
    Git(folder)("init", "--bare", "-q", "--template=", *wanted)
    (folder / "objects/info").mkdir(exist_ok=True)
    return Git(folder)


def copy_trees(source: Git, target: Git, commits: Iterable[str]) -> None:
    """Copy commits with all that their trees hold, without their history."""
    named = list(dict.fromkeys(commits))
    listed = source("rev-list", "--objects", "--no-object-names", "--no-walk", *named)
    packed = source.run("pack-objects", "--stdout", "-q", stdin=listed.encode() + b"\n")
    if packed.returncode:
        raise _failed(("pack-objects",), packed.stderr, source.directory)
    target("index-pack", "--stdin", stdin=packed.stdout)


def make_independent(git: Git) -> None:
    """Copy what a workshop's references need, and borrow no longer."""
    git("repack", "-a", "-d", "-q")
    (git.directory / "objects/info/alternates").unlink(missing_ok=True)


def merge_file(ours: Path, base: Path, theirs: Path) -> bytes | None:
    """One file merged three ways, None where it conflicts."""
    done = _run(("merge-file", "-p", str(ours), str(base), str(theirs)), {}, b"")
    if done.returncode < 0 or done.returncode > 127:  # a file that is no text
        return None
    return None if done.returncode else done.stdout


def _as_variables(author: str) -> dict[str, str]:
    names = ("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_AUTHOR_DATE")
    return dict(zip(names, author.splitlines(), strict=False)) if author else {}


def _run(
    arguments: Iterable[str], variables: Mapping[str, str], stdin: bytes
) -> subprocess.CompletedProcess[bytes]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}"]
    try:
        return subprocess.run(
            [*command, *arguments],
            input=stdin,
            capture_output=True,
            env={**kept, **_QUIET, **variables},
            timeout=_SECONDS,
        )
    except FileNotFoundError as error:
        raise MachineError(
            "local changes cannot be looked at",
            "there is no git on this machine",
            "install git 2.38 or newer",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise MachineError(
            f"git did not answer within {_SECONDS:g} s",
            " ".join(command[:1] + list(arguments)),
            "look at the disk that the repository lies on",
        ) from error


def _failed(arguments: Iterable[str], stderr: bytes, where: Path) -> MachineError:
    said = _text(stderr).splitlines()
    return MachineError(
        f"git {' '.join(arguments)[:200]} failed in {where}",
        said[-1] if said else "it said nothing",
        "run the same command by hand; git 2.38 or newer is needed",
    )


def _text(output: bytes) -> str:
    return output.decode("utf-8", "surrogateescape").removesuffix("\n")
