"""What a set calls for beside what is wanted: companions, a toolkit, and declared overrides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from alula.machine.toolkits import Toolkit as Found
from alula.stack.catalog import Catalog
from alula.stack.listing import WheelFile
from alula.stack.lock import Override
from alula.stack.offer import Offer, required_name
from alula.stack.picture import Picture
from alula.stack.request import Request
from alula.stack.resolver import Asked, Resolution, Resolver
from alula.stack.rules import rules
from alula.stack.set_checks import start_up_refusals
from alula.stack.toolkit import Choice, choose_toolkit
from alula.stack.wheels import Wheels


class Grown(NamedTuple):
    """A whole set."""

    picture: Picture
    choice: Choice
    overrides: tuple[Override, ...]
    notes: tuple[str, ...]
    """What did not fit, in words."""


@dataclass
class Growing:
    """One set on its way."""

    catalog: Catalog
    resolver: Resolver
    wheels: Wheels
    request: Request
    offer: Offer

    def grown(self, asked: Asked, resolution: Resolution) -> Grown:
        """The set with what it calls for, as far as that fits; each round asks for more."""
        overrides: tuple[Override, ...] = ()
        notes: tuple[str, ...] = ()
        refused = ""
        while True:
            picture = self._picture(resolution.versions)
            choice = self._toolkit(picture, refused)
            more, declared = self._additions(picture, asked)
            tools = _unasked(choice.wanted, asked)
            if notes or not (more or declared or tools):
                break
            bigger = _bigger(asked, (*more, *tools), declared, resolution)
            found = self.resolver.resolve(self.offer, bigger)
            if not found and tools:
                refused = _refusal(picture, tools)
                bigger = _bigger(asked, more, declared, resolution)
                found = self.resolver.resolve(self.offer, bigger)
            if found:
                asked, resolution, overrides = bigger, found, (*overrides, *declared)
            else:
                notes = (f"{', '.join((*more, *bigger.overrides))} does not fit beside the rest",)
        picture = _with_toolkit(picture, choice, self.request.folders)
        return Grown(picture, choice, overrides, notes)

    def _picture(self, versions: Mapping[str, Version]) -> Picture:
        files = [self._file(name, version) for name, version in versions.items()]
        chosen = self.wheels.look(files)
        return Picture(self.catalog.target.python, chosen)

    def _file(self, name: str, version: Version) -> tuple[WheelFile, str]:
        found = next(file for file in self.offer.files(name).values() if file.version == version)
        cuda = next(index.cuda for index in self.catalog.indexes if index.name == found.index)
        return found, cuda

    def _toolkit(self, picture: Picture, refused: str) -> Choice:
        request = self.request
        return choose_toolkit(
            picture,
            self.offer.cuda,
            request.machine,
            self.catalog,
            request.folders,
            asked=request.cuda,
            refused=refused,
        )

    def _additions(
        self, picture: Picture, asked: Asked
    ) -> tuple[tuple[str, ...], tuple[Override, ...]]:
        """What a set calls for and does not have: requirements, and overrides with their reason."""
        have = {required_name(text) for text in asked.wanted}
        more = []
        for rule in rules().companion:
            of = picture.of(rule.of)
            if of is None or rule.package in have or picture.of(rule.package):
                continue
            public = Version(of.file.version.public)
            offered = self.offer.files(rule.package).values()
            if any(Version(file.version.public) == public for file in offered):
                more.append(f"{rule.package}=={public}")
        declared = [
            each for each in self._overrides(picture) if each.requirement not in asked.overrides
        ]
        return tuple(more), tuple(declared)

    def _overrides(self, picture: Picture) -> Iterator[Override]:
        for rule, where, each in start_up_refusals(picture, self.request.architecture):
            for owner in picture.chosen.values():
                for requirement in owner.requirements:
                    if canonicalize_name(requirement.name) == each.name and requirement.specifier:
                        yield Override(
                            package=each.name,
                            pinned_by=f"{owner.shown} requires {each.name}{requirement.specifier}",
                            requirement=f"{each.name}{rule.needs}",
                            reason=f"{rule.reason} ({where}; {rule.source})",
                        )


def _bigger(
    asked: Asked,
    more: Sequence[str],
    declared: Sequence[Override],
    before: Resolution,
) -> Asked:
    """The same with more to it, and every version kept that can be."""
    return Asked(
        (*asked.wanted, *more),
        (*asked.overrides, *(each.requirement for each in declared)),
        {name: str(version) for name, version in before.versions.items()},
    )


def _unasked(texts: Sequence[str], asked: Asked) -> tuple[str, ...]:
    have = {required_name(text) for text in asked.wanted}
    return tuple(text for text in texts if required_name(text) not in have)


def _refusal(picture: Picture, texts: Sequence[str]) -> str:
    """Why the toolkit's wheels do not go into a set."""
    words = []
    for text in map(Requirement, texts):
        name = canonicalize_name(text.name)
        each = picture.of(name)
        if each is not None and not text.specifier.contains(each.file.version):
            pins = [
                f"{owner.shown} requires {name}{found.specifier}"
                for owner in picture.chosen.values()
                for found in owner.requirements
                if canonicalize_name(found.name) == name
            ]
            words.append(f"{text} is wanted, {', '.join(pins)}")
    return f"its wheels do not fit beside the rest{': ' if words else ''}{'; '.join(words)}"


def _with_toolkit(picture: Picture, choice: Choice, folders: Sequence[Found]) -> Picture:
    """The set with its compiler, whose architectures are those of the ptxas in its wheels."""
    because = choice.toolkit.reason
    if choice.toolkit.kind == "none":
        return replace(picture, toolkit_because=because)
    for folder in folders:
        if folder.path == choice.toolkit.path:
            return replace(picture, toolkit=folder, toolkit_because=because)
    version = choice.toolkit.version or ""
    known: tuple[str, ...] = ()
    for name, each in picture.chosen.items():
        if name.startswith("nvidia-cuda-nvcc") and each.contents:
            for found in each.contents.compilers.values():
                version, known = found.version or version, found.architectures
    path = choice.toolkit.path or "the environment's own toolkit"
    return replace(picture, toolkit=Found(path, version, known), toolkit_because=because)
