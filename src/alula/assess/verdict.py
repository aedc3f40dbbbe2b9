"""The answer in a line: worth it, not worth it, or not to be decided from what is known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from alula.assess.alternatives import Option, first_free
from alula.assess.change import Target, expanded, is_there
from alula.assess.citing import attempt_key, gate_key, option_key
from alula.assess.evidence import Ledger, Row, counted
from alula.assess.opening import RUNNING, Opening, Standing
from alula.assess.situation import Situation
from alula.diagnosis.answer import escaped


class Verdict(IntEnum):
    """As exit codes."""

    WORTH_IT = 0
    NOT_WORTH_IT = 3
    UNDECIDED = 4


@dataclass(frozen=True)
class Line:
    """The verdict and its sentences, each with its evidence."""

    verdict: Verdict
    sentences: tuple[Row, ...]

    def __str__(self) -> str:
        return " ".join(row.cells[0] for row in self.sentences)


def decide(
    target: Target,
    situation: Situation,
    opening: Opening,
    ranked: Sequence[Option],
    ledger: Ledger,
) -> Line:
    """Decide, and say why in a line."""
    teller = _Teller(target, situation, opening, ledger)
    verdict, sentences = teller.verdict()
    sentences = [*sentences, *teller.closing()]
    free = first_free(ranked)
    if verdict is not Verdict.WORTH_IT and free is not None:
        key = option_key(free, ledger)
        sentences.append(Row((f"First try {free.name} (free).",), (key,)))
    return Line(verdict, tuple(sentences))


@dataclass(frozen=True)
class _Teller:
    target: Target
    situation: Situation
    opening: Opening
    ledger: Ledger

    def verdict(self) -> tuple[Verdict, list[Row]]:
        running = [each for each in self.opening.opened if each.gate.feature == RUNNING]
        facts = self.situation.facts
        if all(is_there(each, facts) for each in expanded(self.target.changes, facts)):
            return Verdict.NOT_WORTH_IT, [self._there()]
        if self._broken():
            return Verdict.NOT_WORTH_IT, [self._in_vain()]
        if running:
            return Verdict.WORTH_IT, list(self._needed(running))
        if self.opening.unblocked:
            return self._unblocks()
        if not facts.get("capability"):
            key = self.ledger.cite("no GPU is described", self.situation.report)
            return Verdict.UNDECIDED, [Row(("Undecided: nothing is known of the GPUs.",), (key,))]
        if undecided := [*self._to_be_measured(), *self._not_looked_into()]:
            return Verdict.UNDECIDED, undecided
        return Verdict.NOT_WORTH_IT, [self._in_vain()]

    def closing(self) -> Iterator[Row]:
        """What the change breaks."""
        if shut := self._broken():
            owners = ", ".join(dict.fromkeys(each.gate.component for each in shut))
            text = f"As it stands it breaks {counted(shut, 'requirement')} of {owners}."
            yield Row((text,), self._keys(shut))

    def _broken(self) -> list[Standing]:
        """Gates before everything that the change closes."""
        return [each for each in self.opening.shut if each.gate.feature == RUNNING]

    def _there(self) -> Row:
        verb = "are" if self.target.is_plural else "is"
        key = self.ledger.cite(f"{self.target.title} {verb} installed", self.situation.report)
        return Row((f"No: {self.target.title} {verb} there already.",), (key,))

    def _needed(self, running: list[Standing]) -> Iterator[Row]:
        what = "; ".join(f"{each.gate.component}, {each.gate.layer}" for each in running)
        opened = f"{self._subject('opens')} {counted(running, 'gate')} before everything"
        yield Row((f"Worth it: {opened} ({what}).",), self._keys(running))
        rest = self.opening.rest(RUNNING)
        if rest:
            told = "; ".join(f"{each.gate.component}: {each.gate.predicate}" for each in rest)
            yield Row((f"Not enough alone, still closed: {told}.",), self._keys(rest))

    def _unblocks(self) -> tuple[Verdict, list[Row]]:
        """Worth it for what has nothing behind; what a measurement speaks against is undecided."""
        names = self.opening.unblocked
        clear = [name for name in names if not self.opening.behind([name])]
        shown = f"{self._count()} ({', '.join(map(escaped, names))})"
        if clear:
            return Verdict.WORTH_IT, [Row((f"Worth it: {shown}.",), self._attempts())]
        behind = self._keys(self.opening.behind(names))
        text = f"Undecided: {shown}, and a measurement made elsewhere speaks against it."
        return Verdict.UNDECIDED, [Row((text,), (*self._attempts(), *behind))]

    def _to_be_measured(self) -> Iterator[Row]:
        """Features before which the change leaves nothing but published measurements."""
        told, keys = [], list[str]()
        for feature in self.opening.features:
            opened = [each for each in self.opening.of(feature) if each.opened]
            if not opened or feature == RUNNING or not self.opening.only_measured(feature):
                continue
            rest = self.opening.rest(feature)
            behind = ", behind which a measurement made elsewhere stands" if rest else ""
            told.append(f"{counted(opened, 'gate')} of {feature}{behind}")
            keys += [*self._keys(opened), *self._keys(rest)]
        if told:
            unblocks = f"{self._count()}, but" if self._failed() else self._subject("opens")
            yield Row((f"Undecided: {unblocks} {'; '.join(told)}.",), tuple(keys))

    def _not_looked_into(self) -> Iterator[Row]:
        wanted = frozenset((RUNNING, *self._features()))
        maybe = [
            each
            for each in self.opening.maybe
            if not self.opening.asked or each.gate.feature in wanted
        ]
        if maybe:
            text = f"Undecided: nobody has looked into what {self.target.title} does to "
            yield Row((f"{text}{counted(maybe, 'gate')}.",), self._keys(maybe))

    def _in_vain(self) -> Row:
        opened = self.opening.opened
        if self._failed():
            gates = f", and {counted(opened, 'gate')} with others closed behind" if opened else ""
            some = bool(self.opening.unblocked)
            text = (
                f"Not {'as it stands' if some else 'for these failures'}: {self._count()}{gates}."
            )
            return Row((text,), (*self._attempts(), *self._keys(opened)))
        closed = self.opening.closed_now
        if not closed and not opened:
            key = self.ledger.cite("no gate that is known is closed", self.situation.report)
            return Row((f"No: nothing is closed that {self.target.title} could open.",), (key,))
        vain = ", and no feature with them" if opened else ""
        text = f"No: {self._subject('opens')} {len(opened)} of {len(closed)} closed gates{vain}."
        return Row((text,), (*self._keys(closed), *self._keys(opened)))

    def _features(self) -> tuple[str, ...]:
        """What was tried; everything where nothing was."""
        asked = self.opening.asked
        return tuple(name for name in self.opening.features if not asked or name in asked)

    def _count(self) -> str:
        return f"{self._subject('opens')} {len(self.opening.unblocked)} of {len(self._failed())}"

    def _failed(self) -> list[str]:
        judged = self.situation.judged
        return [each.attempt.name for each in judged if each.diagnosis.cause is not None]

    def _subject(self, verb: str) -> str:
        return f"{self.target.title} {verb[:-1] if self.target.is_plural else verb}"

    def _attempts(self) -> tuple[str, ...]:
        """Cites the cause of every attempt."""
        return tuple(attempt_key(each, self.ledger) for each in self.situation.judged)

    def _keys(self, gates: Iterable[Standing]) -> tuple[str, ...]:
        return tuple(gate_key(each, self.ledger) for each in gates)
