"""Finding a set: uv looks for versions, alula checks what it found, rules out, and asks again.

In order of preference: what is wanted and all requirements hold; the pins of the baseline stay;
stable before pre-release; the fewest changes; the newest. Nobody's pin is overridden unless a rule
says why, and then it is declared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from alula.diagnosis.driver_gates import dotted
from alula.machine.driver_versions import MINIMUM_DRIVER, parse_driver
from alula.machine.toolkits import Toolkit as Found
from alula.stack.catalog import Catalog
from alula.stack.checks import run_checks
from alula.stack.conflict import Chain, find_chains
from alula.stack.findings import Finding, Scene, Verdict, set_major
from alula.stack.listing import WheelFile
from alula.stack.lock import Override
from alula.stack.offer import Offer, required_name
from alula.stack.picture import Picture
from alula.stack.request import Attempt, Request
from alula.stack.resolver import Asked, Resolution, Resolver
from alula.stack.rules import rules
from alula.stack.set_checks import start_up_refusals
from alula.stack.toolkit import Choice, choose_toolkit, release_of
from alula.stack.wheels import Wheels

_MOST_TRIES = 12
_MOST_ADDITIONS = 6


@dataclass
class Solver:
    """One search."""

    catalog: Catalog
    resolver: Resolver
    wheels: Wheels
    request: Request
    telling: Callable[[str], None] = lambda _: None

    def solve(self) -> tuple[Attempt | None, tuple[Attempt, ...]]:
        """The first attempt that holds, and all that came before it or were not tried."""
        before: list[Attempt] = []
        for cuda, skipped in self._variants():
            if skipped:
                before.append(Attempt(cuda, skipped=skipped))
                continue
            self.telling(f"looking for a set for {cuda or 'what the general indexes have'}")
            attempt = self._attempt(cuda)
            if attempt.holds:
                return attempt, tuple(before)
            before.append(attempt)
        return None, tuple(before)

    def _variants(self) -> Iterator[tuple[str, str]]:
        """Labels in the order in which they are tried, each with why it is not tried, or ""."""
        labels = {
            index.cuda
            for index in self.catalog.indexes
            if index.cuda and not index.nightly and "torch" in index.packages
        }
        ordered = sorted(labels, key=lambda label: release_of(label) or (0, 0), reverse=True)
        if before := self._baseline_label():
            ordered.sort(key=lambda label: label != before)
        for label in ordered:
            yield label, self._why_not(label)
        yield "", ""

    def _baseline_label(self) -> str:
        if self.request.baseline is None or self.request.cuda:
            return ""
        torch = self.request.baseline.component("torch")
        return torch.variant if torch else ""

    def _why_not(self, label: str) -> str:
        release = release_of(label)
        if self.request.cuda and release != self.request.cuda:
            return "CUDA {}.{} was asked for".format(*self.request.cuda)
        if release and (old := self._too_old(release[0])):
            return old
        listing = next(
            self.catalog.listing(index, "torch")
            for index in self.catalog.indexes
            if index.cuda == label and "torch" in index.packages and not index.nightly
        )
        if not listing.is_up:
            return f"{listing.index.name} is down: {listing.page.why}"
        if not self.catalog.offered(listing):
            undated = listing.index.name in self.catalog.undated()
            words = "has no upload times and no snapshot" if undated else "has no torch for here"
            return f"{listing.index.name} {words}"
        return ""

    def _too_old(self, major: int) -> str:
        driver = self.request.machine.driver.version
        floor = MINIMUM_DRIVER.get(major)
        if not driver or floor is None:
            return ""
        have = parse_driver(driver)
        if have >= floor[: len(have)]:
            return ""
        return f"CUDA {major} needs driver {dotted(floor)}, and it is {driver}"

    def _attempt(self, cuda: str) -> Attempt:
        """Rule out one version at a time, the fewest first, until every check passes."""
        queue: list[tuple[frozenset[tuple[str, str]], tuple[tuple[str, str, str], ...]]]
        queue = [(frozenset(), ())]
        seen: set[frozenset[tuple[str, str]]] = set()
        first: Attempt | None = None
        while queue and len(seen) < _MOST_TRIES:
            banned, why = queue.pop(0)
            if banned in seen:
                continue
            seen.add(banned)
            attempt = replace(self._once(cuda, banned), ruled_out=why)
            if attempt.holds:
                return attempt
            first = first or attempt
            queue += [
                (banned | {(name, version)}, (*why, (name, version, words)))
                for name, version, words in self._blamed(attempt)
            ]
        assert first is not None
        return first

    def _blamed(self, attempt: Attempt) -> Iterator[tuple[str, str, str]]:
        """Versions of which another might pass the first check that failed."""
        failed = [each for each in attempt.findings if each.verdict is Verdict.FAILED]
        if attempt.picture is None or not failed:
            return
        for name in failed[0].about:
            each = attempt.picture.of(name)
            if each is not None and not self._is_pinned(name):
                yield name, str(each.file.version), failed[0].words

    def _is_pinned(self, name: str) -> bool:
        return any(
            required_name(text) == name and "==" in str(Requirement(text).specifier)
            for text in self.request.wanted
        )

    def _once(self, cuda: str, banned: frozenset[tuple[str, str]]) -> Attempt:
        """One set, with the companions, the toolkit and the overrides that it calls for."""
        offer = Offer(self.catalog, cuda, banned)
        asked = Asked(self.request.wanted, (), self._preferred())
        overrides: tuple[Override, ...] = ()
        notes: tuple[str, ...] = ()
        with self.wheels.progress("reading indexes", 0):
            resolution = self.resolver.resolve(offer, asked)
        if not resolution:
            return Attempt(cuda, chains=self._chains(offer, asked) if not banned else ())
        refused = ""
        for _ in range(_MOST_ADDITIONS):
            picture = self._picture(offer, resolution.versions)
            choice = self._toolkit(picture, cuda, refused)
            more, declared = self._additions(picture, offer, asked)
            tools = _unasked(choice.wanted, asked)
            if not more and not declared and not tools:
                break
            bigger = _bigger(asked, (*more, *tools), declared, resolution)
            found = self.resolver.resolve(offer, bigger)
            if not found and tools:
                refused = _refusal(picture, tools)
                bigger = _bigger(asked, more, declared, resolution)
                found = self.resolver.resolve(offer, bigger)
            if not found:
                notes += (f"{', '.join((*more, *bigger.overrides))} does not fit beside the rest",)
                break
            asked, resolution, overrides = bigger, found, (*overrides, *declared)
        return self._judged(cuda, picture, choice, overrides, notes)

    def _chains(self, offer: Offer, asked: Asked) -> tuple[Chain, ...]:
        self.telling("there is none; looking for the fewest requirements that cannot be together")
        with self.wheels.progress("leaving out requirements", 0):
            return find_chains(self.resolver, offer, asked)

    def _judged(
        self,
        cuda: str,
        picture: Picture,
        choice: Choice,
        overrides: tuple[Override, ...],
        notes: tuple[str, ...],
    ) -> Attempt:
        picture = _with_toolkit(picture, choice, self.request.folders)
        findings = run_checks(self.scene(picture, overrides))
        if self.request.cuda and (major := set_major(picture)) != self.request.cuda[0]:
            words = (
                f"CUDA {self.request.cuda[0]} was asked for, and the set is for {major or 'none'}"
            )
            findings = (Finding("one CUDA", Verdict.FAILED, words), *findings)
        # A set that takes nothing from the indexes of a CUDA is of the general ones.
        used = any(each.cuda_index for each in picture.chosen.values())
        label = cuda if used else ""
        return Attempt(label, picture, choice, findings, overrides, notes=notes)

    def scene(self, picture: Picture, overrides: Sequence[Override] = ()) -> Scene:
        """What the checks look at."""
        return Scene(
            picture,
            self.request.machine,
            self.catalog.target,
            self.request.architecture,
            self.request.free_bytes,
            frozenset(required_name(each.requirement) for each in overrides),
        )

    def _preferred(self) -> dict[str, str]:
        """The versions of the baseline, as far as they are plain ones."""
        packages = self.request.baseline.packages if self.request.baseline else {}
        wanted = {required_name(text) for text in self.request.wanted}
        return {n: v for n, v in packages.items() if "+" not in v and n not in wanted}

    def _picture(self, offer: Offer, versions: Mapping[str, Version]) -> Picture:
        files = [self._file(offer, name, version) for name, version in versions.items()]
        chosen = self.wheels.look(files)
        return Picture(self.catalog.target.python, chosen, extra_sonames=self.request.sonames)

    def _file(self, offer: Offer, name: str, version: Version) -> tuple[WheelFile, str]:
        found = next(file for file in offer.files(name).values() if file.version == version)
        cuda = next(index.cuda for index in self.catalog.indexes if index.name == found.index)
        return found, cuda

    def _toolkit(self, picture: Picture, cuda: str, refused: str) -> Choice:
        request = self.request
        return choose_toolkit(
            picture,
            cuda,
            request.machine,
            self.catalog,
            request.folders,
            asked=request.cuda,
            refused=refused,
        )

    def _additions(
        self, picture: Picture, offer: Offer, asked: Asked
    ) -> tuple[tuple[str, ...], tuple[Override, ...]]:
        """What a set calls for and does not have: requirements, and overrides with their reason."""
        have = {required_name(text) for text in asked.wanted}
        more = []
        for rule in rules().companion:
            of = picture.of(rule.of)
            if of is None or rule.package in have or picture.of(rule.package):
                continue
            public = Version(of.file.version.public)
            offered = offer.files(rule.package).values()
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
