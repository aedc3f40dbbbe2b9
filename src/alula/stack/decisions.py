"""What a set decides, with what lost against each choice, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from packaging.utils import canonicalize_name

from alula.stack.listing import WheelFile
from alula.stack.lock import Toolkit
from alula.stack.offer import required_name
from alula.stack.picture import Chosen, Picture
from alula.stack.request import Attempt
from alula.stack.rules import rules
from alula.stack.solve import Solver
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


def decisions_of(attempt: Attempt, others: Sequence[Attempt], solver: Solver) -> Iterator[Decision]:
    """Each decision of a set; none where no set was found."""
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
            if each is not attempt and each.reason()
        ),
    )
    toolkit = choice.toolkit
    yield Decision(
        "toolkit",
        f"{toolkit.version or 'none'}{_where(toolkit)}",
        toolkit.reason,
        tuple(Rejected(*pair) for pair in choice.rejected),
    )
    wanted = {required_name(text) for text in solver.request.wanted}
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
    yield from _images(picture)


def _release(picture: Picture) -> str:
    """The CUDA of a set from general indexes: that of its runtime, else what its torch says."""
    release = runtime_release(picture)
    torch = picture.of("torch")
    return "{}.{}".format(*release) if release else torch.variant()[0] if torch else ""


def _why_cuda(attempt: Attempt, solver: Solver) -> str:
    if not attempt.holds:
        return "none holds; this came furthest"
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
    pins = pins_on(each.name, picture)
    asked = [text for text in solver.request.wanted if required_name(text) == each.name]
    companion = [rule.reason for rule in rules().companion if rule.package == each.name]
    reasons = [*(f"{text} is wanted" for text in asked), *pins[:2]] or companion
    return Decision(
        each.name,
        f"{each.file.version} of {each.file.index}",
        "; ".join(reasons) or "the newest that fits",
        tuple(_alternatives(each, picture, attempt, solver)),
    )


def pins_on(name: str, picture: Picture) -> list[str]:
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


def _images(picture: Picture) -> Iterator[Decision]:
    """A container image of the engine, which is always the other way."""
    for rule in rules().image:
        engine = picture.of(rule.engine)
        if engine is None:
            continue
        cuda = _release(picture).replace(".", "")
        name = rule.name.format(version=engine.file.version.public, cuda=cuda)
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
