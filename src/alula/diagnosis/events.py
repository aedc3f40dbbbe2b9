"""What a log says that matters: failures, notes and marks of progress, in the order of the file."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

from alula.diagnosis.asides import is_code, is_low
from alula.diagnosis.facts import Facts, all_hold
from alula.diagnosis.lines import Reading
from alula.diagnosis.signatures import Kind, Knowledge, Signature
from alula.diagnosis.stream import Needles, RawLine, wanted_lines

_MOST_FRAMES = 40
_FARTHEST_FRAME = 100
"""Lines between a traceback's last frame and its error, where ranks write at once."""
_OF_EACH_RANK = ("weights", "kv", "capture")
"""Phases that SGLang announces on each rank. Others announce them once, for all."""
_MOST_OF_A_KIND = 20
_MOST_STARTS = 50
"""A crash loop repeats itself; what the first starts said is enough."""
_FRAME = re.compile(r'\s{0,40}File "(?P<file>[^"]{1,400})", line (?P<line>\d{1,7})')
_ABOVE_ZERO = re.compile(r"throughput(?: \(token/s\))?: (?:[1-9]|0\.0?[1-9])")
_NATIVE = re.compile(
    r"(?:fatal|ptxas|nvcc|cicc) ?(?:error|fatal)?\s{0,4}:|Assertion .{1,300} failed"
)
_ENDED = re.compile(r"core dumped|Segmentation fault|terminate called|Killed$")
"""How a process ends, be it for an error that it told of before."""
_RAISED = re.compile(
    r"(?:[A-Za-z_][\w.]{0,100})?(?:Error|Exception|Interrupt)(?:: |:?$)"  # Python
    r"|error: "  # alula, compilers, installers
)
_LOUD = frozenset({"ERROR", "FATAL"})
_TROUBLE = (Kind.FAILURE, Kind.WRAPPER)


class Strength(IntEnum):
    """How much an error line that no signature knows says about a failure."""

    NONE = 0
    LOGGED = 1
    RAISED = 2
    NATIVE = 3


@dataclass(frozen=True)
class Event:
    """One line that matters. `mark` names the phase it begins, `alive` or `arguments`."""

    file: Path
    number: int
    seconds: float | None
    rank: str
    text: str
    start: int
    """Which start of the server in this file it belongs to, 0 before the first."""
    phase: str
    mark: str = ""
    signature: Signature | None = None
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    frames: tuple[str, ...] = ()
    """Files and lines of the traceback above it, outermost first."""
    strength: Strength = Strength.NONE
    order: int = 0
    """Position among the events of all ranks, in time."""

    warning: bool = False
    """Whether it was said at level WARNING: what a server met and went on without."""

    @property
    def kind(self) -> Kind | None:
        """What its signature does to a run; None for marks and unknown errors.

        A failure of which a server only warns explains a run that says nothing else of its end.
        """
        if self.signature is None:
            return None
        warned = self.warning and self.signature.kind is Kind.FAILURE
        return Kind.HINT if warned and not self.signature.quiet else self.signature.kind


def read_events(path: Path, known: Knowledge) -> Iterator[Event]:
    """The events of one log, few whatever its size. Raises `UsageError` as the stream does."""
    reader = _Reader(path, known)
    needles = Needles(known.needles(), [sign.encode() for sign in known.alive])
    for line in wanted_lines(path, needles):
        yield from reader.take(line)


class _Reader:
    """State that goes from line to line: time, rank, phase, and each rank's last traceback."""

    def __init__(self, path: Path, known: Knowledge) -> None:
        self._path = path
        self._known = known
        self._now = Reading()
        self._phase = ""
        self._phases: dict[str, str] = {}
        self._starts = 0
        self._frames: dict[str, deque[tuple[int, str]]] = {}
        self._seen: Counter[tuple[str, str]] = Counter()

    def take(self, line: RawLine) -> Iterator[Event]:
        """The events of one line: a mark of progress, a failure, neither or both."""
        if any(words in line.text for words in self._known.quoting):
            return
        self._now.read(line.text)
        frame = _FRAME.match(self._now.message)
        if frame is not None:
            self._trace().append((line.number, f"{frame['file']}:{frame['line']}"))
            return
        if is_code(self._now.message, self._below_frame(line)):
            return
        if "Traceback (most recent call last)" in line.text:
            self._trace().clear()
        for mark in self._marks(line.text):
            if mark in ("ready", "alive"):
                self._seen.clear()  # what was survived may come again and end the run
            yield self._event(line, mark=mark)
        if (event := self._told(line)) is not None:
            yield event

    def _trace(self) -> deque[tuple[int, str]]:
        return self._frames.setdefault(self._now.rank, deque(maxlen=_MOST_FRAMES))

    def _below_frame(self, line: RawLine) -> bool:
        trace = self._trace()
        return bool(trace) and line.number - trace[-1][0] == 1

    def _frames_above(self, line: RawLine) -> tuple[str, ...]:
        trace = self._trace()
        if not trace or line.number - trace[-1][0] > _FARTHEST_FRAME:
            return ()
        return tuple(frame for _, frame in trace)

    def _phase_of_rank(self) -> str:
        own = self._phases.get(self._now.rank, "")
        return own if own in _OF_EACH_RANK and self._phase != "ready" else self._phase

    def _marks(self, text: str) -> Iterator[str]:
        for marker, name in self._known.phases:
            if marker in text:
                fresh = name != self._phase or name == "start"
                self._enter(name)
                if fresh:
                    yield name
                break
        if any(words in text for words in self._known.arguments):
            yield "arguments"
        if any(sign in text for sign in self._known.alive) and _ABOVE_ZERO.search(text):
            yield "alive"

    def _enter(self, name: str) -> None:
        self._phase = self._phases[self._now.rank] = name
        if name == "start":
            self._phases.clear()
            self._starts += 1
            if self._starts <= _MOST_STARTS:
                self._seen.clear()

    def _told(self, line: RawLine) -> Event | None:
        """What a line tells of a failure; a known one that a rank repeats tells nothing new."""
        for signature in self._known.candidates(line.text):
            parts = signature.parts(line.text)
            if parts is not None and self._admits(signature, line):
                quoted = signature.kind in _TROUBLE and not signature.quiet
                if (quoted and is_low(self._now.level)) or self._seen_often(signature.name, most=1):
                    return None
                return self._event(line, signature=signature, parts=parts)
        return self._unknown_event(line)

    def _admits(self, signature: Signature, line: RawLine) -> bool:
        frames = "\n".join(self._frames_above(line))
        return all_hold(signature.requires, Facts({"frames": (frames,)})) is not False

    def _unknown_event(self, line: RawLine) -> Event | None:
        strength = _strength(self._now)
        if strength is Strength.NONE or self._seen_often("", most=_MOST_OF_A_KIND):
            return None
        return self._event(line, strength=strength)

    def _seen_often(self, name: str, most: int) -> bool:
        self._seen[self._now.rank, name] += 1
        return self._seen[self._now.rank, name] > most

    def _event(
        self,
        line: RawLine,
        mark: str = "",
        signature: Signature | None = None,
        parts: Mapping[str, tuple[str, ...]] | None = None,
        strength: Strength = Strength.NONE,
    ) -> Event:
        return Event(
            file=self._path,
            number=line.number,
            seconds=self._now.seconds,
            rank=self._now.rank,
            text=line.text.strip(),
            start=self._starts,
            phase=self._phase_of_rank(),
            mark=mark,
            signature=signature,
            parts=parts or {},
            frames=() if mark else self._frames_above(line),
            strength=strength,
            warning=self._now.level == "WARNING",
        )


def _strength(now: Reading) -> Strength:
    message = now.message.strip()
    if is_low(now.level) or now.level == "WARNING":
        return Strength.NONE
    if _NATIVE.search(message):
        return Strength.NATIVE
    if _RAISED.match(message) or _ENDED.search(message):
        return Strength.RAISED
    return Strength.LOGGED if now.level in _LOUD else Strength.NONE
