"""A probe's child process: run within limits, read, and ended with all that it started."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import IO, Any

import psutil

MEMORY = 32 << 30
"""Bytes of host memory that a probe and its children may hold together."""
_POLL = 0.1
_GRACE = 5.0
_MOST_OUTPUT = 64 << 10
_MOST_WRITTEN = 256 << 20
"""Bytes that a probe may print before it counts as gone wild."""
_MARK = "ALULA_PROBE"
"""The variable by which descendants are known that have left their family and session."""


class Ending(StrEnum):
    """How a probe ended."""

    PASSED = "passed"
    FAILED = "failed"
    HUNG = "hung"
    TOO_LARGE = "too large"
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one probe. A failure is a finding, not an error of the doctor."""

    name: str
    ending: Ending
    seconds: float = 0.0
    findings: tuple[str, ...] = ()
    measured: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, str] = field(default_factory=dict)
    """What was tried, and what is wrong with it, "" for nothing."""
    stuck: tuple[int, ...] = ()
    """Processes that could not be ended."""


def run_script(
    name: str,
    command: list[str],
    seconds: float,
    memory: int = MEMORY,
    environ: dict[str, str] | None = None,
) -> Outcome:
    """Run one probe within its limits and read what it printed."""
    start = time.monotonic()
    mark = secrets.token_hex(8)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**(os.environ if environ is None else environ), _MARK: mark},
                start_new_session=True,
            )
        except OSError as error:
            return Outcome(name, Ending.FAILED, findings=(f"{command[0]}: {error.strerror}",))
        ending, stuck = _watch(child, start + seconds, memory, mark, (out, err))
        took = round(time.monotonic() - start, 2)
        if ending is not None:
            found = (f"ended after {took} s", *_last_lines(err))
            return Outcome(name, ending, took, found, stuck=stuck)
        return _outcome(name, child.returncode, took, _tail(out), _last_lines(err), stuck)


def _watch(
    child: subprocess.Popen[bytes],
    deadline: float,
    memory: int,
    mark: str,
    written: Sequence[IO[bytes]],
) -> tuple[Ending | None, tuple[int, ...]]:
    """Wait for a child, and end what it leaves; None where it ended by itself."""
    family: dict[int, psutil.Process] = {}
    ending = None
    try:
        while child.poll() is None and ending is None:
            held = _memory_of(child.pid, family)
            if time.monotonic() > deadline:
                ending = Ending.HUNG
            elif held > memory or _size(written) > _MOST_WRITTEN:
                ending = Ending.TOO_LARGE
            else:
                time.sleep(_POLL)
    finally:
        family.update(_marked(mark))
        stuck = _end(child, family)
    return ending, stuck


def _size(files: Sequence[IO[bytes]]) -> int:
    return sum(os.fstat(file.fileno()).st_size for file in files)


def _marked(mark: str) -> dict[int, psutil.Process]:
    """Processes that a probe has started, whoever they now belong to."""
    found = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get(_MARK) == mark:
                found[process.pid] = process
    return found


def _memory_of(pid: int, family: dict[int, psutil.Process]) -> int:
    """Bytes held by a process and its descendants, whom `family` comes to know."""
    held = 0
    with suppress(psutil.Error):
        parent = psutil.Process(pid)
        for process in (parent, *parent.children(recursive=True)):
            family[process.pid] = process
            with suppress(psutil.Error):
                held += process.memory_info().rss
    return held


def _end(child: subprocess.Popen[bytes], family: dict[int, psutil.Process]) -> tuple[int, ...]:
    """End a child's session and every descendant seen; the ids of those that will not go."""
    if child.poll() is None:
        child.terminate()
        with suppress(subprocess.TimeoutExpired):
            child.wait(_GRACE)
    if hasattr(os, "killpg"):  # Windows has no sessions
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
    for process in family.values():
        with suppress(psutil.Error):
            process.kill()
    with suppress(subprocess.TimeoutExpired):
        child.wait(_GRACE)
    others = [process for pid, process in family.items() if pid != child.pid]
    _, left = psutil.wait_procs(others, timeout=_GRACE)
    stuck = {process.pid for process in left if _alive(process)}
    return tuple(sorted(stuck | ({child.pid} if child.poll() is None else set())))


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _outcome(
    name: str, code: int, took: float, out: str, err: tuple[str, ...], stuck: tuple[int, ...]
) -> Outcome:
    answer = _answer(out)
    if answer is None:
        return Outcome(
            name, Ending.FAILED, took, (f"no answer, {_how_it_ended(code)}", *err), stuck=stuck
        )
    findings = tuple(str(finding) for finding in answer["findings"])
    ending = Ending.FAILED if findings or code else Ending.PASSED
    parts = answer.get("parts")
    tried = {str(k): str(v) for k, v in parts.items()} if isinstance(parts, dict) else {}
    return Outcome(name, ending, took, findings, answer["measured"], tried, stuck)


def _how_it_ended(code: int) -> str:
    """An exit code as Python gives it; signals of real time have no names."""
    if code >= 0:
        return f"exit code {code}"
    names = {int(each): each.name for each in signal.Signals}
    return f"signal {names.get(-code, -code)}"


def _answer(out: str) -> dict[str, Any] | None:
    """The last line that is an answer; packages print what they like before it."""
    for line in reversed(out.splitlines()):
        with suppress(ValueError, RecursionError):
            value = json.loads(line)
            if (
                isinstance(value, dict)
                and isinstance(value.get("findings"), list)
                and isinstance(value.get("measured"), dict)
            ):
                return value
    return None


def _tail(file: IO[bytes]) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _MOST_OUTPUT))
    return file.read().decode("utf-8", "replace")


def _last_lines(file: IO[bytes]) -> tuple[str, ...]:
    lines = [line.strip() for line in _tail(file).splitlines() if line.strip()]
    return tuple(line[:300] for line in lines[-3:])
