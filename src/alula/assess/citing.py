"""Gates, attempts and options as evidence."""

from __future__ import annotations

from alula.assess.alternatives import Option
from alula.assess.evidence import Ledger
from alula.assess.opening import Standing
from alula.diagnosis.answer import escaped
from alula.diagnosis.together import Judged


def gate_key(each: Standing, ledger: Ledger) -> str:
    """Cites a gate with what was observed of it."""
    gate = each.gate
    what = f"{gate.feature}: {gate.component}, {gate.layer}: {gate.predicate}"
    stood = f"{each.before} before, {each.after} after"
    found = f"; {gate.observed}" if gate.observed else ""
    places = dict.fromkeys(filter(None, (gate.evidence, *each.sources)))
    return ledger.cite(f"{what}: {stood}{found}", "; ".join(places))


def attempt_key(each: Judged, ledger: Ledger) -> str:
    """Cites what an attempt failed of, with the line or the figure that says so."""
    cause, name = each.diagnosis.cause, escaped(each.attempt.name)
    if cause is None:
        logs = ", ".join(log.name for log in each.attempt.logs)
        return ledger.cite(f"{name}: nothing found that ended the run", logs or "the attempts")
    place = f"{cause.event.file.name}:{cause.event.number}" if cause.event else ""
    where = "; ".join(filter(None, (place, *map(escaped, cause.because), *cause.sources)))
    return ledger.cite(f"{name}: {cause.ruling.meaning} ({cause.certainty})", where)


def option_key(each: Option, ledger: Ledger) -> str:
    """Cites what an option does and where its gain comes from."""
    priced = each.gain.source if each.gain else ""
    source = "; ".join(filter(None, (*each.sources, priced)))
    hours = "no more than a restart" if each.is_free else f"{each.hours:g} h, by kind of change"
    return ledger.cite(
        f"{each.name}: {each.because}; {each.why}; {hours}", source or "alula assess"
    )
