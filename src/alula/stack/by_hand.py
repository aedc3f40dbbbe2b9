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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from alula.errors import UsageError
from alula.stack.checks import Verdict, run_checks
from alula.stack.conflict import WANTED, find_chains
from alula.stack.features import features_of
from alula.stack.indexes import Index
from alula.stack.listing import WheelFile
from alula.stack.offer import Offer
from alula.stack.picture import Chosen, Picture
from alula.stack.plan import Plan
from alula.stack.resolver import Asked
from alula.stack.solve import Request, Solver
from alula.stack.toolkit import Release

_ENGINES = {"sglang", "vllm"}
_JUDGED = {
    "one CUDA",
    "driver",
    "an image for every GPU",
    "PTX within the driver",
    "symbols of torch and NCCL",
    "FlashInfer's parts equal",
}
"""Checks that say something of a part of a set."""


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


@dataclass(frozen=True)
class Judged:
    """What came of a plan made by hand."""

    hand_made: HandMade
    contradictions: tuple[Contradiction, ...]
    kept: tuple[int, ...]
    """Decisions that hold together, from which a set is proposed."""
    request: Request
    """That set's question."""

    @property
    def holds(self) -> bool:
        """Whether nothing in it contradicts anything."""
        return not self.contradictions

    def verdict(self) -> str:
        """The first line."""
        blamed = sorted({n for each in self.contradictions for n in each.decisions})
        count = len(self.contradictions)
        plural = "contradictions" if count > 1 else "contradiction"
        return f"the plan cannot be: {count} {plural}, between decisions {_listed(blamed)}"

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


def judge(hand_made: HandMade, solver: Solver) -> Judged:
    """Everything that its decisions contradict, and the question for a set that keeps the rest."""
    judging = _Judging(hand_made, solver)
    found = tuple(judging.contradictions())
    kept = tuple(judging.kept())
    decisions = [hand_made.decision[n - 1] for n in kept]
    request = replace(
        solver.request,
        wanted=tuple(dict.fromkeys((*solver.request.wanted, *_wanted(decisions)))),
        cuda=judging.release or solver.request.cuda,
    )
    return Judged(hand_made, found, kept, request)


def _wanted(decisions: Sequence[HandDecision]) -> list[str]:
    return [f"{n}=={v}" for each in decisions for n, v in each.packages.items()]


class _Judging:
    def __init__(self, hand_made: HandMade, solver: Solver) -> None:
        self._solver = solver
        self._decisions = hand_made.decision
        self._hand_made = hand_made
        self.release = _release(hand_made.decision) or solver.request.cuda
        self._cuda = "cu{}{}".format(*self.release) if self.release else ""
        self._by_package = {
            name: number
            for number, each in enumerate(hand_made.decision, start=1)
            for name in each.packages
        }
        bindings = {
            name: each.index for each in hand_made.decision if each.index for name in each.packages
        }
        self._offer = Offer(solver.catalog, self._cuda, bindings=self._known(bindings))
        self._files = dict(self._found())
        self._picture = self._looked_into()

    def _known(self, bindings: Mapping[str, str]) -> Mapping[str, str]:
        names = {index.name for index in self._solver.catalog.indexes}
        for package, index in bindings.items():
            if index not in names:
                raise UsageError(
                    f"the plan takes {package} from {index!r}",
                    "no index of that name is read",
                    f"name one of {', '.join(sorted(names))}, or add it with --index",
                )
        return bindings

    def _found(self) -> Iterator[tuple[str, WheelFile]]:
        """The wheel of each exact version, where its index has one."""
        for each in self._decisions:
            for name, version in each.packages.items():
                for file in self._offer.files(name).values():
                    if file.version == Version(version):
                        yield name, file

    def _looked_into(self) -> Picture:
        files = [(file, self._index(file).cuda) for file in self._files.values()]
        python = self._solver.catalog.target.python
        return Picture(python, self._solver.wheels.look(files))

    def _index(self, file: WheelFile) -> Index:
        return next(i for i in self._solver.catalog.indexes if i.name == file.index)

    def contradictions(self) -> Iterator[Contradiction]:
        """All of them, those of requirements first."""
        yield from self._of_requirements()
        yield from self._of_binaries()
        yield from self._of_names()
        yield from self._of_pre_releases()
        yield from self._of_hashes()
        yield from self._of_features()

    def _of_requirements(self) -> Iterator[Contradiction]:
        asked = Asked(tuple(_wanted(self._decisions)))
        for chain in find_chains(self._solver.resolver, self._offer, asked):
            wanted = [required for package, required in chain.links if package == WANTED]
            words = [w for w in chain.words if not w.endswith(" is wanted")]
            plain = [w.removesuffix(" is wanted") for w in chain.words if w.endswith(" is wanted")]
            told = f"{', '.join(plain)} cannot be together: {'; '.join(words)}" if plain else ""
            yield Contradiction(self._numbers(wanted), told or "; ".join(words), "METADATA of each")

    def _of_binaries(self) -> Iterator[Contradiction]:
        scene = self._solver.scene(self._picture)
        for finding in run_checks(scene):
            if finding.verdict is Verdict.FAILED and finding.check in _JUDGED:
                yield Contradiction(self._numbers(finding.about), finding.words, finding.evidence)

    def _of_names(self) -> Iterator[Contradiction]:
        """A wheel that pip by name would pass over for another one, without a word."""
        for each in self._picture.chosen.values():
            number = self._by_package[each.name]
            said = each.metadata.version
            decision = self._decisions[number - 1]
            if decision.by == "name" and said and Version(said) != each.file.version:
                other = self._taken_instead(each)
                yield Contradiction(
                    (number,),
                    f"{each.file.filename} says {said} within, so that pip discards it by name"
                    f"{f' and silently takes {other}' if other else ''}; its address alone is safe",
                    f"METADATA of {each.file.filename}",
                )

    def _taken_instead(self, each: Chosen) -> str:
        listing = self._solver.catalog.bound(each.name, "")
        files = self._solver.catalog.offered(listing).values() if listing else ()
        for file in files:
            if file.version.public == each.file.version.public and file.url != each.file.url:
                found = self._solver.wheels.look([(file, "")])[each.name]
                label, source = found.variant()
                cuda = f", which is for {label}, by {source}" if label else ""
                return f"{file.version} of {file.index}{cuda}"
        return ""

    def _of_pre_releases(self) -> Iterator[Contradiction]:
        for name, file in self._files.items():
            if not file.version.is_prerelease:
                continue
            listing = self._solver.catalog.bound(name, self._cuda)
            offered = self._solver.catalog.offered(listing).values() if listing else ()
            stable = sorted(f.version for f in offered if not f.version.is_prerelease)
            if listing and stable:
                because = self._decisions[self._by_package[name] - 1].because
                shown = " and ".join(f"{name} {version}" for version in stable[-2:])
                yield Contradiction(
                    (self._by_package[name],),
                    f"{name} {file.version} is a pre-release"
                    f"{f', taken because {because}' if because else ''}, and stable ones for "
                    f"{self._cuda or 'this CUDA'} exist: {shown}",
                    f"the index {listing.index.name}",
                )

    def _of_hashes(self) -> Iterator[Contradiction]:
        for name, each in self._picture.chosen.items():
            if each.file.sha256 is None:
                yield Contradiction(
                    (self._by_package[name],),
                    f"{each.file.index} states no hash for {each.file.filename}, and it has not "
                    "been fetched: nothing says that it will be the same file",
                    f"the index {each.file.index}",
                )

    def _of_features(self) -> Iterator[Contradiction]:
        """What it is hoped to open and does not."""
        opens = self._hand_made.opens
        machine = self._solver.request.machine
        for feature in features_of(machine, self._picture, None, opens):
            closed = feature.closed()
            if feature.name in opens and closed:
                gates = "; ".join(
                    f"{gate.layer} of {gate.component}: {gate.observed}"
                    f" (opens with {gate.opened_in or 'nothing that is known'})"
                    for gate in closed
                )
                yield Contradiction(
                    self._numbers(gate.component.partition(" ")[0] for gate in closed),
                    f"{feature.name} is hoped for and stays closed: {gates}",
                    ", ".join(gate.evidence for gate in closed),
                )

    def _numbers(self, packages: object) -> tuple[int, ...]:
        assert not isinstance(packages, str)
        names = {canonicalize_name(str(name)) for name in packages}  # type: ignore[attr-defined]
        return tuple(sorted({n for name, n in self._by_package.items() if name in names}))

    def kept(self) -> Iterator[int]:
        """Decisions that hold together: the engine first, then in their order."""
        order = sorted(
            range(1, len(self._decisions) + 1),
            key=lambda n: not _ENGINES & self._decisions[n - 1].packages.keys(),
        )
        taken: list[int] = []
        for number in order:
            if self._fits([*taken, number]):
                taken.append(number)
        yield from sorted(taken)

    def _fits(self, numbers: Sequence[int]) -> bool:
        decisions = [self._decisions[n - 1] for n in numbers]
        names = {name for each in decisions for name in each.packages}
        if not names:
            return True
        wanted = tuple(_wanted(decisions))
        if not self._solver.resolver.resolve(self._offer.binding(wanted), Asked(wanted)):
            return False
        chosen = {n: each for n, each in self._picture.chosen.items() if n in names}
        findings = run_checks(self._solver.scene(replace(self._picture, chosen=chosen)))
        return not any(
            each.verdict is Verdict.FAILED and each.check in _JUDGED for each in findings
        )


def _release(decisions: Sequence[HandDecision]) -> Release | None:
    for each in decisions:
        if each.toolkit:
            major, _, minor = each.toolkit.partition(".")
            return int(major), int(minor)
    return None


def _listed(numbers: Sequence[int]) -> str:
    shown = [f"({number})" for number in numbers]
    return f"{', '.join(shown[:-1])} and {shown[-1]}" if len(shown) > 1 else "".join(shown)
