"""What a change costs: downloads, disk, hours, local changes, what is known to go wrong."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from alula.assess.change import Target, expanded
from alula.assess.situation import Situation
from alula.diagnosis.changes import Change, applied
from alula.diagnosis.facts import Facts, all_hold
from alula.diagnosis.signatures import conditions
from alula.machine.environment import environment_at
from alula.stack.patches_find import find

_STACK = frozenset({"cuda", "torch"})


class Download(NamedTuple):
    """What one component weighs; `gb` is None where nobody says."""

    change: Change
    gb: float | None
    source: str


class Regression(NamedTuple):
    """What is known to go wrong with the versions of a change."""

    what: str
    source: str


@dataclass(frozen=True)
class Price:
    """Of the whole change."""

    downloads: tuple[Download, ...]
    total_gb: float | None
    """Where a lock says it."""
    disk_gb: float
    disk_source: str
    hours: float
    hours_said: bool
    """Whether somebody said them; else they are assumed."""
    local_changes: tuple[str, ...] | None
    """None where nobody looked."""
    regressions: tuple[Regression, ...]


@cache
def known() -> dict[str, Any]:
    """`known.toml`."""
    return tomllib.loads((files("alula.assess") / "known.toml").read_text("utf-8"))


def price(
    target: Target, situation: Situation, environment: Path | None, hours: float | None
) -> Price:
    """Price a change. Local changes are looked for where the environment was named."""
    changes = expanded(target.changes, situation.facts)
    return Price(
        downloads=tuple(_download(change) for change in changes),
        total_gb=None if target.download_bytes is None else target.download_bytes / 1e9,
        disk_gb=known()["environment"]["gb"],
        disk_source=known()["environment"]["source"],
        hours=known()["hours"][kind_of(changes)] if hours is None else hours,
        hours_said=hours is not None,
        local_changes=None if environment is None else _local(environment),
        regressions=(*_regressions(changes, situation.facts), *_risks(target)),
    )


def kind_of(changes: Sequence[Change]) -> str:
    """The kind of work: a whole stack, one of its packages, or the driver alone."""
    names = {change.component for change in changes}
    if names & _STACK:
        return "stack"
    return "driver" if names == {"driver"} else "package"


def _download(change: Change) -> Download:
    for entry in known()["download"]:
        if entry["component"] == change.component:
            return Download(change, entry["gb"], entry["source"])
    return Download(change, None, "")


def _regressions(changes: Sequence[Change], facts: Facts) -> tuple[Regression, ...]:
    """Those that the facts after the change meet and the facts before do not."""
    after = applied(changes, facts)
    found = []
    for entry in known()["regression"]:
        when = conditions(entry["when"])
        watched = entry.get("changed", "")
        fresh = facts.get(watched) != after.get(watched) if watched else not all_hold(when, facts)
        if fresh and all_hold(when, after):
            found.append(Regression(entry["what"], entry["source"]))
    return tuple(found)


def _risks(target: Target) -> tuple[Regression, ...]:
    return tuple(Regression(risk, target.source) for risk in target.risks)


def _local(environment: Path) -> tuple[str, ...]:
    """What was changed by hand; what is saved on the way is thrown away again."""
    with TemporaryDirectory() as folder:
        found = find(environment_at(environment), Path(folder) / "snapshot")
    return tuple(f"{change.kind}: {change.what}" for change in found.changes)
