"""What stands beside a cause: the failures behind it, and remarks on the run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from alula.diagnosis.cause import Cause, Note
from alula.diagnosis.course import Course
from alula.diagnosis.events import Event, Strength

ENDED = frozenset({130, 143, -2, -15})
"""Exit statuses of a run that somebody ended."""


def cascade(course: Course, cause: Cause | None) -> tuple[Event, ...]:
    """The failures behind a cause, the first of each kind and rank, in the order of time."""
    root = cause.event if cause else None
    failed = [event for event in course.failures if event.signature or raised(event)]
    behind = [event for event in failed + course.wrappers if event is not root]
    return tuple(sorted(_first_of_each(behind), key=lambda event: event.order))


def _first_of_each(events: list[Event]) -> list[Event]:
    found: dict[tuple[str, str], Event] = {}
    for event in events:
        found.setdefault((event.signature.name if event.signature else "", event.rank), event)
    return list(found.values())


def notes(course: Course, cause: Cause | None, exit_code: int | None) -> tuple[Note, ...]:
    """Remarks on what ended nothing, on starts and on the exit status; each said once."""
    found: dict[str, Note] = {}
    for event in course.remarks:
        if event.signature is not None and (cause is None or event is not cause.event):
            meaning = event.signature.rulings[-1].meaning
            found.setdefault(event.signature.name, Note(meaning, event))
    for event in course.survived:
        name = event.signature.name if event.signature else "an error"
        found.setdefault(f"survived {name}", Note(f"the run went on after this ({name})", event))
    return (*found.values(), *_of_its_end(course, cause, exit_code))


def _of_its_end(course: Course, cause: Cause | None, exit_code: int | None) -> Iterator[Note]:
    if course.starts > 1:
        end = "became ready" if course.ready else "did not become ready"
        yield Note(f"the server started {course.starts} times; the last {end}")
    if exit_code == 0 and cause is not None:
        yield Note("the exit status 0 says that the run ended well, against its log")
    if exit_code in ENDED:
        yield Note(f"the exit status {exit_code} says that the run was ended from outside")


def of_files(logs: Sequence[Path]) -> Iterator[Note]:
    """An empty log is no healthy one."""
    for path in logs:
        if path.is_file() and path.stat().st_size == 0:
            yield Note(f"the log {path.name} is empty, so nothing can be told from it")


def raised(event: Event) -> bool:
    """Whether it is an error that no signature knows, and more than a remark of a logger."""
    return event.signature is None and event.strength >= Strength.RAISED
