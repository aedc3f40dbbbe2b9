"""docs/case-study.md: its commands are repeated, and say what the page says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from running import Alula

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/case-study.md").read_text("utf-8")
BLOCK = re.compile(r"```console\n\$ alula (?P<command>.*)\n(?P<shown>[\s\S]*?)```\n")
NUMBER = re.compile(r"(?<![\w.-])\d+(?:\.\d+)?(?![\w-])")
BLOCKS = [(found["command"], found["shown"]) for found in BLOCK.finditer(PAGE)]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that looks like the root of the repository and may be written to."""
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def parts(shown: str) -> list[list[str]]:
    """The runs of lines between those left out."""
    lines = "\n".join(line.rstrip() for line in shown.rstrip("\n").split("\n"))
    return [part.strip("\n").split("\n") for part in re.split(r"(?m)^…$", lines) if part.strip()]


def find(wanted: list[str], lines: list[str], start: int) -> int:
    """Where a run of lines ends that begins at or after `start`; -1 where it is not there."""
    for at in range(start, len(lines) - len(wanted) + 1):
        if lines[at : at + len(wanted)] == wanted:
            return at + len(wanted)
    return -1


@pytest.mark.parametrize(("command", "shown"), BLOCKS, ids=[command for command, _ in BLOCKS])
def test_a_command_says_what_the_page_says(
    alula: Alula, elsewhere: Path, command: str, shown: str
) -> None:
    done = alula(*shlex.split(command))
    lines, at = [line.rstrip() for line in done.out.split("\n")], 0
    for part in parts(shown):
        at = find(part, lines, at)
        assert at >= 0, "\n".join(part)


def test_every_number_of_the_text_stands_in_some_output(alula: Alula, elsewhere: Path) -> None:
    outputs = " ".join(alula(*shlex.split(command)).out for command, _ in BLOCKS)
    said = set(NUMBER.findall(BLOCK.sub("", PAGE)))
    assert said
    assert said <= set(NUMBER.findall(outputs)) | {"3"}, "3 is the exit code"


def test_the_exit_code_of_the_answer_is_the_one_that_is_told(alula: Alula, elsewhere: Path) -> None:
    command = next(command for command, _ in BLOCKS if "--claims" in command)
    assert f"Exit code {alula(*shlex.split(command)).code}:" in PAGE


def test_a_page_that_says_otherwise_is_noticed() -> None:
    lines = ["a", "b", "", "c"]
    assert find(["b", "", "c"], lines, 0) == 4
    assert find(["a", "c"], lines, 0) == -1
    assert parts("a\n…\nb  \n\nc\n…\n") == [["a"], ["b", "", "c"]]
    assert len(BLOCKS) >= 8
