"""Progress in a pipe and on a terminal."""

from __future__ import annotations

import sys
import time

import pytest

from alula.cli import console
from alula.cli.console import progress_bar


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines come after hundredths of a second instead of ten seconds."""
    monkeypatch.setattr(console, "_FIRST_LINE_SECONDS", 0.02)
    monkeypatch.setattr(console, "_BETWEEN_LINES_SECONDS", 0.08)


def lines_within(seconds: float, capsys: pytest.CaptureFixture[str], total: int) -> list[str]:
    with progress_bar("measuring", total) as task:
        for _ in range(total // 2):
            task.advance(1)
        time.sleep(seconds)
    out, err = capsys.readouterr()
    assert out == ""
    return str(err).splitlines()


@pytest.mark.usefixtures("hurried")
def test_long_work_tells_a_log_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    found = lines_within(0.5, capsys, total=8)
    assert found[0].startswith("measuring: 50% after 0 s, about 0 s left")
    assert 2 <= len(found) <= 7  # 0.02, 0.06, 0.14 and every 0.08 s from there


@pytest.mark.usefixtures("hurried")
def test_work_of_unknown_length_tells_that_it_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert lines_within(0.2, capsys, total=0)[0] == "measuring: 0 s so far"


def test_short_work_tells_a_log_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert lines_within(0.05, capsys, total=8) == []


@pytest.mark.usefixtures("hurried")
def test_a_log_that_cannot_be_written_stops_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        encoding = "utf-8"

        def write(self, _text: str) -> int:
            raise OSError("no space left on device")

        def flush(self) -> None: ...

        def isatty(self) -> bool:
            return False

    monkeypatch.setattr(sys, "stderr", Full())
    with progress_bar("measuring", 2) as task:
        time.sleep(0.1)
        task.advance(1)
