"""The words that two failures have in common, which is not the same as a cause."""

from __future__ import annotations

import re

from alula.diagnosis.cause import Diagnosis
from alula.diagnosis.lines import split_prefix
from alula.diagnosis.signatures import Kind

_WORD = re.compile(r"[A-Za-z][A-Za-z_]{2,40}")
_SAID_BY_ALL = frozenset(
    [
        "error",
        "exception",
        "failed",
        "for",
        "from",
        "found",
        "has",
        "hit",
        "not",
        "only",
        "run",
        "the",
        "was",
        "with",
        "you",
        "and",
    ]
)


def shared_words(first: Diagnosis, second: Diagnosis) -> tuple[str, ...]:
    """Words of both failures' lines, without those that every failure says."""
    return tuple(sorted(_words(first) & _words(second)))


def _words(diagnosis: Diagnosis) -> set[str]:
    events = [event for event in diagnosis.cascade if event.kind is Kind.FAILURE]
    if diagnosis.cause is not None and diagnosis.cause.event is not None:
        events.append(diagnosis.cause.event)
    said = {
        word.lower() for event in events for word in _WORD.findall(split_prefix(event.text).message)
    }
    return {word for word in said - _SAID_BY_ALL if not word.endswith(("error", "exception"))}
