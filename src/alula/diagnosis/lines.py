"""What stands before a message: time, rank and level, in the ways servers and launchers write."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

_LONGEST_PREFIX = 400
_MOST_PARTS = 8
_YEAR = 2000  # many lines carry no year, so none counts; a leap year, so that 29 February exists
_FIELDS = ("month", "day", "hour", "minute", "second")
_HALF_A_YEAR = 183 * 86400.0
_A_YEAR = 366 * 86400.0

_CLOCK = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:[.,](?P<fraction>\d{1,9}))?"
_DATE = r"(?:\d{4}[-/])?(?P<month>\d\d)[-/](?P<day>\d\d)"
_LEVEL = r"(?P<level>DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)"
_PARTS = tuple(
    re.compile(part)
    for part in (
        # [2026-02-11 10:22:33 DP0 TP3] of SGLang; 2026-02-11T10:22:33.5Z of containers
        rf"\[?{_DATE}[ T]{_CLOCK}Z?(?P<rank>(?: (?:DP|TP|PP|EP|MOE_)\w{{1,8}})*)\]?:?\s+",
        rf"{_LEVEL}:? {_DATE} {_CLOCK} (?:\[[^\]]{{1,80}}\] )?",  # vLLM
        rf"\[(?P<month>\d\d)/(?P<day>\d\d)/\d{{4}}-{_CLOCK}\] ",  # TensorRT-LLM
        r"\[(?:TRT-LLM|TensorRT-LLM)\] ?(?:\[RANK (?P<rank>\d{1,4})\] )?",
        r"\[(?P<level>[VDIWEF]|VERBOSE|INFO|WARNING|ERROR)\] ",
        r"\[rank(?P<rank>\d{1,4})\]:\s?",  # torch
        rf"\[(?P<level>[IWEF])(?P<month>\d{{1,2}})(?P<day>\d\d) {_CLOCK} [^\]]{{1,80}}\] ",  # glog
        r"\((?:\w{1,40}_)?(?P<rank>TP\d{1,4})(?:_\w{1,20})? pid=\d{1,10}[^)]{0,60}\)\s",
        r"\(\w{1,40} (?:rank=(?P<rank>\d{1,4}) )?pid=\d{1,10}[^)]{0,60}\)\s",
        r"\[\d{1,4},(?P<rank>\d{1,4})\]<std(?:out|err)>:\s?",  # mpirun
        r"(?P<rank>\d{1,4}): ",  # srun --label
        r"[\w.-]{1,60}:\d{1,10}:\d{1,10} \[(?P<rank>\d{1,3})\] (?:[\w./]{1,60}:\d{1,6} )?",  # NCCL
        r"[\w.-]{1,60}\s{1,40}\| ",  # docker compose
        r"[^%|]{0,80}\d{1,3}%\|.{0,200}?(?:it/s|s/it|\?)[^\]]{0,20}\]\s?",  # a progress bar
        rf"- [\w.]{{1,80}} - {_LEVEL} - ",  # logging's habit
        rf"{_LEVEL}[: ]\s{{0,8}}",
    )
)


class Prefix(NamedTuple):
    """What one line says about itself; None or "" where it says nothing."""

    seconds: float | None
    """Since the year began."""
    rank: str
    level: str
    message: str


def split_prefix(text: str) -> Prefix:
    """Take the prefixes off a line, one after the other, however many a launcher stacked."""
    seconds: float | None = None
    rank = level = ""
    position = 0
    head = text[:_LONGEST_PREFIX]
    for _ in range(_MOST_PARTS):
        match = next((found for part in _PARTS if (found := part.match(head, position))), None)
        if match is None:
            break
        fields = match.groupdict()
        position = match.end()
        seconds = _seconds(fields) if fields.get("hour") and seconds is None else seconds
        rank = rank or _rank(fields.get("rank"))
        level = level or _level(fields.get("level"))
    return Prefix(seconds, rank, level, text[position:])


def _seconds(fields: dict[str, str | None]) -> float | None:
    month, day, hour, minute, second = (int(fields[name] or 0) for name in _FIELDS)
    try:
        moment = datetime(_YEAR, month, day, hour, minute, second)
    except ValueError:
        return None
    fraction = float(f"0.{fields['fraction'] or 0}")
    return (moment - datetime(_YEAR, 1, 1)) / timedelta(seconds=1) + fraction


def _rank(written: str | None) -> str:
    if not written:
        return ""
    return f"rank {written}" if written.isdigit() else written.strip()


def _level(written: str | None) -> str:
    if not written:
        return ""
    names = {"E": "ERROR", "F": "FATAL", "W": "WARNING", "WARN": "WARNING", "CRITICAL": "FATAL"}
    return names.get(written, written)


@dataclass(slots=True)
class Reading:
    """The line a reader has come to: a line without time or rank is taken for the last one's."""

    seconds: float | None = None
    rank: str = ""
    level: str = ""
    message: str = ""

    def read(self, text: str) -> bool:
        """Take the next line; True where it says its own time or rank."""
        prefix = split_prefix(text)
        if prefix.seconds is not None:
            self.seconds = self._onward(prefix.seconds)
        own = prefix.seconds is not None or bool(prefix.rank)
        if own:
            self.rank = prefix.rank
        self.level, self.message = prefix.level, prefix.message
        return own

    def _onward(self, seconds: float) -> float:
        """Time across New Year; a line that is late by seconds keeps its own time."""
        if self.seconds is not None:
            while seconds < self.seconds - _HALF_A_YEAR:
                seconds += _A_YEAR
        return seconds
