"""A plan in a terminal: the verdict first, then what was decided and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from textwrap import wrap

from rich.console import Console
from rich.text import Text

from alula.cost.units import size
from alula.stack.ask import Answer
from alula.stack.by_hand import Judged
from alula.stack.decisions import Decision
from alula.stack.findings import Verdict
from alula.stack.plan import Plan

_SHOWN = 5
_MARKS = {Verdict.PASSED: "✓", Verdict.FAILED: "✗", Verdict.NOT_CHECKED: "?"}
Line = tuple[str, int, str]
"""Text, indent, style."""


def print_answer(answer: Answer, written: Sequence[Path]) -> None:
    """The whole of it on standard output."""
    console = Console(highlight=False)
    console.print(Text(answer.verdict(), style="bold"), soft_wrap=True)
    for title, lines in _blocks(answer, written):
        shown = list(lines)
        if shown:
            console.print()
            console.print(Text(title, style="bold"))
        for text, indent, style in shown:
            for line in _wrapped(console, text, indent):
                console.print(Text(line, style=style), soft_wrap=True)


def _wrapped(console: Console, text: str, indent: int) -> list[str]:
    """Lines that fit a terminal; in a pipe each text is one line."""
    margin = " " * indent
    if not console.is_terminal:
        return [f"{margin}{text}"]
    return wrap(
        text, max(40, console.width), initial_indent=margin, subsequent_indent=f"{margin}  "
    )


def _blocks(answer: Answer, written: Sequence[Path]) -> Iterator[tuple[str, Iterable[Line]]]:
    plan = answer.plan
    if answer.judged is not None:
        yield "The plan made by hand", _contradictions(answer.judged)
        yield "What is proposed instead", [(plan.verdict(), 2, "")]
    yield "Conflicts", _conflicts(plan)
    yield "Decisions", _decisions(plan.decisions)
    yield "Checks", _checks(plan)
    yield "Features", _features(plan)
    yield "Risks", _plain(plan.risks)
    yield "What would be lost", _plain(plan.lost)
    yield "Indexes", _plain(_first(plan.odd))
    yield "Sizes", _sizes(plan)
    yield "Next", _commands(plan, written)


def _contradictions(judged: Judged) -> Iterator[Line]:
    for number, decision in enumerate(judged.hand_made.decision, start=1):
        standing = judged.standing(number)
        yield f"({number}) {decision.what}: {standing}", 2, "red" if standing == "dropped" else ""
    for each in judged.contradictions:
        yield f"✗ {_numbers(each.decisions)}{each.words}", 2, ""
        if each.evidence:
            yield each.evidence, 6, "dim"
    for unread in judged.not_checked:
        yield f"? {_numbers(unread.decisions)}not checked: {unread.words}", 2, ""


def _numbers(decisions: Sequence[int]) -> str:
    return "".join(f"({number}) " for number in decisions)


def _conflicts(plan: Plan) -> Iterator[Line]:
    for chain in plan.conflicts:
        yield "these cannot hold together; without any one of them the rest can:", 2, ""
        for words in chain.words:
            yield f"- {words}", 4, ""


def _decisions(decisions: Iterable[Decision]) -> Iterator[Line]:
    for each in decisions:
        yield f"{each.what}: {each.choice}", 2, ""
        yield each.reason, 6, "dim"
        for rejected in each.rejected:
            yield f"not {rejected.choice}: {rejected.reason}", 6, "dim"


def _checks(plan: Plan) -> Iterator[Line]:
    for each in plan.findings:
        style = "red" if each.verdict is Verdict.FAILED else ""
        said = "" if each.verdict is Verdict.PASSED else f" {each.verdict}"
        yield f"{_MARKS[each.verdict]} {each.check}{said}: {each.words}", 2, style
        if each.verdict is Verdict.FAILED and each.evidence:
            yield each.evidence, 6, "dim"
    if plan.unread_bytes:
        unread = size(plan.unread_bytes)
        yield f"  to look into the rest, {unread} have to be fetched: add --yes", 2, ""


def _features(plan: Plan) -> Iterator[Line]:
    for each in plan.features:
        closed = each.closed()
        if not closed:
            unknown = each.unknown()
            opened = "opens" if each.was_closed else "open"
            rest = f", to be probed: {unknown[0].predicate}" if unknown else ""
            yield f"✓ {each.name}: {opened}{rest}", 2, ""
            continue
        yield f"✗ {each.name}: stays closed, by {len(closed)} gates", 2, ""
        for gate in closed:
            yield f"{gate.layer} of {gate.component}: {gate.predicate}; {gate.observed}", 6, ""
            opens = gate.opened_in or "nothing that is known"
            yield f"opens with {opens} ({gate.evidence})", 8, "dim"


def _plain(texts: Iterable[str]) -> Iterator[Line]:
    for text in texts:
        yield f"- {text}", 2, ""


def _first(texts: Sequence[str]) -> Iterator[str]:
    """The first few; --json has them all."""
    yield from texts[:_SHOWN]
    if len(texts) > _SHOWN:
        yield f"and {len(texts) - _SHOWN} more"


def _sizes(plan: Plan) -> Iterator[Line]:
    if plan.download_bytes:
        download, disk = size(plan.download_bytes), size(plan.disk_bytes)
        yield f"{download} to download, about {disk} on disk while it is built", 2, ""


def _commands(plan: Plan, written: Sequence[Path]) -> Iterator[Line]:
    toolkit = plan.lock.toolkit if plan.lock else None
    if toolkit is not None and toolkit.command:
        yield f"toolkit, by the owner of the machine: {toolkit.command}", 2, ""
    for path in written:
        yield f"written: {path}", 2, ""
    if written:
        yield f"alula stack apply {written[0]}", 2, ""
    elif plan.lock is not None:
        yield "add --out FOLDER to write the lock, requirements.txt and a uv project", 2, ""
    elif plan.attempt is not None:
        yield "no lock: a wheel of the set has no hash yet; add --yes to fetch it", 2, ""
