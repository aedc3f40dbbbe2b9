"""A plan that is brought up to date again and again, and a person's text in it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alula.assess.living import END, HEADER, START, Kept, composed, decision_line, parsed, update
from alula.assess.plan import plan_sections
from alula.errors import MachineError, UsageError
from six_attempts import ask, first_line

HEADINGS = ("Situation", "Hypotheses", "Decisions", "Next steps")
NAME = Path("plan.md")


def is_own(text: str) -> bool:
    """Whether no line of it is one of the marks."""
    return not {START, END} & {line.strip() for line in text.split("\n")}


own_text = st.text(st.characters(exclude_categories=["Cs"])).filter(is_own)
blocks = st.dictionaries(
    st.sampled_from(("", *HEADINGS, "A heading that is gone")),
    st.lists(own_text.map(lambda text: f"{START}\n{text}\n{END}"), min_size=1, max_size=3),
)
body = st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"])).filter(
    lambda text: is_own(text) and not text.startswith("## ")
)
bodies = st.fixed_dictionaries(dict.fromkeys(HEADINGS, body.map(lambda text: f"- {text}")))


def all_blocks(kept: Kept) -> list[str]:
    return [block for each in kept.blocks.values() for block in each]


@given(blocks, bodies, bodies)
def test_a_persons_text_is_kept_word_for_word(
    mine: dict[str, list[str]], before: dict[str, str], after: dict[str, str]
) -> None:
    first = composed("A", before, decision_line("2026-11-01", "a", "b"), Kept(dict(mine)))
    second = composed("B", after, decision_line("2026-11-02", "c", "d"), parsed(first, NAME))
    for block in (block for each in mine.values() for block in each):
        assert block in second
    for heading in ("", *HEADINGS):
        assert parsed(second, NAME).blocks.get(heading, []) == mine.get(heading, [])
    assert len(all_blocks(parsed(second, NAME))) == sum(map(len, mine.values()))


@given(blocks, bodies)
def test_the_same_again_changes_nothing(mine: dict[str, list[str]], text: dict[str, str]) -> None:
    decision = decision_line("2026-11-01", "a", "b")
    first = composed("A", text, decision, Kept(dict(mine)))
    later = decision_line("2026-11-09", "a", "b")
    assert composed("A", text, later, parsed(first, NAME)) == first


def test_decisions_of_before_stay(tmp_path: Path) -> None:
    path = tmp_path / "plan.md"
    for day, question, answer in (
        ("2026-11-01", "cuda==13.0", "Not."),
        ("2026-11-02", "cuda==13.0", "Not."),
        ("2026-11-03", "driver==595.1", "No."),
        ("2026-11-04", "cuda==13.0", "Worth it."),
    ):
        update(path, "Plan", {"Decisions": "as long as"}, decision_line(day, question, answer))
    lines = [line for line in path.read_text().split("\n") if line.startswith("- ")]
    assert lines == [
        "- 2026-11-01 `cuda==13.0`: Not.",
        "- 2026-11-03 `driver==595.1`: No.",
        "- 2026-11-04 `cuda==13.0`: Worth it.",
    ]


def test_line_ends_of_a_persons_text_stay(tmp_path: Path) -> None:
    path = tmp_path / "plan.md"
    mine = f"{START}\r\nwritten elsewhere\r\n  \t\r\n{END}"
    path.write_bytes(f"{HEADER}\n\n## Situation\n\n{mine}\n".encode())
    update(path, "Plan", {"Situation": "new"}, decision_line("2026-11-01", "a", "b"))
    assert mine.encode() in path.read_bytes()


@pytest.mark.parametrize(
    "text",
    [
        "# my own notes\n",
        f"{HEADER}\n{START}\nno end\n",
        f"{HEADER}\n{END}\n",
        f"{HEADER}\n{START}\na\n{END}\n{END}\n",
        "\udcff",
    ],
)
def test_what_is_no_such_plan_is_left_as_it_is(tmp_path: Path, text: str) -> None:
    path = tmp_path / "plan.md"
    content = text.encode("utf-8", "surrogateescape")
    path.write_bytes(content)
    with pytest.raises(UsageError):
        update(path, "Plan", {"Situation": "new"}, decision_line("2026-11-01", "a", "b"))
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_not_there_is_an_error_of_the_machine(tmp_path: Path) -> None:
    with pytest.raises(MachineError):
        update(tmp_path / "no/plan.md", "Plan", {}, decision_line("2026-11-01", "a", "b"))


def test_mode_and_links_stay(tmp_path: Path) -> None:
    path, link = tmp_path / "plan.md", tmp_path / "link.md"
    path.write_text(f"{HEADER}\n")
    path.chmod(0o640)
    link.symlink_to(path)
    update(link, "Plan", {"Situation": "new"}, decision_line("2026-11-01", "a", "b"))
    assert link.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert "new" in path.read_text()


def test_a_real_answer_comes_back_as_it_was(tmp_path: Path) -> None:
    """Nothing that an answer says is taken for a mark, a heading or a decision of before."""
    path = tmp_path / "plan.md"
    for number in range(2):
        answer = ask("cuda==13.0", claims=True)
        decision = decision_line(f"2026-11-0{number + 1}", "cuda==13.0", first_line(answer))
        update(path, "Plan: CUDA 13.0", plan_sections(answer), decision)
        if number == 0:
            first = path.read_text()
            mine = f"{START}\nAsk Ann before the weekend.\n{END}"
            path.write_text(first.replace("## Tried\n", f"## Tried\n\n{mine}\n"))
    text = path.read_text()
    assert text.replace(f"\n{mine}\n", "") == first
    headings = [line for line in text.split("\n") if line.startswith("## ")]
    assert headings == [
        *("## Situation", "## Hypotheses", "## Tried", "## Price"),
        *("## Decisions", "## Next steps", "## Evidence"),
    ]
    assert "check with `nvcc --version`" in text
