"""A diagnosis without what is private in the lines it quotes.

A log comes from anywhere, so names are learned from its lines, beside this machine's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

from alula.diagnosis.cause import Cause, Diagnosis, Note
from alula.diagnosis.events import Event
from alula.diagnosis.together import Together
from alula.machine.privacy import Redactor, own_redactor

_SHORTEST_NAME = 3
_USER = re.compile(
    r"/(?:home|Users)/([^/\s\"':;,]{1,64})|\b(?:user(?:name)?|USER)[=:] ?['\"]?([\w.-]{1,64})"
)
_NAME = r"[A-Za-z0-9](?:[\w-]{0,62}\.){0,8}[\w-]{0,62}"
_HOST = re.compile(
    rf"^\W{{0,3}}({_NAME}):\d{{1,10}}:\d{{1,10}} (?:\[|NCCL)"  # NCCL
    rf"|\bon (?:node|host) ({_NAME})"  # mpirun, srun
    rf"|\b(?:host(?:name)?|node|nodename|server_name|\w{{0,40}}_(?:host|addr))['\"]?\s?[=:]\s?['\"]?({_NAME})"
    rf"|\[({_NAME})\]:\d{{2,5}}"  # torch's store
    rf"|://({_NAME}):\d{{2,5}}"
    r"|\b([\w-]{1,63}(?:\.[\w-]{1,63}){0,6}\.(?:local|localdomain|internal|intranet|lan|corp|cluster|home))\b"
)
_NOBODY = frozenset(
    {"localhost", "root", "user", "ubuntu", "node", "host", "none", "null", "true", "false"}
)


def without_private(diagnosis: Diagnosis) -> Diagnosis:
    """The diagnosis with users, hosts, home folders, addresses, tokens and keys left out."""
    redactor = _redactor(_texts(diagnosis))
    event = partial(_event, redactor)
    return replace(
        diagnosis,
        cause=None if diagnosis.cause is None else _cause(redactor, diagnosis.cause),
        cascade=tuple(map(event, diagnosis.cascade)),
        notes=tuple(_note(redactor, note) for note in diagnosis.notes),
    )


def together_without_private(found: Together) -> Together:
    """The same of several attempts. Their names, which somebody chose to write, stay."""
    judged = (replace(each, diagnosis=without_private(each.diagnosis)) for each in found.judged)
    pairs = (replace(pair, words=_public(pair.words, found)) for pair in found.pairs)
    return replace(found, judged=tuple(judged), pairs=tuple(pairs))


def _public(words: tuple[str, ...], found: Together) -> tuple[str, ...]:
    """Words in common that name nobody."""
    names: set[str] = set()
    for each in found.judged:
        names |= {name.lower() for name in _redactor(_texts(each.diagnosis)).names}
    return tuple(word for word in words if word not in names)


def _texts(diagnosis: Diagnosis) -> list[str]:
    events = [*diagnosis.cascade, *(note.event for note in diagnosis.notes)]
    events += [diagnosis.cause.event] if diagnosis.cause else []
    return [text for event in events if event for text in (event.text, *event.frames)]


def _redactor(texts: Iterable[str]) -> Redactor:
    own = own_redactor()
    learned: dict[str, str] = {}
    for text in texts:
        learned |= dict.fromkeys(_named(_USER, text), "<user>")
        learned |= dict.fromkeys(_named(_HOST, text), "<host>")
    return replace(own, names={**learned, **own.names})


def _named(pattern: re.Pattern[str], text: str) -> list[str]:
    found = [name for groups in pattern.finditer(text) for name in groups.groups() if name]
    return [name for name in found if len(name) >= _SHORTEST_NAME and _names_somebody(name)]


def _names_somebody(name: str) -> bool:
    return name.lower() not in _NOBODY and not re.fullmatch(r"[\d.]+", name)


def _cause(redactor: Redactor, cause: Cause) -> Cause:
    because = tuple(map(redactor.text, cause.because))
    event = None if cause.event is None else _event(redactor, cause.event)
    return replace(cause, event=event, because=because)


def _note(redactor: Redactor, note: Note) -> Note:
    return note if note.event is None else replace(note, event=_event(redactor, note.event))


def _event(redactor: Redactor, event: Event) -> Event:
    return replace(
        event,
        file=Path(redactor.text(str(event.file))),
        text=redactor.text(event.text),
        frames=tuple(map(redactor.text, event.frames)),
    )
