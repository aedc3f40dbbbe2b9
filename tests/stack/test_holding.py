"""Who is in an environment, and what that keeps from being done to it."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from alula.errors import MachineError, UsageError
from alula.models.progress import silent
from alula.stack import link
from alula.stack.holding import building, is_held, share
from alula.stack.inventory import inventory
from alula.stack.journal import read
from alula.stack.places import Places
from alula.stack.prune import prune
from alula.stack.usage import processes_in
from alula.stack.uv import make_environment
from made_wheels import lock_of, make_wheel, pretend, wheel_of


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path / "stack")


def _names(places: Places) -> set[str]:
    return {path.stem for path in places.records()}


def test_a_child_that_outlives_its_builder_is_waited_for(places: Places) -> None:
    """uv goes on writing when alula alone is killed: no second builder may write beside it."""
    with building(places, "a", silent) as held:
        child = subprocess.Popen(["sleep", "0.6"], pass_fds=(held,))
    began = time.monotonic()
    with building(places, "a", silent):
        assert child.wait(0.2) == 0
    assert time.monotonic() - began > 0.3


def test_uv_inherits_the_lock(
    places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "uv"
    look = "for each in /proc/$$/fd/*; do readlink $each; done"
    fake.write_text(f"#!/bin/sh\n{look} > {tmp_path}/open\nexit 0\n")
    fake.chmod(0o755)
    monkeypatch.setattr("uv.find_uv_bin", lambda: str(fake))
    with building(places, "a", silent) as held:
        make_environment(tmp_path / "env", Path(sys.executable), tmp_path / "cache", held)
    assert str(places.lock("a")) in (tmp_path / "open").read_text().splitlines()


def test_a_lock_that_is_removed_before_it_is_taken_counts_for_nothing(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    places.make()
    original, calls = fcntl.flock, list[int]()

    def flock(file: int, kind: int) -> None:
        if not calls:  # as a prune does that was a moment earlier
            places.lock("a").unlink()
        calls.append(kind)
        original(file, kind)

    monkeypatch.setattr(fcntl, "flock", flock)
    held = share(places, "a")
    assert os.path.samestat(os.fstat(held), places.lock("a").stat())
    os.close(held)


def test_a_second_builder_is_told(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("alula.stack.holding._ORPHAN_SECONDS", 0.1)
    monkeypatch.setattr("alula.stack.holding._GLANCE_SECONDS", 0.1)
    with building(places, "a", silent):
        with pytest.raises(MachineError, match="another process"), building(places, "a", silent):
            pass
        with pytest.raises(MachineError, match="builds or removes"):
            share(places, "a")
    assert not is_held(places, "a")


def test_the_newest_are_kept(places: Places) -> None:
    for age in range(4):
        pretend(places, f"e{age}", age)
    done = prune(places, 2, silent)
    assert (set(done.removed), done.freed_bytes) == ({"e2", "e3"}, 2000)
    assert _names(places) == {"e0", "e1"}
    assert not places.environment("e3").exists()
    assert not places.lock("e3").exists()
    assert prune(places, 3, silent).removed == ()
    assert set(prune(places, 0, silent).removed) == {"e0", "e1"}


def test_current_and_the_way_back_are_never_removed(places: Places) -> None:
    for age, name in enumerate("abc"):
        pretend(places, name, age)
    link.switch(places, "a")
    link.switch(places, "c")
    done = prune(places, 0, silent)
    assert done.removed == ("b",)
    assert dict(done.kept) == {"a": "a rollback leads to it", "c": "current"}
    assert link.rollback(places).after == "a"


def test_one_that_became_current_meanwhile_is_not_removed(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        pretend(places, name)
        link.switch(places, name)
    monkeypatch.setattr("alula.stack.prune._reasons", lambda *_: {})
    assert prune(places, 0, silent).removed == ()


def test_what_was_not_finished_is_removed_and_what_is_built_is_not(places: Places) -> None:
    for name in "ab":
        record = pretend(places, name)
        text = record.model_copy(update={"state": "building"}).model_dump_json()
        places.record(name).write_text(text)
    with building(places, "a", silent):
        done = prune(places, 3, silent)
    assert done.removed == ("b",)
    assert "builds it" in dict(done.kept)["a"]


@pytest.mark.parametrize("way", ["argument", "directory", "variable", "library", "lock"])
def test_one_in_use_is_never_removed(places: Places, way: str, tmp_path: Path) -> None:
    record = pretend(places, "a")
    code = "import sys; sys.stdout.write('up'); sys.stdout.flush(); sys.stdin.read()"
    command, more = [sys.executable, "-c", code], {}
    if way == "argument":
        command[0] = str(record.path / "bin/python")
    elif way == "directory":
        more = {"cwd": record.path}
    elif way == "variable":
        more = {"env": os.environ | {"VIRTUAL_ENV": str(record.path)}}
    elif way == "library":
        (record.path / "data").write_bytes(bytes(4096))
        (tmp_path / "alias").symlink_to(record.path / "data")  # its name alone tells nothing
        mapped = f"import mmap; f = open({str(tmp_path / 'alias')!r}); "
        command[2] = f"{mapped}m = mmap.mmap(f.fileno(), 0, prot=1); f.close(); {code}"
    else:
        more = {"pass_fds": (share(places, "a"),)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, **more) as child:  # type: ignore[call-overload]
        assert child.stdout.read(2) == b"up"
        for descriptor in more.get("pass_fds", ()):
            os.close(descriptor)  # ours; the child's lives on
        assert prune(places, 0, silent).removed == ()
        known = inventory(places).environments[0]
        assert known.held or known.processes == (child.pid,)
        child.stdin.close()
    assert prune(places, 0, silent).removed == ("a",)


def test_one_that_is_started_through_the_link_keeps_all(places: Places) -> None:
    for age, name in enumerate("abc"):
        pretend(places, name, age)
    link.switch(places, "a")
    python = str(places.current / "bin/python")
    command = [python, "-c", "import sys; print(flush=True); sys.stdin.read()"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as child:  # type: ignore[call-overload]
        child.stdout.readline()
        link.switch(places, "b")
        link.switch(places, "c")
        kept = dict(prune(places, 0, silent).kept)
        child.stdin.close()
    assert f"through the link, by process {child.pid}" in kept["a"]
    assert prune(places, 0, silent).removed == ("a",)


def test_a_name_that_only_begins_alike_is_not_in_use(places: Places) -> None:
    folders = {name: pretend(places, name).path for name in ("a", "a-2")}
    with subprocess.Popen(["sleep", "5"], cwd=folders["a-2"]) as child:
        found = processes_in(folders).processes
        child.kill()
    assert found == {"a": (), "a-2": (child.pid,)}


def test_wheels_go_with_the_last_that_was_built_from_them(places: Places, tmp_path: Path) -> None:
    shared, own = (wheel_of(make_wheel(tmp_path, name)) for name in ("shared", "own"))
    for age, lock in enumerate([lock_of(shared), lock_of(shared, own)]):
        pretend(places, f"e{age}", age, lock)
    stray = wheel_of(make_wheel(tmp_path, "stray"))  # of a prune that was ended
    for wheel in (shared, own, stray):
        kept = places.wheel(wheel.sha256, wheel.filename)
        kept.parent.mkdir(parents=True)
        kept.write_bytes(bytes(100))
    assert prune(places, 1, silent).freed_bytes == 1200
    assert [path.name for path in (places.root / "wheels").iterdir()] == [shared.sha256]


def test_a_removal_that_was_ended_is_ended_by_the_next(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(places, "a")

    def ended(_folder: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("alula.stack.prune._delete", ended)
        prune(places, 0, silent)
    assert _names(places) == set()
    assert [path for path in places.environments.iterdir() if path.is_dir()]
    prune(places, 0, silent)
    assert not [path for path in places.environments.iterdir() if path.is_dir()]
    assert [entry.action for entry in read(places).entries] == ["prune"]


def test_a_negative_number_is_refused(places: Places) -> None:
    with pytest.raises(UsageError, match="negative"):
        prune(places, -1, silent)
