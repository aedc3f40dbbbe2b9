"""What a system is upgraded to, as far as it is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from alula.machine.environment import Distribution, Environment


@dataclass(frozen=True)
class Target:
    """What a system is upgraded to: an environment that is there, or only its versions."""

    environment: Environment | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    """By canonical name; they come before those of the environment."""
    repositories: Mapping[str, Path] = field(default_factory=dict)
    """Where a package's releases are tagged, where its checkout does not know them yet."""
    wheels: Sequence[Path] = ()
    """Folders with wheels: of the old environment for originals, of the target to merge with."""
    offered: Mapping[str, bool] = field(default_factory=dict)
    """Whether an index has a package, as far as that was asked."""
    dropped: frozenset[str] = frozenset()
    """Changes that a person has decided to leave behind, by id."""

    @property
    def known(self) -> bool:
        """Whether anything is said of it."""
        return self.environment is not None or bool(self.versions)

    def version(self, package: str) -> str:
        """A package's version there, "" where it has none or that is not known."""
        there = self.find(package)
        return self.versions.get(package, there.version if there else "")

    def find(self, package: str) -> Distribution | None:
        """A package as it is installed there."""
        return self.environment.find(package) if self.environment else None
