"""A plan in Markdown that is written once and then brought up to date.

Lines `<!-- mine -->` and `<!-- /mine -->` enclose what a person writes: it is kept to the byte,
under the heading it stood under. Everything else is written anew, but for the decisions of before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from alula.errors import MachineError, UsageError

HEADER = "<!-- alula-assess 1 -->"
START, END = "<!-- mine -->", "<!-- /mine -->"
DECISIONS = "Decisions"
_REST = "Notes"
_DECISION = re.compile(r"- \d{4}-\d{2}-\d{2} `(?P<question>.*)`: (?P<answer>.*)")
_LARGEST = 16 << 20


@dataclass
class Kept:
    """What is carried over from the file as it was."""

    blocks: dict[str, list[str]] = field(default_factory=dict)
    """A person's, marks included, by the heading they stand under; "" above the first."""
    decisions: list[str] = field(default_factory=list)


def update(path: Path, title: str, sections: dict[str, str], decision: str) -> None:
    """Write or rewrite the plan at `path`; `decision` is a line of `decision_line`.

    Raises UsageError for a file that is not such a plan, or whose marks do not pair, and
    MachineError where it cannot be read or written.
    """
    text = composed(title, sections, decision, read(path))
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_bytes(text.encode())
        if path.exists():
            partial.chmod(path.stat().st_mode)
        partial.replace(path.resolve())
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise _unusable(path, error) from error


def decision_line(day: str, question: str, answer: str) -> str:
    """What was decided on a day, on one line."""
    return f"- {day} `{question}`: {answer}"


def read(path: Path) -> Kept:
    """What a plan holds that stays; nothing where there is no file."""
    try:
        if not path.exists():
            return Kept()
        if path.stat().st_size > _LARGEST:
            raise _foreign(path, "it is larger than any plan")
        text = path.read_bytes().decode()
    except OSError as error:
        raise _unusable(path, error) from error
    except UnicodeDecodeError as error:
        raise _foreign(path, str(error)) from error
    if not text.strip():
        return Kept()
    if text.split("\n", 1)[0].strip() != HEADER:
        raise _foreign(path, f"its first line is not {HEADER}")
    return parsed(text, path)


def parsed(text: str, path: Path) -> Kept:
    """A person's blocks and the decisions in a plan. Raises UsageError where marks do not pair."""
    kept, heading, block = Kept(), "", list[str]()
    for line in text.split("\n"):
        mark = line.strip()
        if block:
            block.append(line)
            if mark == END:
                kept.blocks.setdefault(heading, []).append("\n".join(block))
                block = []
        elif mark == START:
            block = [line]
        elif mark == END:
            raise _unpaired(path, END)
        elif line.startswith("## "):
            heading = mark.removeprefix("## ")
        elif heading == DECISIONS and _DECISION.fullmatch(mark):
            kept.decisions.append(mark)
    if block:
        raise _unpaired(path, START)
    return kept


def composed(title: str, sections: dict[str, str], decision: str, kept: Kept) -> str:
    """The whole text. Blocks under a heading that is no longer there go to the end."""
    note = f"Kept by `alula assess --document`. What stands between the lines `{START}` and `{END}`"
    parts = [HEADER, f"# {title}", f"{note} is yours and stays as it is; the rest is written anew."]
    parts += kept.blocks.get("", ())
    for heading, body in sections.items():
        parts.append(f"## {heading}")
        if heading == DECISIONS:
            parts.append("\n".join(_decisions(kept.decisions, decision)))
        parts += [body.strip("\n")] if body.strip("\n") else []
        parts += kept.blocks.get(heading, ())
    rest = [*_left(kept, sections)]
    parts += [f"## {_REST}", *rest] if rest else []
    return "\n\n".join(parts) + "\n"


def _left(kept: Kept, sections: dict[str, str]) -> Iterator[str]:
    for heading, blocks in kept.blocks.items():
        if heading and heading not in sections:
            yield from blocks


def _decisions(before: list[str], fresh: str) -> list[str]:
    """Those of before and this one, unless it is what was decided last about the same question."""
    new = _DECISION.fullmatch(fresh)
    found = [match for line in before if (match := _DECISION.fullmatch(line))]
    same = [match for match in found if new and match["question"] == new["question"]]
    if same and new and same[-1]["answer"] == new["answer"]:
        return before
    return [*before, fresh]


def _foreign(path: Path, why: str) -> UsageError:
    return UsageError(
        f"{path} is not a plan that alula wrote",
        why,
        "name another file: this one is left as it is",
    )


def _unpaired(path: Path, mark: str) -> UsageError:
    return UsageError(
        f"{path} was left as it is",
        f"a line {mark} has no partner",
        f"put your text between a line {START} and a line {END}",
    )


def _unusable(path: Path, error: OSError) -> MachineError:
    return MachineError(
        f"{path} cannot be kept", error.strerror or str(error), "name a file that can be written"
    )
