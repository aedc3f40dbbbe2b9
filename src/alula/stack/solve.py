"""Finding a set: uv looks for versions, alula checks what it found, rules out, and asks again.

In order of preference: what is wanted and all requirements hold; the pins of the baseline stay;
stable before pre-release; the fewest changes; the newest. Nobody's pin is overridden unless a rule
says why, and then it is declared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from packaging.requirements import Requirement

from alula.diagnosis.driver_gates import dotted
from alula.machine.driver_versions import MINIMUM_DRIVER, parse_driver
from alula.stack.catalog import Catalog
from alula.stack.checks import run_checks
from alula.stack.conflict import Chain, find_chains
from alula.stack.findings import Finding, Scene, Verdict, set_major
from alula.stack.growing import Growing, Grown
from alula.stack.lock import Override
from alula.stack.offer import Offer, required_name
from alula.stack.picture import Picture
from alula.stack.request import Attempt, Request
from alula.stack.resolver import Asked, Resolver
from alula.stack.toolkit import release_of
from alula.stack.wheels import Wheels

_MOST_TRIES = 12


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
            return listing.told_down()
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
        """One set with all that it calls for, judged; or why there is none."""
        offer = Offer(self.catalog, cuda, banned)
        asked = Asked(self.request.wanted, (), self._preferred())
        with self.wheels.progress("reading indexes", 0):
            resolution = self.resolver.resolve(offer, asked)
        if not resolution:
            return Attempt(cuda, chains=self._chains(offer, asked) if not banned else ())
        growing = Growing(self.catalog, self.resolver, self.wheels, self.request, offer)
        return self._judged(cuda, growing.grown(asked, resolution))

    def _chains(self, offer: Offer, asked: Asked) -> tuple[Chain, ...]:
        self.telling("there is none; looking for the fewest requirements that cannot be together")
        with self.wheels.progress("leaving out requirements", 0):
            return find_chains(self.resolver, offer, asked)

    def _judged(self, cuda: str, grown: Grown) -> Attempt:
        picture, choice, overrides, notes = grown
        findings = run_checks(self.scene(picture, overrides))
        asked, found = self.request.cuda, set_major(picture)
        if asked and found != asked[0]:
            words = f"CUDA {asked[0]} was asked for, and the set is for {found or 'none'}"
            findings = (Finding("one CUDA", Verdict.FAILED, words), *findings)
        # A set that takes nothing from the indexes of a CUDA is of the general ones.
        used = any(each.cuda_index for each in picture.chosen.values())
        return Attempt(cuda if used else "", picture, choice, findings, overrides, notes=notes)

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
