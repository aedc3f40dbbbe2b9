"""What else one could do, ranked by gain × probability ÷ price, what costs nothing first."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from alula.assess.change import shown
from alula.assess.evidence import counted
from alula.assess.gains import FREE, Gain, Gains
from alula.assess.opening import RUNNING, Opening, Standing
from alula.assess.price import known
from alula.diagnosis.chains import chains
from alula.diagnosis.changes import Change, applied
from alula.diagnosis.facts import Facts, all_hold
from alula.diagnosis.signatures import conditions
from alula.machine.gate import GateVerdict

_IN_DOUBT = 0.5
_CHANGE = "this change"


@dataclass(frozen=True)
class Option:
    """One thing to do."""

    name: str
    how: str
    gain: Gain | None
    """Tokens a second beside the best draft; None where it cannot be priced."""
    probability: float
    why: str
    """What the probability rests on."""
    hours: float
    because: str
    sources: tuple[str, ...]
    is_change: bool = False

    @property
    def is_free(self) -> bool:
        """Whether it costs no more than a restart."""
        return self.hours == 0

    @property
    def expected(self) -> float:
        """Gain × probability, by the middle of the gain."""
        return (self.gain.middle if self.gain else 0.0) * self.probability

    @property
    def rank(self) -> tuple[bool, float, float]:
        """Sorts: free ones first, then by gain × probability ÷ price, then by probability."""
        per_hour = self.expected if self.is_free else self.expected / self.hours
        return not self.is_free, -per_hour, -self.probability


@cache
def _entries() -> tuple[dict[str, Any], ...]:
    text = (files("alula.assess") / "alternatives.toml").read_text("utf-8")
    return tuple(tomllib.loads(text)["alternative"])


def options(
    facts: Facts,
    gains: Gains,
    opening: Opening,
    change: tuple[str, float],
    smaller: Change | None,
) -> tuple[Option, ...]:
    """Everything that one could do, the best first, the change itself among it.

    `change` is its title and its hours, `smaller` a toolkit that opens the same.
    """
    found = [_option(entry, facts, gains) for entry in _entries()]
    whole = _change(gains, opening, *change)
    found += [whole] if smaller is None else [whole, _smaller(smaller, whole)]
    return tuple(sorted(found, key=lambda each: each.rank))


def _smaller(change: Change, whole: Option) -> Option:
    """A toolkit within reach that opens the same gates."""
    return replace(
        whole,
        name=f"{shown(change)} instead",
        how=f"the same with {shown(change)}",
        hours=min(whole.hours, known()["hours"]["package"]),
        because="it opens the same gates, and what is built for this major version stays",
        is_change=False,
    )


def first_free(ranked: Sequence[Option]) -> Option | None:
    """What to try first: free, able to work, and not to leave everything as it is."""
    able = (each for each in ranked if each.is_free and each.probability > 0)
    return next((each for each in able if each.gain is None or each.gain.middle > 0), None)


def _option(entry: dict[str, Any], facts: Facts, gains: Gains) -> Option:
    rows = gains.rows
    probability, why = _probability(entry, facts)
    numbers = {"rows": rows, "depth": rows - 1} if rows else {"rows": "N", "depth": "N−1"}
    name = entry["name"] if rows else entry.get("nameless", entry["name"])
    return Option(
        name=name.format(**numbers),
        how=entry["how"].format(**numbers) if "{" in entry["how"] else entry["how"],
        gain=_gain(entry["remedy"], gains),
        probability=probability,
        why=why,
        hours=known()["hours"][entry["kind"]],
        because=entry["because"],
        sources=tuple(entry["sources"]),
    )


def _gain(remedy: str, gains: Gains) -> Gain | None:
    return Gain(0.0, 0.0, "nothing changes") if remedy == "nothing" else gains.of(remedy)


def _probability(entry: dict[str, Any], facts: Facts) -> tuple[float, str]:
    """1 where nothing known stands in the way, 0 where something does, else one in two."""
    for condition in conditions(entry.get("when", ())):
        if condition.holds(facts) is False:
            return 0.0, f"{condition.said(facts)} does not hold: it is {facts.get(condition.name)}"
    after = applied(map(Change.parse, entry.get("changes", ())), facts)
    chain = chains().of(entry.get("feature", ""))
    verdicts = [(gate, gate.verdict(after)) for gate in chain]
    for gate, verdict in verdicts:
        if verdict is GateVerdict.CLOSED:
            return 0.0, f"closed: {gate.gate.component}, {gate.gate.layer}: {gate.gate.predicate}"
    if "doubt" in entry:
        return _IN_DOUBT, entry["doubt"]
    unknown = [gate for gate, verdict in verdicts if verdict is GateVerdict.UNKNOWN]
    if unknown or all_hold(conditions(entry.get("when", ())), facts) is None:
        lacking = unknown[0].gate.predicate if unknown else ", ".join(entry["when"])
        return _IN_DOUBT, f"not known: {lacking}"
    return 1.0, "nothing that is known stands in the way"


def _change(gains: Gains, opening: Opening, title: str, hours: float) -> Option:
    """The change itself: its gain is all that runs, or the most that its gates can bring."""
    counting = tuple(_counting(opening))
    runs = any(each.opened and each.gate.feature == RUNNING for each in counting)
    everything = None if gains.tok_s is None else Gain(gains.tok_s, gains.tok_s, gains.tok_s_from)
    return Option(
        name=title,
        how=_CHANGE,
        gain=everything if runs else gains.of(FREE),
        probability=max((_likely(each, opening) for each in counting), default=0.0),
        why=_reach(opening, any(each.opened for each in counting)),
        hours=hours,
        because="nothing runs without it" if runs else "at most: every all-reduce becomes free",
        sources=(),
        is_change=True,
    )


def _likely(each: Standing, opening: Opening) -> float:
    """That a gate opens and brings something; a measurement made elsewhere may say it does not."""
    against = each.gate.feature != RUNNING and opening.rest(each.gate.feature)
    return min(each.probability, _IN_DOUBT) if against else each.probability


def _reach(opening: Opening, counts: bool) -> str:
    opened = opening.opened
    behind = ", each with others closed behind it" if opened and not counts else ""
    if any(each.gate.feature != RUNNING and opening.rest(each.gate.feature) for each in opened):
        behind = behind or ", and a measurement made elsewhere speaks against them"
    now = len(opening.closed_now)
    return f"it opens {counted(opened, 'gate')}; {now} are closed today{behind}"


def _counting(opening: Opening) -> Iterator[Standing]:
    """Gates before everything, and those whose feature has nothing else closed in the end."""
    wanted = opening.asked or frozenset(opening.features)
    for each in opening.standings:
        feature = each.gate.feature
        if feature == RUNNING or (feature in wanted and opening.only_measured(feature)):
            yield each
