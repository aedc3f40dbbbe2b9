"""Holding a plan made by hand against itself: requirements, binaries, names, hashes, hopes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from packaging.utils import canonicalize_name
from packaging.version import Version

from alula.errors import UsageError
from alula.machine.gate import Gate
from alula.stack.by_hand import _ENGINES, Contradiction, HandDecision, HandMade, Judged, NotChecked
from alula.stack.checks import run_checks
from alula.stack.conflict import WANTED, find_chains
from alula.stack.features import features_of
from alula.stack.findings import Verdict
from alula.stack.indexes import Index
from alula.stack.listing import Listing, WheelFile
from alula.stack.offer import Offer
from alula.stack.picture import Chosen, Picture
from alula.stack.resolver import Asked
from alula.stack.solve import Solver
from alula.stack.toolkit import Release

_JUDGED = {
    "one CUDA",
    "driver",
    "an image for every GPU",
    "PTX within the driver",
    "symbols of torch and NCCL",
    "FlashInfer's parts equal",
}
"""Checks that say something of a part of a set."""


def judge(hand_made: HandMade, solver: Solver) -> Judged:
    """Everything that its decisions contradict, and the question for a set that keeps the rest."""
    judging = _Judging(hand_made, solver)
    with solver.wheels.progress("holding the decisions against each other", 0):
        found = tuple(judging.findings())
        kept = tuple(judging.kept())
    decisions = [hand_made.decision[n - 1] for n in kept]
    request = replace(
        solver.request,
        wanted=tuple(dict.fromkeys((*solver.request.wanted, *judging.wanted(decisions)))),
        cuda=judging.release or solver.request.cuda,
    )
    return Judged(
        hand_made,
        tuple(each for each in found if isinstance(each, Contradiction)),
        tuple(each for each in found if isinstance(each, NotChecked)),
        kept,
        request,
    )


def _versions(decisions: Sequence[HandDecision]) -> Iterator[tuple[str, str]]:
    return (pair for each in decisions for pair in each.packages.items())


def _owner(gate: Gate) -> str:
    return gate.component.partition(" ")[0]


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
        self._offer = Offer(
            solver.catalog, self._cuda, bindings=self._known(bindings), kept=self._can_be_read
        )
        self._files = dict(self._found())
        self._unread = dict(self._not_read())
        self._left_out: dict[str, tuple[Listing, set[str]]] = {}
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

    def _not_read(self) -> Iterator[tuple[str, Listing]]:
        """Packages of decisions that nobody found, and the index that may have them."""
        for name in self._by_package:
            listing = None if name in self._files else self._offer.silent(name)
            if listing:
                yield name, listing

    def _can_be_read(self, package: str, requires: str) -> bool:
        """A requirement on what an index that is down may have is left out, and told."""
        listing = self._offer.silent(requires)
        if listing is not None:
            _, owners = self._left_out.setdefault(listing.index.name, (listing, set()))
            owners.add(package)
        return listing is None

    def _looked_into(self) -> Picture:
        files = [(file, self._index(file).cuda) for file in self._files.values()]
        python = self._solver.catalog.target.python
        return Picture(python, self._solver.wheels.look(files))

    def _index(self, file: WheelFile) -> Index:
        return next(i for i in self._solver.catalog.indexes if i.name == file.index)

    def findings(self) -> Iterator[Contradiction | NotChecked]:
        """All contradictions, those of requirements first, and what could not be judged."""
        yield from self._of_requirements()
        yield from self._of_what_was_not_read()
        yield from self._of_pins_on_what_nobody_has()
        yield from self._of_binaries()
        yield from self._of_names()
        yield from self._of_pre_releases()
        yield from self._of_hashes()
        yield from self._of_features()

    def _of_requirements(self) -> Iterator[Contradiction]:
        asked = Asked(tuple(self.wanted(self._decisions)))
        for chain in find_chains(self._solver.resolver, self._offer, asked):
            wanted = [required for package, required in chain.links if package == WANTED]
            words = [w for w in chain.words if not w.endswith(" is wanted")]
            plain = [w.removesuffix(" is wanted") for w in chain.words if w.endswith(" is wanted")]
            told = f"{', '.join(plain)} cannot be together: {'; '.join(words)}" if plain else ""
            yield Contradiction(self._numbers(wanted), told or "; ".join(words), "METADATA of each")

    def wanted(self, decisions: Sequence[HandDecision]) -> list[str]:
        """Without what was not read: uv would say of it that there is none."""
        return [f"{n}=={v}" for n, v in _versions(decisions) if n not in self._unread]

    def _of_what_was_not_read(self) -> Iterator[NotChecked]:
        for name, listing in self._unread.items():
            number = self._by_package[name]
            version = self._decisions[number - 1].packages[name]
            yield NotChecked(
                (number,), f"{name} {version} was not read, since {listing.told_down()}"
            )
        for listing, owners in self._left_out.values():
            yield NotChecked(
                self._numbers(owners),
                f"what {', '.join(sorted(owners))} requires of {listing.index.name} was not read, "
                f"since {listing.told_down()}",
            )

    def _of_pins_on_what_nobody_has(self) -> Iterator[Contradiction]:
        """Pins that a version breaks, whether or not an index has it."""
        for name, number in self._by_package.items():
            version = self._decisions[number - 1].packages[name]
            for owner in self._picture.chosen.values() if name not in self._files else ():
                for requirement in owner.requirements:
                    on_it = canonicalize_name(requirement.name) == name
                    if on_it and not requirement.specifier.contains(version, prereleases=True):
                        yield Contradiction(
                            self._numbers((owner.name, name)),
                            f"{name} {version} cannot be with {owner.shown}, which requires "
                            f"{requirement.name}{requirement.specifier}",
                            f"METADATA of {owner.file.filename}",
                        )

    def _of_binaries(self) -> Iterator[Contradiction]:
        scene = self._solver.scene(self._picture)
        for finding in run_checks(scene):
            if finding.verdict is Verdict.FAILED and finding.check in _JUDGED:
                yield Contradiction(self._numbers(finding.about), finding.words, finding.evidence)

    def _of_names(self) -> Iterator[Contradiction]:
        """A wheel that pip by name would pass over for another one, without a word."""
        for each in self._picture.chosen.values():
            number = self._by_package[each.name]
            decision = self._decisions[number - 1]
            if decision.by == "name" and each.inner_version:
                other = self._taken_instead(each)
                yield Contradiction(
                    (number,),
                    f"{each.file.filename} says {each.inner_version} within, so that pip discards "
                    f"it by name{f' and silently takes {other}' if other else ''}; its address "
                    "alone is safe",
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

    def _of_pre_releases(self) -> Iterator[Contradiction | NotChecked]:
        for name, file in self._files.items():
            if not file.version.is_prerelease:
                continue
            if silent := self._solver.catalog.silent(name, self._cuda):
                yield NotChecked(
                    (self._by_package[name],),
                    f"whether there is a stable {name} is not known, since {silent.told_down()}",
                )
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

    def _of_features(self) -> Iterator[Contradiction | NotChecked]:
        """What it is hoped to open and does not."""
        opens = self._hand_made.opens
        machine = self._solver.request.machine
        for feature in features_of(machine, self._picture, None, opens):
            if feature.name not in opens:
                continue
            closed = [g for g in feature.closed() if _owner(g) not in self._unread]
            if not closed and feature.closed():
                owners = {_owner(gate) for gate in feature.closed()}
                yield NotChecked(
                    self._numbers(owners),
                    f"{feature.name} is hoped for, and depends on {', '.join(sorted(owners))}, "
                    "which was not read",
                )
            elif closed:
                gates = "; ".join(
                    f"{gate.layer} of {gate.component}: {gate.observed}"
                    f" (opens with {gate.opened_in or 'nothing that is known'})"
                    for gate in closed
                )
                yield Contradiction(
                    self._numbers(map(_owner, closed)),
                    f"{feature.name} is hoped for and stays closed: {gates}",
                    ", ".join(gate.evidence for gate in closed),
                )

    def _numbers(self, packages: Iterable[str]) -> tuple[int, ...]:
        """The decisions that these packages stand in."""
        names = set(map(canonicalize_name, packages))
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
        if names & self._unread.keys():
            return False
        wanted = tuple(self.wanted(decisions))
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
