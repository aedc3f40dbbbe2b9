"""Conflicts as their fewest links: without any one of them the rest holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from alula.stack.catalog import Catalog, Target
from alula.stack.conflict import WANTED, Chain, find_chains
from alula.stack.indexes import Index
from alula.stack.offer import Offer, required_name, serving
from alula.stack.reading import Reader
from alula.stack.resolver import Asked, Resolver
from asking import Ask
from loopback_index import Made, Site, make_wheel


@pytest.fixture
def resolver() -> Iterator[Resolver]:
    with serving() as server, closing(Resolver(server, Target())) as found:
        yield found


def offer_of(site: Site, *wheels: Made) -> Offer:
    site.put_json("/simple/", wheels)
    index = Index("own", f"{site.url}/simple/")
    return Offer(Catalog(Reader(), [index], Target()))


def noise(count: int) -> list[Made]:
    """Packages that have nothing to do with any conflict."""
    return [make_wheel(f"noise-{n}", "1", [f"noise-{n + 1}"] if n else []) for n in range(count)]


def engines() -> list[Made]:
    return [
        make_wheel("one", "1", ["shared<0.8", "other==2", "noise-1"]),
        make_wheel("two", "1", ["shared>=1.3", "middle"]),
        make_wheel("middle", "1", ["other==3"]),
        make_wheel("middle", "2", ["other==3"]),
        *(make_wheel("shared", v) for v in ("0.7", "1.3")),
        *(make_wheel("other", v) for v in ("2", "3")),
        *noise(6),
        make_wheel("noise-6", "1"),
    ]


def test_each_conflict_is_found_and_named(site: Site, resolver: Resolver) -> None:
    offer = offer_of(site, *engines())
    chains = find_chains(resolver, offer, Asked(("one==1", "two==1")))
    words = {chain.words for chain in chains}
    wanted = ("one==1 is wanted", "two==1 is wanted")
    direct = (*wanted, "one 1 requires shared<0.8", "two 1 requires shared>=1.3")
    indirect = (
        *wanted,
        "middle 2 requires other==3, and no other middle on offer fits",
        "one 1 requires other==2",
        "two 1 requires middle",
    )
    assert words == {direct, indirect}


def without(offer: Offer, chain: Chain, left_out: int) -> Offer:
    gone = chain.links[left_out]
    return Offer(offer.catalog, kept=lambda package, requires: (package, requires) != gone)


def test_without_any_one_link_there_is_a_set(site: Site, resolver: Resolver) -> None:
    wheels = [w for w in engines() if w.project != "middle"]
    wheels.append(make_wheel("middle", "1"))
    offer = offer_of(site, *wheels)
    asked = Asked(("one==1", "two==1"))
    (chain,) = find_chains(resolver, offer, asked)
    for number, (package, required) in enumerate(chain.links):
        fewer = tuple(
            text
            for text in asked.wanted
            if not (package == WANTED and required_name(text) == required)
        )
        assert resolver.resolve(without(offer, chain, number), Asked(fewer))


def test_a_version_that_nobody_offers_is_told_with_those_that_are(
    site: Site, resolver: Resolver
) -> None:
    offer = offer_of(site, make_wheel("one", "1"), make_wheel("one", "2"))
    (chain,) = find_chains(resolver, offer, Asked(("one==3",)))
    assert chain.words == ("one==3 is wanted, and what is offered is 1, 2",)


def test_a_package_that_nobody_has(site: Site, ask: Ask) -> None:
    site.put_json("/simple/", [make_wheel("one", "1", ["absent>=2"])])
    told = ask("--index", f"own={site.url}/simple/", "--want", "one", "--json")
    assert told.code == 3
    assert not told.json["satisfiable"]
    (conflict,) = told.json["conflicts"]
    assert conflict["words"][-1].startswith("one 1 requires absent>=2")


def test_uv_is_told_of_no_other_index(
    site: Site, resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.put_json("/elsewhere/", [make_wheel("hidden", "1")])
    monkeypatch.setenv("UV_INDEX", f"{site.url}/elsewhere/")
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"{site.url}/elsewhere/")
    offer = offer_of(site, make_wheel("one", "1"))
    assert not resolver.resolve(offer, Asked(("hidden",)))
    assert not any("elsewhere" in path for path in site.asked)


def test_nothing_is_built(site: Site, resolver: Resolver) -> None:
    page = '<a href="x-1.0.tar.gz">x-1.0.tar.gz</a>'
    site.put("/simple/x/", page.encode(), "text/html")
    offer = offer_of(site)
    assert not resolver.resolve(offer, Asked(("x",)))
    assert site.asked == ["/simple/x/"]
