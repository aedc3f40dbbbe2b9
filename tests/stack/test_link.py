"""The link, the journal, and the way back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alula.errors import MachineError, UsageError
from alula.stack import link
from alula.stack.adopt import adopt
from alula.stack.journal import Entry, append, before_current, read
from alula.stack.places import Places
from alula.stack.records import read_record, write_record
from made_wheels import hashes, pretend


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path / "stack")


def _baseline(folder: Path) -> Path:
    (folder / "bin").mkdir(parents=True)
    (folder / "lib/python3.12/site-packages").mkdir(parents=True)
    (folder / "pyvenv.cfg").write_text("version = 3.12.1\n")
    (folder / "bin/python").symlink_to("/usr/bin/python3")
    return folder


def test_a_switch_and_the_way_back(places: Places) -> None:
    for name in "ab":
        pretend(places, name)
    assert link.switch(places, "a")[:2] == (None, "a")
    assert link.switch(places, "b")[:2] == ("a", "b")
    assert (places.current / "marker").read_text() == "b"
    assert not link.switch(places, "b").changed
    assert link.rollback(places)[:2] == ("b", "a")
    assert (places.current / "marker").read_text() == "a"
    with pytest.raises(UsageError, match="nothing to go back to"):
        link.rollback(places)


def test_a_store_may_be_moved_as_a_whole(places: Places, tmp_path: Path) -> None:
    pretend(places, "a")
    link.switch(places, "a")
    places.root.rename(tmp_path / "moved")
    assert (tmp_path / "moved/current/marker").read_text() == "a"


@pytest.mark.parametrize("state", ["building", "broken"])
def test_only_a_whole_environment_is_switched_to(places: Places, state: str) -> None:
    record = pretend(places, "a")
    write_record(places, record.model_copy(update={"state": state}))
    with pytest.raises(UsageError, match="not ready"):
        link.switch(places, "a")
    assert not places.current.is_symlink()


def test_a_missing_environment_is_named(places: Places) -> None:
    record = pretend(places, "a")
    with pytest.raises(UsageError, match="known: a"):
        link.switch(places, "b")
    (record.path / "bin/python").unlink()
    with pytest.raises(UsageError, match="is gone"):
        link.switch(places, "a")
    for name in ("../a", "", "a/b", ".a", "a.json"):
        with pytest.raises(UsageError, match="cannot name"):
            link.switch(places, name)


def test_a_link_that_is_not_ours_is_left_alone(places: Places, tmp_path: Path) -> None:
    pretend(places, "a")
    places.current.symlink_to(tmp_path)
    with pytest.raises(MachineError, match="no record knows"):
        link.switch(places, "a")
    assert places.current.readlink() == tmp_path


def test_an_adopted_environment_is_current_and_unchanged(places: Places, tmp_path: Path) -> None:
    folder = _baseline(tmp_path / "venv")
    before = hashes(folder)
    adopted = adopt(places, folder)
    assert (adopted.new, adopted.current, adopted.record.python) == (True, True, "3.12.1")
    assert not adopt(places, folder).new
    pretend(places, "a")
    link.switch(places, "a")
    assert not adopt(places, folder).current
    assert link.rollback(places).after == "venv"
    assert places.current.resolve() == folder
    assert hashes(folder) == before


def test_a_name_is_adopted_once(places: Places, tmp_path: Path) -> None:
    adopt(places, _baseline(tmp_path / "venv"))
    with pytest.raises(UsageError, match="the name venv is taken"):
        adopt(places, _baseline(tmp_path / "other/venv"))
    with pytest.raises(UsageError, match="known already"):
        adopt(places, tmp_path / "venv", "second")
    with pytest.raises(UsageError, match="no environment"):
        adopt(places, tmp_path / "absent")
    pretend(places, "built")
    link.switch(places, "built")
    for own in (places.current, places.environment("built")):
        with pytest.raises(UsageError, match="is alula's own"):
            adopt(places, own)
    (tmp_path / "venv/bin/python").unlink()
    with pytest.raises(UsageError, match="no bin/python"):
        adopt(places, tmp_path / "venv")


def test_a_switch_ended_before_its_rename_never_was(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        pretend(places, name)
    link.switch(places, "a")
    link.switch(places, "b")

    def ended(_self: Path, _target: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "replace", ended)
        link.switch(places, "c")
    assert link.current(places) == "b"
    assert list(places.root.glob(".current.*"))
    assert link.previous(places) == "a"
    link.switch(places, "c")
    assert not list(places.root.glob(".current.*"))
    assert link.rollback(places).after == "b"
    assert link.rollback(places).after == "a"


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c", None]), st.booleans()), max_size=12))
def test_the_way_back_is_that_of_a_stack(moves: list[tuple[str | None, bool]]) -> None:
    """None is a rollback; a move that is not done leaves its line in the journal only."""
    now: str | None = None
    stack: list[str | None] = []
    entries: list[Entry] = []
    for target, done in moves:
        back = stack[-1] if stack else None
        to = target or back
        if to is None or to == now:
            continue
        action = "switch" if target else "rollback"
        entries.append(Entry(action=action, environment=to, before=now))  # type: ignore[arg-type]
        if done:
            _ = stack.append(now) if target else stack.pop()
            now = to
    assert before_current(entries, now) == (stack[-1] if stack else None)


def test_a_torn_line_harms_no_other(places: Places) -> None:
    places.make()
    append(places, Entry(action="apply", environment="a"))
    with places.journal.open("ab") as file:
        file.write(b'{"at": "2026-')
    append(places, Entry(action="ready", environment="a"))
    found = read(places)
    assert [entry.action for entry in found.entries] == ["apply", "ready"]
    assert found.damaged == 1


def test_a_full_disk_stops_a_switch_before_the_link(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(places, "a")
    pretend(places, "b")
    link.switch(places, "a")
    with monkeypatch.context() as patch, pytest.raises(MachineError, match="disk is full"):
        patch.setattr(os, "write", lambda _file, data: len(data) // 2)
        link.switch(places, "b")
    assert link.current(places) == "a"


def test_a_damaged_record_is_named(places: Places) -> None:
    pretend(places, "a")
    places.record("a").write_text("{}")
    with pytest.raises(MachineError, match="record of a cannot be read"):
        read_record(places, "a")
