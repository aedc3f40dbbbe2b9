"""A diagnosis as data, its text safe to print."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from alula.diagnosis.behind import Met
from alula.diagnosis.cause import Cause, Certainty, Diagnosis, Note
from alula.diagnosis.events import Event
from alula.diagnosis.together import Judged, Together, verdict

NOTHING_FOUND, DIAGNOSED, FAILED_UNKNOWN = 0, 3, 4
_LONGEST = 400
_UNSEEN = frozenset({"Cc", "Cf", "Zl", "Zp", "Cs", "Co", "Cn"})


def escaped(text: str) -> str:
    """Text of a log with its control and invisible characters written out, and bounded."""
    shown = "".join(
        character.encode("unicode_escape").decode()
        if unicodedata.category(character) in _UNSEEN
        else character
        for character in text[:_LONGEST]
    )
    return shown + ("…" if len(text) > _LONGEST else "")


def exit_code(diagnosis: Diagnosis) -> int:
    """0 where nothing was found, 3 where the cause is known, 4 where it failed for no known one."""
    if diagnosis.cause is None:
        return NOTHING_FOUND
    unknown = diagnosis.cause.certainty is Certainty.UNKNOWN
    return FAILED_UNKNOWN if unknown else DIAGNOSED


def as_json(diagnosis: Diagnosis, gates: Iterable[Met] = ()) -> dict[str, Any]:
    """`{cause, cascade, notes}`; `line` is a number in `file`, whose words are `text`.

    `gates` are those that stand behind the cause.
    """
    return {
        "cause": None if diagnosis.cause is None else _cause(diagnosis.cause, gates),
        "cascade": [_event(event) for event in diagnosis.cascade],
        "notes": [_note(note) for note in diagnosis.notes],
    }


def _cause(cause: Cause, gates: Iterable[Met]) -> dict[str, Any]:
    ruling = cause.ruling
    return {
        "class": ruling.failure_class,
        "layer": ruling.layer or None,
        **_read_from(cause.event),
        "certainty": str(cause.certainty),
        "refuted_by": ruling.refuted_by,
        "fix": ruling.fix,
        "owner": ruling.owner or None,
        "meaning": ruling.meaning,
        "because": [escaped(text) for text in cause.because],
        "signature": cause.name or None,
        "sources": list(cause.sources),
        "gates_behind": [{**asdict(met.gate), "met": met.when} for met in gates],
    }


def _read_from(event: Event | None) -> dict[str, Any]:
    """The line a cause was read from; nothing but None where a status or a figure speaks."""
    if event is None:
        return dict.fromkeys(("line", "file", "text", "rank", "phase", "raised_at"))
    raised_at = escaped(event.frames[-1]) if event.frames else None
    return {**_place(event), "phase": event.phase or None, "raised_at": raised_at}


def _event(event: Event) -> dict[str, Any]:
    ruling = event.signature.rulings[-1] if event.signature else None
    return {
        "class": ruling.failure_class or None if ruling else None,
        "signature": event.signature.name if event.signature else None,
        **_place(event),
    }


def _note(note: Note) -> dict[str, Any]:
    place = _place(note.event) if note.event else {}
    return {"note": note.text, **place}


def _place(event: Event) -> dict[str, Any]:
    return {
        "line": event.number,
        "file": escaped(str(event.file)),
        "text": escaped(event.text),
        "rank": event.rank or None,
    }


def together_exit_code(found: Together) -> int:
    """The worst of the attempts' codes, an unknown failure being the worst."""
    return max(exit_code(each.diagnosis) for each in found.judged)


def together_json(found: Together) -> dict[str, Any]:
    """Everything that was found about several attempts."""
    return {
        "verdict": verdict(found),
        "attempts": [_judged(each) for each in found.judged],
        "pairs": [asdict(pair) for pair in found.pairs],
        "changes": [
            {"change": str(change), "unblocks": list(names)} for change, names in found.openers
        ],
        "plan": _plan(found),
        "toolkit": {
            "at_least": found.toolkit or None,
            "precondition_of": list(found.toolkit_condition),
            "fix_of": list(found.toolkit_fix),
        },
    }


def _judged(each: Judged) -> dict[str, Any]:
    return {"name": each.attempt.name, **as_json(each.diagnosis, each.behind)}


def _plan(found: Together) -> dict[str, Any] | None:
    if found.plan is None:
        return None
    return {
        "name": found.plan.name,
        "changes": [str(change) for change in found.plan.changes],
        "unblocks": list(found.unblocked),
    }
