"""The lock of a set."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from packaging.utils import canonicalize_name

from alula.stack.decisions import pins_on
from alula.stack.features import Feature, opened, still_closed
from alula.stack.indexes import binding_of
from alula.stack.lock import Lock, Wheel
from alula.stack.offer import required_name
from alula.stack.picture import Chosen, Picture
from alula.stack.request import Attempt
from alula.stack.solve import Solver


def lock_of(
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
        not_offered=not_offered(solver, picture, attempt.cuda),
        opens=tuple(opened(features)),
        stays_closed=tuple(still_closed(features)),
        risks=tuple(named),
    )


def not_offered(solver: Solver, picture: Picture, cuda: str) -> tuple[str, ...]:
    """Packages that were built on the baseline's machine, and that no index has for this target.

    One that an index might have which did not answer is not among them.
    """
    catalog = solver.catalog
    found = []
    for name in solver.request.built:
        listings = [catalog.listing(i, name) for i in binding_of(name, cuda, catalog.indexes)]
        known = all(listing.is_up for listing in listings)
        if picture.of(name) is None and known and not any(map(catalog.offered, listings)):
            found.append(name)
    return tuple(found)


def _wheel(each: Chosen, picture: Picture, solver: Solver) -> Wheel:
    owners = pins_on(each.name, picture) or [
        f"{owner.shown} requires it"
        for owner in picture.chosen.values()
        if any(canonicalize_name(found.name) == each.name for found in owner.requirements)
    ]
    asked = [f"{t} is wanted" for t in solver.request.wanted if required_name(t) == each.name]
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
