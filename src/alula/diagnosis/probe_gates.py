"""What probes say of the gates that they measure: running something settles what files suggest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from alula.machine.gate import Gate, GateVerdict, Layer
from alula.machine.probe_child import Ending, Outcome


def settled(gates: Iterable[Gate], outcomes: Sequence[Outcome]) -> tuple[Gate, ...]:
    """The gates, those that a probe has measured with its verdict."""
    by_name = {each.name: each for each in outcomes if each.ending is not Ending.NOT_RUN}
    return tuple(_settled(gate, by_name.get(gate.probe.partition(" ")[0])) for gate in gates)


def import_gates(outcomes: Iterable[Outcome]) -> Iterator[Gate]:
    """A gate for each package that is there and cannot be imported."""
    for outcome in outcomes:
        for package, wrong in outcome.parts.items() if outcome.name == "import" else ():
            if wrong:
                yield Gate(
                    package,
                    "import",
                    Layer.LINKAGE,
                    "it can be imported",
                    wrong,
                    GateVerdict.CLOSED,
                    "probe: import",
                    probe=f"import {package}",
                )


def _settled(gate: Gate, outcome: Outcome | None) -> Gate:
    if outcome is None:
        return gate
    measured = {
        part: wrong
        for part, wrong in outcome.parts.items()
        if f"{outcome.name} {part} ".startswith(f"{gate.probe} ")
    }
    if not measured:
        return gate if outcome.ending is Ending.PASSED else _unanswered(gate, outcome)
    wrong = [f"{part}: {text}" for part, text in measured.items() if text]
    return replace(
        gate,
        observed=f"{wrong[0] if wrong else 'it holds when it is tried'}; before: {gate.observed}",
        verdict=GateVerdict.CLOSED if wrong else GateVerdict.OPEN,
        evidence=f"probe: {outcome.name}",
        opened_in=gate.opened_in if wrong else "",
    )


def _unanswered(gate: Gate, outcome: Outcome) -> Gate:
    """A probe that hung or broke closes the gate that is all it measures, and no other."""
    alone = gate.probe == outcome.name
    said = f" ({outcome.findings[0]})" if outcome.findings else ""
    return replace(
        gate,
        observed=f"the probe {outcome.ending}{said}; before: {gate.observed}",
        verdict=GateVerdict.CLOSED if alone else GateVerdict.UNKNOWN,
        evidence=f"probe: {outcome.name}",
    )
