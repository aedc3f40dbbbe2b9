"""A diagnosis as data, its text safe to print."""

from __future__ import annotations

import unicodedata
from typing import Any

from alula.diagnosis.diagnose import Cause, Certainty, Diagnosis, Note
from alula.diagnosis.events import Event

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


def as_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """`{cause, cascade, notes}`; `line` is a number in `file`, whose words are `text`."""
    return {
        "cause": None if diagnosis.cause is None else _cause(diagnosis.cause),
        "cascade": [_event(event) for event in diagnosis.cascade],
        "notes": [_note(note) for note in diagnosis.notes],
    }


def _cause(cause: Cause) -> dict[str, Any]:
    ruling = cause.ruling
    where = {"line": None, "file": None, "text": None, "rank": None, "phase": None}
    if cause.event is not None:
        where |= _place(cause.event) | {"phase": cause.event.phase or None}
    return {
        "class": ruling.failure_class,
        "layer": ruling.layer or None,
        **where,
        "certainty": str(cause.certainty),
        "refuted_by": ruling.refuted_by,
        "fix": ruling.fix,
        "owner": ruling.owner or None,
        "meaning": ruling.meaning,
        "because": [escaped(text) for text in cause.because],
        "signature": cause.name or None,
        "sources": list(cause.sources),
    }


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
