"""Why nothing satisfies what is wanted: the fewest requirements that cannot hold together.

uv says in words that there is no set. Which requirements that stands on is found by leaving them
out one at a time: a chain is what remains when nothing more can be left out, so that without any
one of its links the rest of it can be satisfied.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from alula.errors import AlulaError
from alula.stack.listing import WheelFile
from alula.stack.offer import Link, Offer, required_name
from alula.stack.resolver import Asked, Resolver

WANTED = ""
"""Who requires what was asked for."""
_MOST_CHAINS = 8
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*[A-Za-z0-9]|[A-Za-z0-9]")


@dataclass(frozen=True)
class Chain:
    """A conflict: its links, and the same in words."""

    links: tuple[Link, ...]
    words: tuple[str, ...]

    @property
    def packages(self) -> frozenset[str]:
        """Every package that it names."""
        return frozenset(name for link in self.links for name in link if name != WANTED)


@dataclass(frozen=True)
class _Problem:
    resolver: Resolver
    offer: Offer
    asked: Asked

    def holds(self, links: frozenset[Link], only: bool) -> str:
        """uv's refusal with these links alone (`only`), or with all but these; "" for a set."""
        wanted = tuple(
            text for text in self.asked.wanted if ((WANTED, required_name(text)) in links) == only
        )
        if not wanted:
            return ""
        offer = replace(
            self.offer.binding(wanted),
            kept=lambda package, requires: (
                self.offer.kept(package, requires) and ((package, requires) in links) == only
            ),
        )
        asked = replace(self.asked, wanted=wanted, preferred=None)
        return self.resolver.resolve(offer, asked).refusal


def find_chains(resolver: Resolver, offer: Offer, asked: Asked) -> tuple[Chain, ...]:
    """Every conflict that stands on a requirement of its own, the first that uv met first."""
    problem = _Problem(resolver, offer, asked)
    found: list[Chain] = []
    without: frozenset[Link] = frozenset()
    while len(found) < _MOST_CHAINS:
        refusal = problem.holds(without, only=False)
        if not refusal:
            break
        links = _smallest(problem, refusal, without)
        if not links:
            break
        found.append(Chain(links, tuple(_words(problem, link, links) for link in links)))
        breaking = [link for link in links if link[0] != WANTED] or list(links)
        without |= {breaking[0]}
    return tuple(found)


def _smallest(problem: _Problem, refusal: str, without: frozenset[Link]) -> tuple[Link, ...]:
    """A chain within what uv's refusal names."""
    names = _named(problem, refusal)
    wanted = {required_name(text) for text in problem.asked.wanted}
    links = {(WANTED, name) for name in wanted & names}
    links |= {link for name in names for link in _links_of(problem, name) if link[1] in names}
    links -= without
    if not problem.holds(frozenset(links), only=True):
        links |= {(WANTED, name) for name in wanted} - without
        links |= {link for name in names | wanted for link in _links_of(problem, name)} - without
        if not problem.holds(frozenset(links), only=True):
            return ()
    kept = sorted(links, key=lambda link: (link[0] == WANTED, link))
    for link in list(kept):
        fewer = [other for other in kept if other != link]
        if problem.holds(frozenset(fewer), only=True):
            kept = fewer
    return tuple(sorted(kept, key=lambda link: (link[0] != WANTED, link)))


def _named(problem: _Problem, refusal: str) -> frozenset[str]:
    """Packages that uv names; any word may be one."""
    words = {canonicalize_name(word) for word in _WORD.findall(refusal)}
    wanted = {required_name(text) for text in problem.asked.wanted}
    known = {name for _, name in problem.offer.catalog.read()}
    return frozenset(words & (known | wanted))


def _links_of(problem: _Problem, package: str) -> Iterator[Link]:
    """What any version of a package that may be taken requires."""
    for file in _in_play(problem, package):
        try:
            requires = problem.offer.catalog.metadata(file).requires
        except AlulaError:
            continue
        yield from ((package, required_name(text)) for text in requires)


def _in_play(problem: _Problem, package: str, chain: tuple[Link, ...] = ()) -> list[WheelFile]:
    """The versions that what is wanted, and a chain, allow: newest first and not many."""
    files = sorted(problem.offer.files(package).values(), key=lambda file: file.version)
    texts = [text for text in problem.asked.wanted if required_name(text) == package]
    for owner, required in chain:
        if required == package and owner not in (WANTED, package):
            texts += _texts(problem, owner, package)[1]
    pins = [Requirement(text).specifier for text in texts]
    allowed = [f for f in files if all(pin.contains(f.version, prereleases=True) for pin in pins)]
    return allowed[::-1][:4]


def _texts(
    problem: _Problem, package: str, required: str, chain: tuple[Link, ...] = ()
) -> tuple[str, list[str]]:
    """A version of a package, and what it requires of another."""
    for file in _in_play(problem, package, chain):
        texts = problem.offer.catalog.metadata(file).requires
        if found := [text for text in texts if required_name(text) == required]:
            return str(file.version), found
    return "", []


def _words(problem: _Problem, link: Link, chain: tuple[Link, ...]) -> str:
    package, required = link
    if package == WANTED:
        texts = [text for text in problem.asked.wanted if required_name(text) == required]
        if _in_play(problem, required):
            return f"{texts[0]} is wanted"
        offered = sorted({f.version for f in problem.offer.files(required).values()})
        shown = ", ".join(map(str, offered[-6:])) or "no version of it"
        silent = _silent(problem, required)
        return f"{texts[0]} is wanted, and what is offered is {shown}{silent}"
    version, texts = _texts(problem, package, required, chain)
    shown = _short(texts[0]) if texts else required
    others = len(_in_play(problem, package, chain)) > 1
    tail = f", and no other {package} on offer fits" if others else ""
    return f"{package} {version} requires {shown}{tail}".replace("  ", " ")


def _silent(problem: _Problem, package: str) -> str:
    """Which index that may have a package did not answer."""
    listing = problem.offer.silent(package)
    return f" ({listing.index.name} did not answer)" if listing else ""


def _short(text: str) -> str:
    """A requirement without its conditions."""
    requirement = Requirement(text)
    return f"{requirement.name}{requirement.specifier}" if requirement.specifier else text
