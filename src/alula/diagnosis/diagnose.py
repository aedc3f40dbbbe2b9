"""Why a run failed: the first failure in time, how sure that is, and what followed from it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from alula.diagnosis.aftermath import ENDED, cascade, of_files, raised
from alula.diagnosis.aftermath import notes as notes_of
from alula.diagnosis.cause import Cause, Certainty, Diagnosis
from alula.diagnosis.course import Course, follow, near
from alula.diagnosis.events import Event
from alula.diagnosis.facts import Facts, Value, all_hold
from alula.diagnosis.signatures import Kind, Knowledge, Ruling, Signature, knowledge

_SAME_MOMENT_SECONDS = 2.0
_SAME_MOMENT_LINES = 200
_MOMENT_OF_UNKNOWN = 20
_SET = re.compile(r"(\w{1,60}) set by environment to ([^\s]{1,200}?)\.?(?:\s|$)")
"""How NCCL says at level INFO what it was given."""
_RANKS = re.compile(r"(?:\btp_size=|'tensor_parallel_size': )(\d{1,4})")
"""How SGLang and vLLM print the number of tensor-parallel ranks."""
_SHORT = 60
_PARTS = ("has", "lacks", "unknown")
_WRAPS = 2
_SEEN_BY_OTHERS = 3
"""Depths of signatures.toml."""
_STOPPED = ENDED | {0}


def diagnose(
    logs: Sequence[Path], facts: Facts | None = None, exit_code: int | None = None
) -> Diagnosis:
    """Read the logs of one run, several files being its ranks.

    `facts` are what is known beside the logs; `exit_code` is the run's, a signal as -N or 128 + N.
    Raises `UsageError` for a log that cannot be read.
    """
    known = knowledge()
    course = follow(logs, known)
    beside = _with_course(facts or Facts(), course, exit_code)
    cause = (
        _known_failure(course, beside)
        or _warned_of(course, beside, exit_code)
        or _degraded(course, beside, exit_code)
        or _by_exit(known, course, exit_code)
        or _unknown_failure(course, exit_code)
    )
    notes = (*notes_of(course, cause, exit_code), *of_files(logs))
    return Diagnosis(cause, cascade(course, cause), notes, beside)


def rule(signature: Signature, event: Event | None, facts: Facts) -> Cause:
    """What a signature means under these facts."""
    ruling = signature.rule(facts)
    sure = bool(ruling.certain) and all_hold(ruling.certain or (), facts) is True
    certainty = Certainty.CERTAIN if sure else Certainty.LIKELY
    because = _because(ruling, facts)
    return Cause(ruling, certainty, event, because, signature.sources, signature.name)


def _with_course(facts: Facts, course: Course, exit_code: int | None) -> Facts:
    seen = (*course.failures, *course.survived, *course.remarks)
    names = tuple(sorted({event.signature.name for event in seen if event.signature}))
    command = (*facts.values.get("command", ()), *course.arguments)
    values: dict[str, Value] = {"log": names or ("nothing",), "command": command}
    for name, value in _SET.findall("\n".join(course.arguments)):
        values[f"setting.{name}"] = (value,)
    if ranks := _RANKS.search("\n".join(course.arguments)):
        values["tp"] = (ranks[1],)
    if exit_code is not None:
        values["exit"] = (str(exit_code),)
    return facts.with_values(values)


def _of_event(event: Event, facts: Facts) -> Facts:
    values: dict[str, Value] = {**event.parts, "line": (event.text,), "phase": (event.phase,)}
    return facts.with_values({**values, "frames": ("\n".join(event.frames),)})


def _known_failure(course: Course, facts: Facts) -> Cause | None:
    failures = [event for event in course.failures if event.signature]
    if failures and _depth(_root(failures)) == _SEEN_BY_OTHERS and _raised_before(course, failures):
        # They waited for an error that nobody knows, or for a known one that comes later.
        failures = [event for event in failures if _depth(event) < _SEEN_BY_OTHERS]
    if not failures:
        return None
    root = _root(failures)
    assert root.signature is not None  # chosen from those that have one
    return rule(root.signature, root, _of_event(root, facts))


def _root(failures: list[Event]) -> Event:
    """The first failure; where it only wraps another, the deepest of the same moment."""
    first = failures[0]
    if _depth(first) < _WRAPS:
        return first
    moment = [
        event for event in failures if near(first, event, _SAME_MOMENT_SECONDS, _SAME_MOMENT_LINES)
    ]
    return min(moment, key=_depth)


def _depth(event: Event) -> int:
    return event.signature.depth if event.signature else _SEEN_BY_OTHERS


def _raised_before(course: Course, failures: list[Event]) -> bool:
    """Whether an error nobody knows came before the known ones."""
    return any(raised(event) and event.order < failures[0].order for event in course.failures)


def _warned_of(course: Course, facts: Facts, exit_code: int | None) -> Cause | None:
    """What an early warning explains, where the run failed and says nothing else of it."""
    if _says_more(course) or not (course.wrappers or _ended_badly(exit_code)):
        return None
    hints = (event for event in course.remarks if event.kind is Kind.HINT)
    event = next(hints, None)
    if event is None or event.signature is None:
        return None
    return rule(event.signature, event, _of_event(event, facts))


def _says_more(course: Course) -> bool:
    return any(map(raised, course.failures))


def _ended_badly(exit_code: int | None) -> bool:
    return exit_code is not None and exit_code not in _STOPPED


def _degraded(course: Course, facts: Facts, exit_code: int | None) -> Cause | None:
    """What was asked for and did not happen; only where nothing failed."""
    if _says_more(course) or course.wrappers or _ended_badly(exit_code):
        return None
    command = facts.get("command")
    for event in course.remarks:
        if event.signature is not None and event.kind is Kind.DEGRADED:
            asked = event.signature.asked_by
            if not asked or any(words in command for words in asked):
                return rule(event.signature, event, _of_event(event, facts))
    return None


def _by_exit(known: Knowledge, course: Course, exit_code: int | None) -> Cause | None:
    """What the exit status means of a run that did not say itself that it was ending.

    A server that takes its processes down kills itself at last, as the kernel would.
    """
    if _says_more(course) or course.wrappers:
        return None
    for entry in known.exits:
        if exit_code in entry.codes:
            said = [f"the exit status is {exit_code}"]
            if course.latest is not None:
                said.append(f"the last sign of progress is that of: {course.latest.mark}")
            return Cause(
                entry.ruling, Certainty.LIKELY, course.latest, tuple(said), name="exit-status"
            )
    return None


def _unknown_failure(course: Course, exit_code: int | None) -> Cause | None:
    """A failure that no signature explains, with the likeliest line to read."""
    if exit_code in ENDED:
        return None
    errors = [event for event in course.failures if event.signature is None]
    thrown = [event for event in errors if raised(event)]
    unfinished = not course.ready and bool(thrown) and exit_code is None
    if not (_ended_badly(exit_code) or course.wrappers or unfinished):
        return None
    line = _likeliest(thrown) or next(iter(errors or course.wrappers), None)
    return Cause(_UNKNOWN, Certainty.UNKNOWN, line, ())


def _likeliest(raised: list[Event]) -> Event | None:
    """The first error; of its moment a compiler's or the kernel's own words before Python's."""
    moment = [
        event
        for event in raised
        if near(raised[0], event, _SAME_MOMENT_SECONDS, _MOMENT_OF_UNKNOWN)
    ]
    return max(moment, key=lambda event: event.strength, default=None)


_UNKNOWN = Ruling(
    failure_class="unknown",
    layer="",
    owner="",
    meaning="no signature knows this failure",
    fix="read the line quoted and the lines above it; report it with the log's first failure",
    refuted_by="an earlier failure in a log that was not given",
    feature="",
    certain=None,
    cleared_when=None,
)


def _because(ruling: Ruling, facts: Facts) -> tuple[str, ...]:
    """What each deciding condition found; a fact that is missing is named as missing."""
    words = {True: "holds", False: "does not hold", None: "not known"}
    found: dict[str, None] = {}
    for condition in (*ruling.when, *(ruling.certain or ())):
        value = "" if condition.operator in _PARTS else facts.get(condition.name)
        shown = f", it is {value}" if value and len(value) <= _SHORT else ""
        found[f"{condition.said(facts)}: {words[condition.holds(facts)]}{shown}"] = None
    return tuple(found)
