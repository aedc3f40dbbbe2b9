"""A plan that people can judge: each decision with what lost against it, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from alula.errors import UsageError
from alula.stack.catalog import Catalog
from alula.stack.checks import Finding, Scene, Verdict, risks, unpacked_bytes
from alula.stack.conflict import Chain
from alula.stack.features import Feature, features_of, opened, still_closed
from alula.stack.listing import WheelFile
from alula.stack.lock import Lock, Toolkit, Wheel
from alula.stack.picture import Chosen, Picture
from alula.stack.rules import rules
from alula.stack.solve import Attempt, Request, Solver
from alula.stack.toolkit import runtime_release
from alula.stack.wheels import Wheels

_SHOWN_ALTERNATIVES = 3


@dataclass(frozen=True)
class Rejected:
    """What was not taken, and why."""

    choice: str
    reason: str


@dataclass(frozen=True)
class Decision:
    """One thing that had to be decided."""

    what: str
    choice: str
    reason: str
    rejected: tuple[Rejected, ...] = ()


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
        tail = f", {unchecked} things not checked" if unchecked else ""
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
        return ", ".join(found) or "what is wanted"


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
        _lock(attempt, picture, solver, features, named, created or datetime.now(UTC))
        if attempt and picture
        else None
    )
    return Plan(
        attempt=attempt,
        closest=closest,
        decisions=tuple(_decisions(judged, others, solver)) if judged else (),
        conflicts=_conflicts(attempt, tried),
        features=features,
        risks=named,
        lost=tuple(_lost(request, picture)) if picture else (),
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


def _lost(request: Request, picture: Picture) -> Iterator[str]:
    """What the baseline has and the set has not."""
    baseline = request.baseline
    if baseline is None:
        return
    for component in baseline.components:
        if picture.of(component.name) is None and not _replaced(component.name, picture):
            yield f"{component.name} {component.version} is in the baseline and not in the set"


def _replaced(name: str, picture: Picture) -> bool:
    """Whether the same library comes under another name, as nvidia-nccl-cu12 in -cu13."""
    stem = name.removesuffix("-cu12").removesuffix("-cu13")
    return any(f"{stem}{suffix}" in picture.chosen for suffix in ("", "-cu12", "-cu13"))


def _decisions(attempt: Attempt, others: Sequence[Attempt], solver: Solver) -> Iterator[Decision]:
    picture, choice = attempt.picture, attempt.choice
    if picture is None or choice is None:
        return
    yield Decision(
        "CUDA",
        attempt.cuda or _release(picture) or "none",
        _why_cuda(attempt, solver),
        tuple(
            Rejected(each.cuda or "general indexes alone", each.reason())
            for each in others
            if each.reason()
        ),
    )
    toolkit = choice.toolkit
    yield Decision(
        "toolkit",
        f"{toolkit.version or 'none'}{_where(toolkit)}",
        toolkit.reason,
        tuple(Rejected(*pair) for pair in choice.rejected),
    )
    wanted = {canonicalize_name(Requirement(text).name) for text in solver.request.wanted}
    for name, each in picture.chosen.items():
        if name in wanted or (name in rules().needed and not name.startswith("nvidia-")):
            yield _package(each, picture, attempt, solver)
    for override in attempt.overrides:
        taken = picture.of(override.package)
        yield Decision(
            override.package,
            str(taken.file.version) if taken else override.requirement,
            f"override of what {override.pinned_by}: {override.reason}",
        )
    yield from _images(picture, attempt)


def _release(picture: Picture) -> str:
    """The CUDA of a set from general indexes: that of its runtime, else what its torch says."""
    release = runtime_release(picture)
    torch = picture.of("torch")
    return "{}.{}".format(*release) if release else torch.variant()[0] if torch else ""


def _why_cuda(attempt: Attempt, solver: Solver) -> str:
    if solver.request.cuda:
        return "CUDA {}.{} was asked for".format(*solver.request.cuda)
    if not attempt.cuda:
        return "the general indexes have it, and none of a CUDA of its own is better"
    baseline = solver.request.baseline.component("torch") if solver.request.baseline else None
    if baseline and baseline.variant == attempt.cuda:
        return "it is that of the baseline"
    return "the newest of which every check passes"


def _where(toolkit: Toolkit) -> str:
    ways = {"folder": " from a folder", "wheels": " from wheels", "owner": ", by the owner"}
    return ways.get(toolkit.kind, "")


def _package(each: Chosen, picture: Picture, attempt: Attempt, solver: Solver) -> Decision:
    pins = _pins(each.name, picture)
    asked = [text for text in solver.request.wanted if Requirement(text).name == each.name]
    companion = [rule.reason for rule in rules().companion if rule.package == each.name]
    reasons = [*(f"{text} is wanted" for text in asked), *pins[:2]] or companion
    return Decision(
        each.name,
        f"{each.file.version} of {each.file.index}",
        "; ".join(reasons) or "the newest that fits",
        tuple(_alternatives(each, picture, attempt, solver)),
    )


def _pins(name: str, picture: Picture) -> list[str]:
    """Who in the set requires what of a package, the exact pins first."""
    found = [
        f"{owner.shown} requires {name}{requirement.specifier}"
        for owner in picture.chosen.values()
        for requirement in owner.requirements
        if canonicalize_name(requirement.name) == name and requirement.specifier
    ]
    return sorted(found, key=lambda text: "==" not in text)


def _alternatives(
    each: Chosen, picture: Picture, attempt: Attempt, solver: Solver
) -> Iterator[Rejected]:
    """Newer versions of the same index, and the same version of other ones."""
    catalog = solver.catalog
    for index, name in catalog.read():
        if name != each.name:
            continue
        listing = catalog.listing(next(i for i in catalog.indexes if i.name == index), name)
        files = sorted(catalog.offered(listing).values(), key=lambda f: f.version, reverse=True)
        own = index == each.file.index
        newer = [f for f in files if f.version > each.file.version or not own]
        shown = [f for f in newer if own or f.version.public == each.file.version.public]
        for file in shown[:_SHOWN_ALTERNATIVES]:
            if why := _why_not(file, each, picture, attempt, solver.wheels):
                yield Rejected(f"{file.version} of {index}", why)


def _why_not(
    file: WheelFile, each: Chosen, picture: Picture, attempt: Attempt, wheels: Wheels
) -> str:
    reasons = [
        f"{owner.shown} requires {file.name}{requirement.specifier}"
        for owner in picture.chosen.values()
        for requirement in owner.requirements
        if canonicalize_name(requirement.name) == file.name
        and not requirement.specifier.contains(file.version, prereleases=True)
    ]
    reasons += [
        words
        for name, version, words in attempt.ruled_out
        if (name, version) == (file.name, str(file.version))
    ]
    contents = wheels.contents_of(file)
    other = Chosen(file, each.metadata, contents)
    label, source = other.variant() if contents else ("", "")
    if label and other.major() != each.major():
        reasons.append(f"it is for {label}, by {source}")
    if file.version.is_prerelease and not reasons:
        reasons.append("a pre-release")
    if file.index != each.file.index and not reasons:
        reasons.append(f"{file.name} is taken from {each.file.index}")
    return "; ".join(dict.fromkeys(reasons))


def _images(picture: Picture, attempt: Attempt) -> Iterator[Decision]:
    """A container image of the engine, which is always the other way."""
    for rule in rules().image:
        engine = picture.of(rule.engine)
        if engine is None:
            continue
        cuda = attempt.cuda.removeprefix("cu")
        name = rule.name.format(version=engine.file.version.public, cuda=cuda or "…")
        yield Decision(
            "container image",
            "none",
            "an environment beside the old one keeps local changes and can be switched back",
            (
                Rejected(
                    name,
                    "what is inside cannot be read or hashed here before it is pulled whole, and "
                    "local changes do not come along; with it, none of the wheels is needed",
                ),
            ),
        )


def _lock(
    attempt: Attempt,
    picture: Picture,
    solver: Solver,
    features: Sequence[Feature],
    named: Sequence[str],
    created: datetime,
) -> Lock | None:
    """The lock of a set; None where a wheel has no hash, since nothing unhashed is installed."""
    if any(each.file.sha256 is None for each in picture.chosen.values()):
        return None
    assert attempt.choice is not None
    return Lock(
        created=created.replace(microsecond=0),
        python=solver.catalog.target.python,
        tags=solver.catalog.target.platform,
        cuda=attempt.cuda or None,
        toolkit=attempt.choice.toolkit,
        indexes=solver.catalog.pages(),
        packages=tuple(_wheel(each, picture, solver) for _, each in sorted(picture.chosen.items())),
        overrides=attempt.overrides,
        opens=tuple(opened(features)),
        stays_closed=tuple(still_closed(features)),
        risks=tuple(named),
    )


def _wheel(each: Chosen, picture: Picture, solver: Solver) -> Wheel:
    owners = _pins(each.name, picture) or [
        f"{owner.shown} requires it"
        for owner in picture.chosen.values()
        if any(canonicalize_name(found.name) == each.name for found in owner.requirements)
    ]
    asked = [f"{t} is wanted" for t in solver.request.wanted if Requirement(t).name == each.name]
    return Wheel(
        name=each.name,
        version=str(each.file.version),
        filename=each.file.filename,
        url=each.file.url,
        sha256=each.file.sha256 or "",
        size=each.file.size,
        index=each.file.index,
        reason="; ".join([*asked, *owners[:2]]) or "it goes with the rest",
        architectures=each.contents.architectures() if each.contents else None,
    )


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
