"""What stands behind the verdict, as tables: gates, gains, prices, alternatives, what next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from alula.assess.alternatives import Option
from alula.assess.change import Target, expanded, fact_of, is_there, shown, version_now
from alula.assess.citing import attempt_key, gate_key, option_key
from alula.assess.evidence import CLAIMS, Ledger, Row, Section
from alula.assess.gains import Gains
from alula.assess.opening import Opening, Standing
from alula.assess.price import Price
from alula.assess.situation import Situation
from alula.diagnosis.answer import escaped
from alula.diagnosis.chains import chains
from alula.diagnosis.changes import Change

_MANY = 20
"""Changes beyond which only those of known components are shown, as of a lock."""


def taken_as(target: Target, situation: Situation, ledger: Ledger) -> Section:
    """The change, before and after, with what comes along unsaid."""
    facts = situation.facts
    changes = expanded(target.changes, facts)
    told = [each for each in changes if len(changes) <= _MANY or facts.get(each.component)]
    rows = []
    for change in told:
        before = version_now(change, facts) or "not known"
        key = ledger.cite(f"{change.component}: {before} now", situation.report)
        why = _why(change, target, situation)
        rows.append(Row((change.component, before, change.version, why), (key,)))
    if rest := len(changes) - len(told):
        key = ledger.cite(f"{rest} packages that no gate asks about", target.source)
        rows.append(Row((f"{rest} others", "", "", f"as {target.source} says"), (key,)))
    return Section("The change", ("component", "now", "then", "why"), tuple(rows))


def _why(change: Change, target: Target, situation: Situation) -> str:
    if change not in target.changes:
        return "torch of that CUDA comes along with it"
    if is_there(change, situation.facts):
        return "it is there already"
    asked = {condition.name for known in chains().gates for condition in known.closed_when}
    is_asked = fact_of(change) in asked or version_now(change, situation.facts)
    return f"as {target.source} says" if is_asked else "no gate asks about it"


def attempts(situation: Situation, opening: Opening, ledger: Ledger) -> Section:
    """Each attempt, who owns its cause, and whether the change reaches it."""
    rows = []
    for each in situation.judged:
        cause = each.diagnosis.cause
        owner = f"{cause.ruling.owner}, {cause.ruling.layer}" if cause else ""
        what = cause.ruling.failure_class if cause else "nothing found"
        does = "yes" if each.attempt.name in opening.unblocked else "no"
        fix = cause.ruling.fix if cause else ""
        cells = (escaped(each.attempt.name), what, owner, does, fix)
        rows.append(Row(cells, (attempt_key(each, ledger),)))
    headers = ("attempt", "cause", "owner", "opened", "what helps")
    return Section("What was tried", headers, tuple(rows))


def opens(opening: Opening, ledger: Ledger) -> Section:
    """The gates that the change opens, closes, and of which nobody knows."""
    told = [(each, f"opened by {_openers(each)}") for each in opening.opened]
    told += [(each, "closed by it") for each in opening.shut]
    told += [(each, "perhaps opened: not looked into") for each in opening.maybe]
    rows = tuple(
        Row((_gate(each), each.gate.feature, each.gate.predicate, how), (gate_key(each, ledger),))
        for each, how in told
    )
    return Section("What it opens and closes", ("gate", "of", "it needs", "how"), rows)


def stays_closed(opening: Opening, ledger: Ledger) -> Section:
    """The gates that stand closed before and after, of what was tried first."""
    closed = [each for each in opening.closed_now if not each.opened and each not in opening.maybe]
    closed.sort(key=lambda each: each.gate.feature not in opening.asked)
    rows = tuple(
        Row(
            (_gate(each), each.gate.feature, each.gate.predicate, each.gate.opened_in or "nothing"),
            (gate_key(each, ledger),),
        )
        for each in closed
    )
    headers = ("gate", "of", "it needs", "what is known to open it")
    return Section("What stays closed", headers, rows)


def most(gains: Gains, opening: Opening, ranked: Sequence[Option], ledger: Ledger) -> Section:
    """The most the change can gain under each reading, and how likely it touches an owner."""
    rows = []
    for bound in gains.bounds:
        key = ledger.cite(f"{bound.name}: at most {bound.tok_s:.0f} tok/s", bound.source)
        against = "" if gains.tok_s is None else f"{bound.tok_s - gains.tok_s:+.0f}"
        rows.append(Row((bound.name, bound.reading, f"{bound.tok_s:.0f}", against), (key,)))
    for finding in gains.check.excluded if gains.check else ():
        key = ledger.cite(f"{finding.name}: {finding.says}", f"{CLAIMS}: {finding.arithmetic}")
        rows.append(Row(("the claims conflict", f"since {finding.says}", "", ""), (key,)))
    change = next(each for each in ranked if each.is_change)
    keys = tuple(gate_key(each, ledger) for each in opening.opened)
    probable = ("probability", change.why, f"{change.probability:g}", "")
    rows.append(Row(probable, keys or (option_key(change, ledger),)))
    if gains.why_not:
        key = ledger.cite(f"not priced: {gains.why_not}", "alula estimate")
        rows.append(Row(("not priced", gains.why_not, "", ""), (key,)))
    now = "" if gains.tok_s is None else f"against {gains.tok_s:.1f}, {gains.tok_s_from}"
    headers = ("by", "reading", "tok/s", now)
    return Section("The most it can gain", headers, tuple(rows))


def prices(price: Price, ledger: Ledger) -> Section:
    """Downloads, disk, hours, local changes, regressions."""
    return Section("Its price", ("what", "how much"), tuple(_prices(price, ledger)))


def _prices(price: Price, ledger: Ledger) -> Iterator[Row]:
    if price.total_gb is not None:
        key = ledger.cite(f"{price.total_gb:.1f} GB in all", "the lock's sizes")
        yield Row(("downloads", f"{price.total_gb:.1f} GB"), (key,))
    for each in () if price.total_gb is not None else price.downloads[:_MANY]:
        size = "not known; alula stack plan reads it" if each.gb is None else f"{each.gb:g} GB"
        key = ledger.cite(f"{shown(each.change)}: {size}", each.source or "no record of its size")
        yield Row((f"download of {shown(each.change)}", size), (key,))
    key = ledger.cite(f"{price.disk_gb:g} GB on disk", price.disk_source)
    yield Row(("disk", f"about {price.disk_gb:g} GB"), (key,))
    said = "--hours" if price.hours_said else "assumed by kind of change; say it with --hours"
    key = ledger.cite(f"{price.hours:g} hours", said)
    yield Row(("hours", f"{price.hours:g} ({said})"), (key,))
    yield _local(price.local_changes, ledger)
    for risk in price.regressions:
        key = ledger.cite(risk.what, risk.source)
        yield Row(("known to go wrong", f"{risk.what} ({risk.source})"), (key,))


def _local(changes: tuple[str, ...] | None, ledger: Ledger) -> Row:
    if changes is None:
        key = ledger.cite("local changes were not looked for", "no environment was named")
        return Row(("local changes at stake", "not looked for: name it with --env"), (key,))
    first = "; ".join(changes[:3])
    more = f" and {len(changes) - 3} more" if len(changes) > 3 else ""
    key = ledger.cite(f"{len(changes)} local changes: {first}{more}", "alula stack patches")
    return Row(("local changes at stake", f"{len(changes)}: {first}{more}".rstrip(": ")), (key,))


def alternatives(ranked: Sequence[Option], ledger: Ledger) -> Section:
    """What one could do, the best first."""
    rows = tuple(
        Row(
            (
                str(number),
                each.name,
                str(each.gain) if each.gain else "not priced",
                f"{each.probability:g}",
                "free" if each.is_free else f"{each.hours:g} h",
                each.why,
            ),
            (option_key(each, ledger),),
        )
        for number, each in enumerate(ranked, 1)
    )
    headers = ("", "option", "tok/s", "probability", "price", "why")
    return Section("What one could do, by gain × probability ÷ price", headers, rows)


def how(ranked: Sequence[Option], ledger: Ledger) -> Section:
    """How to do what can work."""
    able = [each for each in ranked if each.probability > 0 and not each.is_change]
    rows = tuple(Row((each.name, each.how), (option_key(each, ledger),)) for each in able)
    return Section("How", ("option", "do"), rows)


def _gate(each: Standing) -> str:
    return f"{each.gate.component}, {each.gate.layer}"


def _openers(each: Standing) -> str:
    return " and ".join(map(shown, each.opener))


def evidence(ledger: Ledger) -> Section:
    """Everything that was cited."""
    rows: Iterable[Row] = (
        Row((key, fact.what, fact.source), (key,)) for key, fact in ledger.by_key().items()
    )
    return Section("Evidence", ("", "what", "where"), tuple(rows))
