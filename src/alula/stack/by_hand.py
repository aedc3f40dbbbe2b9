"""A plan made by hand, held against itself: which of its decisions contradict which, and why.

A plan is a TOML file:

    model = "kimi-k2.5"
    opens = ["torch-symm-mem"]          # what it is hoped to open

    [[decision]]
    what = "toolkit 13.0, not 13.1"
    toolkit = "13.0"

    [[decision]]
    what = "PyTorch nightly"
    packages = { torch = "2.11.0.dev20260219+cu130" }
    index = "pytorch-nightly-cu130"
    because = "there is no stable one for CUDA 13"
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from alula.errors import UsageError
from alula.stack.plan import Plan
from alula.stack.request import Request

_ENGINES = {"sglang", "vllm"}


class HandDecision(BaseModel):
    """One decision of a plan."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    what: str
    packages: dict[str, str] = {}
    """Exact versions."""
    index: str | None = None
    by: Literal["name", "address"] = "name"
    """How it is to be installed."""
    toolkit: str | None = None
    from_source: bool | None = None
    because: str = ""

    @field_validator("packages")
    @classmethod
    def _exact(cls, packages: dict[str, str]) -> dict[str, str]:
        for name, version in packages.items():
            try:
                Version(version)
            except InvalidVersion as error:
                raise ValueError(f"{name} = {version!r} is no version") from error
        return {str(canonicalize_name(name)): version for name, version in packages.items()}

    @field_validator("toolkit")
    @classmethod
    def _release(cls, toolkit: str | None) -> str | None:
        if toolkit is not None and len(toolkit.split(".")) != 2:
            raise ValueError(f"toolkit = {toolkit!r} is no release, as in 13.0")
        return toolkit


class HandMade(BaseModel):
    """A plan as its owner wrote it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = ""
    opens: tuple[str, ...] = ()
    decision: tuple[HandDecision, ...]


@dataclass(frozen=True, slots=True)
class Contradiction:
    """What cannot be, and the decisions that it lies between, by their number from 1."""

    decisions: tuple[int, ...]
    words: str
    evidence: str = ""


@dataclass(frozen=True, slots=True)
class NotChecked:
    """What could not be judged and why, and the decisions that it concerns."""

    decisions: tuple[int, ...]
    words: str


@dataclass(frozen=True)
class Judged:
    """What came of a plan made by hand."""

    hand_made: HandMade
    contradictions: tuple[Contradiction, ...]
    not_checked: tuple[NotChecked, ...]
    """What an index that did not answer keeps in the dark."""
    kept: tuple[int, ...]
    """Decisions that hold together, from which a set is proposed."""
    request: Request
    """That set's question."""

    @property
    def holds(self) -> bool:
        """Whether all of it was judged, and nothing in it contradicts anything."""
        return not self.contradictions and not self.not_checked

    def standing(self, number: int) -> str:
        """Whether a decision is kept, dropped, or was not checked."""
        if number in self.kept:
            return "kept"
        unread = any(number in each.decisions for each in self.not_checked)
        blamed = any(number in each.decisions for each in self.contradictions)
        return "not checked" if unread and not blamed else "dropped"

    def verdict(self) -> str:
        """The first line."""
        if not self.contradictions:
            return (
                "nothing that was read contradicts the plan, and not all of it was checked: "
                f"{self.not_checked[0].words}"
            )
        blamed = sorted({n for each in self.contradictions for n in each.decisions})
        count = len(self.contradictions)
        plural = "contradictions" if count > 1 else "contradiction"
        between = f", between decisions {_listed(blamed)}" if blamed else ""
        return f"the plan cannot be: {count} {plural}{between}"

    def and_of(self, plan: Plan) -> Judged:
        """With what even the set that is proposed instead meets."""
        engines = [n for n, each in self._numbered() if _ENGINES & each.packages.keys()]
        found = tuple(
            Contradiction(
                tuple(engines),
                f"even the set that holds together does not start {self.hand_made.model}: "
                f"{override.pinned_by}, and {override.reason}",
                f"it takes {override.requirement}, against that pin",
            )
            for override in (plan.attempt.overrides if plan.attempt else ())
        )
        return replace(self, contradictions=(*self.contradictions, *found))

    def _numbered(self) -> Iterator[tuple[int, HandDecision]]:
        return iter(enumerate(self.hand_made.decision, start=1))


def read_hand_made(path: Path) -> HandMade:
    """The plan in a file; UsageError where it is none."""
    try:
        return HandMade.model_validate(tomllib.loads(path.read_text("utf-8")))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise _no_plan(path, f"{where}: {first['msg']}") from error
    except (OSError, ValueError) as error:
        raise _no_plan(path, str(error)) from error


def _no_plan(path: Path, why: str) -> UsageError:
    return UsageError(
        f"{path} is no plan",
        why,
        'write [[decision]] with what = "…" and packages = { torch = "2.9.1" } or toolkit = "13.0"',
    )


def _listed(numbers: Sequence[int]) -> str:
    shown = [f"({number})" for number in numbers]
    return f"{', '.join(shown[:-1])} and {shown[-1]}" if len(shown) > 1 else "".join(shown)
