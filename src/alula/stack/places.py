"""Where environments, their records, wheels, the link and the journal lie.

envs/<name>/         a virtual environment, built at its final place
envs/<name>.json     what it was built from, and whether it is whole
envs/<name>.lock     held by whoever builds it, and shared by whoever runs in it
current              the link that a switch renames
jit/<name>/          what its run-time compilers keep
changes/<name>/      the local changes that were found for it in the environment before it
wheels/<sha256>/     downloads
journal.jsonl        what was done, in order
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from alula.errors import MachineError, UsageError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_RECORD, _LOCK = ".json", ".lock"
CURRENT = "current"
"""The link, and the word for where it leads."""


@dataclass(frozen=True, slots=True)
class Places:
    """One store of environments."""

    root: Path

    @property
    def environments(self) -> Path:
        """The folder of those that were built here."""
        return self.root / "envs"

    @property
    def current(self) -> Path:
        """The link to the environment in use."""
        return self.root / CURRENT

    @property
    def journal(self) -> Path:
        """What was done, a line each."""
        return self.root / "journal.jsonl"

    @property
    def guard(self) -> Path:
        """Locked while the link, a record or the journal changes."""
        return self.root / "lock"

    def environment(self, name: str) -> Path:
        """The folder of an environment that is built here."""
        return self.environments / checked(name)

    def record(self, name: str) -> Path:
        """What is known of an environment."""
        return self.environments / f"{checked(name)}{_RECORD}"

    def lock(self, name: str) -> Path:
        """Locked by who builds, removes or runs in an environment."""
        return self.environments / f"{checked(name)}{_LOCK}"

    def scratch(self, name: str) -> Path:
        """What building an environment needs on the way; gone when it is built."""
        return self.environments / f".{checked(name)}.building"

    def compiled(self, name: str) -> Path:
        """Caches of the run-time compilers of an environment."""
        return self.root / "jit" / checked(name)

    def changes(self, name: str) -> Path:
        """The snapshot of local changes that an environment was given."""
        return self.root / "changes" / checked(name)

    @property
    def wheels(self) -> Path:
        """Downloads, each in a folder of its hash."""
        return self.root / "wheels"

    def wheel(self, sha256: str, filename: str) -> Path:
        """A downloaded file."""
        return self.wheels / sha256 / filename

    def records(self) -> list[Path]:
        """All records, by name."""
        return sorted(self.environments.glob(f"[!.]*{_RECORD}"))

    def make(self) -> None:
        """Make what is missing; MachineError where it cannot be written."""
        try:
            self.environments.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise MachineError(
                f"the folder {self.root} cannot be written",
                error.strerror or str(error),
                "set ALULA_HOME to a folder you may write to",
            ) from error


def stack_home() -> Places:
    """`stack` under ALULA_HOME, else under `alula` where the user's data lies.

    An environment is no cache: who empties caches must not delete the server.
    """
    if own := os.environ.get("ALULA_HOME"):
        return Places(Path(own).expanduser().absolute() / "stack")
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Places(Path(data).expanduser().absolute() / "alula" / "stack")


def checked(name: str) -> str:
    """The name of an environment; UsageError where it would not be one file's name."""
    if name == CURRENT:
        raise UsageError(
            f"{name!r} cannot name an environment",
            "it stands for the one that was switched to",
            "choose another with --name",
        )
    if _NAME.fullmatch(name) is None or name.endswith((_RECORD, _LOCK)):
        raise UsageError(
            f"{name!r} cannot name an environment",
            "a name starts with a letter or digit; letters, digits, '.', '_' and '-' follow",
            "choose another with --name",
        )
    return name


def known(names: Iterable[str]) -> str:
    """Names for a message."""
    return ", ".join(names) or "none"
