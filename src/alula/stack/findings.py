"""What a check says, and what it looks at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from packaging.utils import canonicalize_name

from alula.machine.facts import Machine
from alula.machine.gate import Gate
from alula.stack.catalog import Target
from alula.stack.picture import Chosen, Picture
from alula.stack.rules import LeftOver, Spared, rules


class Verdict(StrEnum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a check found."""

    check: str
    verdict: Verdict
    words: str
    about: tuple[str, ...] = ()
    """The packages that it is about; one of them has to be another for it to pass."""
    evidence: str = ""


@dataclass(frozen=True)
class Scene:
    """A set, and where it is to run."""

    picture: Picture
    machine: Machine
    target: Target
    architecture: str = ""
    """Of the wanted model, "" for none."""
    free_bytes: int | None = None
    """Room on the disk that the environment is built on."""
    overridden: frozenset[str] = frozenset()
    """Packages on which a pin is openly not kept."""

    def needed(self) -> Iterator[Chosen]:
        """The packages whose binaries are loaded when an engine starts."""
        for each in self.picture.chosen.values():
            if each.name in rules().needed:
                yield each


def set_major(picture: Picture) -> int | None:
    """The CUDA of a set: that of its torch, else of the first needed package that has one."""
    torch = picture.of("torch")
    if torch is not None:
        return torch.major()
    majors = (each.major() for each in picture.chosen.values() if each.name in rules().needed)
    return next((major for major in majors if major), None)


def spared(gate: Gate) -> Spared | None:
    """The rule by which an engine does without what a gate closes."""
    path = f"{gate.feature} {gate.evidence}"
    on = gate.predicate.rpartition(" ")[2]
    return next(
        (
            rule
            for rule in rules().spared
            if rule.package == owner_of(gate) and rule.library in path and rule.on in ("", on)
        ),
        None,
    )


def spared_path(package: str, missing: object) -> bool:
    """Whether an engine does without a library, on every GPU."""
    path = str(getattr(missing, "library", ""))
    return any(
        rule.package == package and rule.library in path and not rule.on for rule in rules().spared
    )


def owner_of(gate: Gate) -> str:
    """The package that a gate is of."""
    return canonicalize_name(gate.component.partition(" ")[0])


def is_needed(gate: Gate) -> bool:
    """Whether a gate is of a package that is loaded when an engine starts."""
    return owner_of(gate) in rules().needed


def left_over(path: str) -> LeftOver | None:
    """The rule by which nothing loads a file."""
    return next((rule for rule in rules().left_over if rule.covers(path)), None)


def some(names: list[str]) -> str:
    """A few names of many."""
    shown = ", ".join(sorted(names)[:6])
    return f"{shown} and {len(names) - 6} more" if len(names) > 6 else shown


def not_looked_into(scene: Scene, check: str) -> Iterator[Finding]:
    """What a check of binaries could not look at."""
    names = [each.name for each in scene.needed() if each.is_binary and each.contents is None]
    if names:
        words = f"nobody has looked into {some(names)}"
        yield Finding(check, Verdict.NOT_CHECKED, words, tuple(names))
