"""A plan that people can judge: each decision with what lost against it, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from packaging.requirements import Requirement

from alula.errors import UsageError
from alula.stack.catalog import Catalog
from alula.stack.conflict import Chain
from alula.stack.decisions import Decision, decisions_of
from alula.stack.features import Feature, features_of
from alula.stack.findings import Finding, Scene, Verdict
from alula.stack.lock import Lock
from alula.stack.locking import lock_of
from alula.stack.picture import Picture
from alula.stack.request import Attempt, Request
from alula.stack.risks import risks
from alula.stack.rules import rules
from alula.stack.set_checks import unpacked_bytes
from alula.stack.solve import Solver


@dataclass(frozen=True)
class Plan:
    """What came of one question."""

    attempt: Attempt | None
    """The set that holds; None where there is none."""
    closest: Attempt | None
    """Where there is none: the one that came furthest."""
    decisions: tuple[Decision, ...]
    conflicts: tuple[Chain, ...]
    features: tuple[Feature, ...]
    risks: tuple[str, ...]
    lost: tuple[str, ...]
    goals: tuple[str, ...]
    lock: Lock | None
    download_bytes: int
    disk_bytes: int
    unread_bytes: int
    """What was not looked into since nobody said yes."""
    odd: tuple[str, ...]
    """What is wrong with the indexes that were read."""

    @property
    def unmet(self) -> tuple[str, ...]:
        """Goals that the set does not open."""
        closed = {each.name for each in self.features if each.closed()}
        return tuple(goal for goal in self.goals if goal in closed)

    @property
    def holds(self) -> bool:
        """Whether everything that was wanted is had."""
        return self.attempt is not None and not self.unmet

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The checks of the set, or of the one that came furthest."""
        judged = self.attempt or self.closest
        return judged.findings if judged else ()

    def verdict(self) -> str:
        """The first line of every report."""
        if self.attempt is None:
            return f"no set satisfies what is wanted: {self._why()}"
        counts = [each.verdict for each in self.findings]
        unchecked = counts.count(Verdict.NOT_CHECKED)
        things = "thing" if unchecked == 1 else "things"
        tail = f", {unchecked} {things} not checked" if unchecked else ""
        packages = len(self.attempt.picture.chosen) if self.attempt.picture else 0
        what = self._headline()
        if self.unmet:
            return f"{what} can be had, and {', '.join(self.unmet)} stays closed in it{tail}"
        return f"a set of {packages} packages: {what}{tail}"

    def _why(self) -> str:
        if self.conflicts:
            return "; ".join(self.conflicts[0].words)
        return self.closest.reason() if self.closest else "no index that was read has it"

    def _headline(self) -> str:
        picture = self.attempt.picture if self.attempt else None
        names = ("sglang", "vllm", "torch", "sgl-kernel", "sglang-kernel")
        found = [each.shown for name in names if picture and (each := picture.of(name))]
        wanted = [
            f"{each.what} {each.choice.partition(' of ')[0]}"
            for each in self.decisions
            if each.reason.startswith(each.what) and "is wanted" in each.reason
        ]
        return ", ".join(found or wanted[:4]) or "what is wanted"


def make_plan(
    request: Request, solver: Solver, goals: Sequence[str], created: datetime | None = None
) -> Plan:
    """Search, then say what was decided and why."""
    attempt, others = solver.solve()
    tried = [each for each in others if not each.skipped]
    closest = None if attempt else next((each for each in tried if each.picture), None)
    judged = attempt or closest
    picture = judged.picture if judged else None
    scene = solver.scene(picture, judged.overrides) if judged and picture else None
    features = features_of(request.machine, picture, request.baseline, goals) if picture else ()
    named = tuple(_risks(scene, judged, solver)) if scene and judged else ()
    lock = (
        lock_of(attempt, picture, solver, features, named, created or datetime.now(UTC))
        if attempt and picture
        else None
    )
    return Plan(
        attempt=attempt,
        closest=closest,
        decisions=tuple(decisions_of(judged, others, solver)) if judged else (),
        conflicts=_conflicts(attempt, tried),
        features=features,
        risks=named,
        lost=tuple(_lost(request, picture, lock)) if picture else (),
        goals=tuple(goals),
        lock=lock,
        download_bytes=_download(picture),
        disk_bytes=unpacked_bytes(picture) if picture else 0,
        unread_bytes=solver.wheels.refused,
        odd=tuple(_odd(solver.catalog)),
    )


def _conflicts(attempt: Attempt | None, tried: Sequence[Attempt]) -> tuple[Chain, ...]:
    """Of the attempt with the fewest: what stands in the way of every CUDA."""
    if attempt is not None:
        return ()
    found = [each.chains for each in tried if each.chains]
    return min(found, key=len, default=())


def _download(picture: Picture | None) -> int:
    return sum(each.file.size or 0 for each in picture.chosen.values()) if picture else 0


def _risks(scene: Scene, attempt: Attempt, solver: Solver) -> Iterator[str]:
    yield from dict.fromkeys(risks(scene))
    yield from attempt.notes
    for rule in rules().companion:
        of = scene.picture.of(rule.of)
        if of is not None and scene.picture.of(rule.package) is None:
            version = of.file.version.public
            yield f"no {rule.package} {version} where it would come from: {rule.reason}"
    for index, why in solver.catalog.down().items():
        yield f"{index} is down: {why}"
    for index in solver.catalog.undated():
        yield f"{index} has no upload times: it cannot be cut at a day, and is used from a snapshot"


def _odd(catalog: Catalog) -> Iterator[str]:
    for index, words in catalog.odd().items():
        yield from (f"{index}: {each}" for each in words)


def _lost(request: Request, picture: Picture, lock: Lock | None) -> Iterator[str]:
    """What the baseline has and the set has not."""
    own = lock.not_offered if lock else ()
    for name in own:
        yield f"{name} was built on this machine and is on no index: see alula stack patches"
    baseline = request.baseline
    if baseline is None:
        return
    for component in baseline.components:
        gone = picture.of(component.name) is None and component.name not in own
        if gone and not _replaced(component.name, picture):
            yield f"{component.name} {component.version} is in the baseline and not in the set"


def _replaced(name: str, picture: Picture) -> bool:
    """Whether the same library comes under another name, as nvidia-nccl-cu12 in -cu13."""
    stem = name.removesuffix("-cu12").removesuffix("-cu13")
    return any(f"{stem}{suffix}" in picture.chosen for suffix in ("", "-cu12", "-cu13"))


def check_wanted(texts: Sequence[str]) -> tuple[str, ...]:
    """Requirements as they are written; UsageError for what is none."""
    for text in texts:
        try:
            requirement = Requirement(text)
        except ValueError as error:
            raise UsageError(
                f"--want {text!r} is not a requirement",
                str(error).splitlines()[0],
                "write for example --want sglang==0.5.9",
            ) from error
        if requirement.url:
            raise UsageError(
                f"--want {text!r} names an address",
                "a plan takes packages from indexes that it can read",
                "put the wheel into a folder and name that with --index NAME=FOLDER",
            )
    return tuple(texts)
