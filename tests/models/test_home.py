"""The cache folder holds whole files or none."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections import namedtuple
from pathlib import Path

import pytest

from alula.errors import MachineError
from alula.models.home import cache_folder, cache_home, need_space, scratch_folder, whole_file


def test_alula_home_goes_before_xdg_before_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.setenv("ALULA_HOME", "/own")
    assert cache_home() == Path("/own")
    monkeypatch.delenv("ALULA_HOME")
    assert cache_home() == Path("/xdg/alula")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_home() == Path.home() / ".cache" / "alula"


def test_a_folder_that_cannot_be_written_is_named_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ALULA_HOME", str(tmp_path / "file"))
    with pytest.raises(MachineError) as caught:
        cache_folder("models")
    assert str(tmp_path / "file") in caught.value.what
    assert "ALULA_HOME" in caught.value.fix


def test_a_read_only_folder_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(MachineError, match="Permission denied"):
        cache_folder("models")


def test_a_file_appears_whole(tmp_path: Path) -> None:
    target = tmp_path / "target"
    with whole_file(target, 3, "test") as file:
        file.write(b"abc")
        assert not target.exists()
    assert target.read_bytes() == b"abc"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt()])
def test_an_interrupted_file_leaves_the_old_one(tmp_path: Path, error: BaseException) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"old")
    with pytest.raises(type(error)), whole_file(target, 3, "test") as file:
        file.write(b"new")
        raise error
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


def test_two_writers_do_not_meet(tmp_path: Path) -> None:
    target = tmp_path / "target"
    with whole_file(target, 3, "test") as first, whole_file(target, 3, "test") as second:
        first.write(b"one")
        second.write(b"two")
    assert target.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [target]


def test_a_full_disk_is_told_with_the_size_needed_and_cleaned_up(tmp_path: Path) -> None:
    with (
        pytest.raises(MachineError) as caught,
        whole_file(tmp_path / "target", 98_000_000, "unpack the model"),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert "unpack the model" in caught.value.what
    assert "98 MB are needed" in caught.value.why
    assert not list(tmp_path.iterdir())


def test_space_is_asked_for_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(10, 9, 1_000_000))
    need_space(tmp_path, 1_000_000, "test")
    with pytest.raises(MachineError, match="2 MB are needed, 1 MB are free"):
        need_space(tmp_path, 2_000_000, "test")


def test_leftovers_of_dead_writers_are_removed_and_living_ones_kept(home: Path) -> None:
    folder = cache_folder("models")
    with scratch_folder(folder) as living:
        dead, young = folder / ".dead.partial", folder / ".young.partial"
        (folder / ".deadfolder.partial").mkdir()
        old = time.time() - 1000
        for path in (dead, young):
            path.touch()
        for path in (dead, living, folder / ".deadfolder.partial"):
            os.utime(path, (old, old))
        cache_folder("models")
        assert set(folder.iterdir()) == {living, young}
    assert set(folder.iterdir()) == {young}


def test_a_locked_file_is_kept_however_old(home: Path) -> None:
    path = cache_folder("models") / ".slow.partial"
    with path.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        os.utime(path, (1, 1))
        cache_folder("models")
        assert path.exists()
    cache_folder("models")
    assert not path.exists()
