"""Environments built from locks: whole, or not there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from alula.errors import AlulaError, MachineError, PackageError, UsageError
from alula.models.progress import silent
from alula.stack import build, link, uv
from alula.stack.build import apply, name_of
from alula.stack.journal import read
from alula.stack.layout import site_packages
from alula.stack.lock import Lock, Toolkit
from alula.stack.places import Places
from alula.stack.records import Record, read_record
from made_wheels import PYTHON, hashes, lock_of, make_wheel, pretend, wheel_of

_HERE = Path(sys.executable)


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path / "stack")


@pytest.fixture
def lock(tmp_path: Path) -> Lock:
    points = "[console_scripts]\nfly = feather:fly\n"
    fly = b"def fly():\n    print('up')\n"
    feather = make_wheel(
        tmp_path / "index", files={"feather/__init__.py": fly}, entry_points=points
    )
    return lock_of(feather, make_wheel(tmp_path / "index", "quill", "2.0+cu130", inner="2.0"))


def _apply(places: Places, lock: Lock) -> Record:
    return apply(places, lock, silent, python=_HERE).record


def test_a_built_environment_runs(places: Places, lock: Lock) -> None:
    record = _apply(places, lock)
    assert (record.state, record.name) == ("ready", name_of(lock))
    said = subprocess.run([record.path / "bin/fly"], capture_output=True, text=True, check=True)
    assert said.stdout == "up\n"
    code = "import sys, quill; print(sys.prefix, quill.VERSION)"
    command = [record.path / "bin/python", "-c", code]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert said.stdout == f"{record.path} 2.0+cu130\n"
    assert [entry.action for entry in read(places).entries] == ["apply", "ready"]
    assert link.current(places) is None


def test_its_files_are_its_own(places: Places, lock: Lock) -> None:
    """None shares its bytes with a cache or with another environment."""
    record = _apply(places, lock)
    files = [path for path in record.path.rglob("*") if path.is_file() and not path.is_symlink()]
    assert {path.stat().st_nlink for path in files} == {1}
    assert not places.scratch(record.name).exists()


def test_the_same_lock_is_built_once(places: Places, lock: Lock) -> None:
    record = _apply(places, lock)
    before = hashes(record.path)
    again = apply(places, lock, silent)
    assert (again.built, again.record) == (False, record)
    assert hashes(record.path) == before


def test_what_a_person_set_for_uv_changes_nothing(
    places: Places, lock: Lock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("UV_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_LINK_MODE", "symlink")
    monkeypatch.setenv("UV_CONFIG_FILE", str(tmp_path / "absent.toml"))
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "other"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert _apply(places, lock).state == "ready"
    assert not (tmp_path / "other").exists()


class _EndedError(BaseException):
    """The process was killed here."""


@pytest.mark.parametrize(
    "where",
    [
        "alula.stack.download.fetch",
        "alula.stack.build.look_through",
        "alula.stack.uv.make_environment",
        "alula.stack.uv.install",
        "alula.stack.build.check_installed",
        "alula.stack.build.write_activation",
        "alula.stack.build.size_of",
    ],
)
@pytest.mark.parametrize("after", [False, True])
def test_ended_anywhere_a_second_run_completes(
    places: Places, lock: Lock, monkeypatch: pytest.MonkeyPatch, where: str, after: bool
) -> None:
    pretend(places, "old")
    link.switch(places, "old")
    before = hashes(places.environment("old"))
    module, _, name = where.rpartition(".")
    original: Callable[..., Any] = getattr(sys.modules[module], name)

    def ended(*arguments: Any, **named: Any) -> Any:
        if after:
            original(*arguments, **named)
        raise _EndedError

    with monkeypatch.context() as patch, pytest.raises(_EndedError):
        patch.setattr(where, ended)
        _apply(places, lock)
    interrupted = read_record(places, name_of(lock))
    assert interrupted is not None
    assert interrupted.state == "building"
    with pytest.raises(UsageError, match="not ready"):
        link.switch(places, name_of(lock))
    assert link.current(places) == "old"
    assert hashes(places.environment("old")) == before
    record = _apply(places, lock)
    assert link.switch(places, record.name)[:2] == ("old", record.name)
    subprocess.run([record.path / "bin/fly"], capture_output=True, check=True)
    assert hashes(places.environment("old")) == before


def _refused(places: Places, lock: Lock, kind: type[AlulaError] = PackageError) -> str:
    with pytest.raises(kind) as refusal:
        _apply(places, lock)
    name = name_of(lock)
    assert not places.environment(name).exists()
    assert not places.scratch(name).exists()
    return f"{refusal.value} {refusal.value.fix}"


def test_nothing_is_written_where_one_wheel_is_refused(places: Places, tmp_path: Path) -> None:
    good = make_wheel(tmp_path, "quill")
    bad = make_wheel(tmp_path, unrecorded={"feather/extra.py": b""})
    lock = lock_of(good, bad)
    assert "does not list feather/extra.py" in _refused(places, lock)
    record = read_record(places, name_of(lock))
    assert record is not None
    assert record.state == "broken"
    assert "feather/extra.py" in record.reason
    assert [entry.action for entry in read(places).entries] == ["apply", "broken"]


def test_a_file_owned_twice_is_refused(places: Places, tmp_path: Path) -> None:
    wheels = [make_wheel(tmp_path, n, files={"shared.py": n.encode()}) for n in ("a", "b")]
    assert "shared.py is owned twice" in _refused(places, lock_of(*wheels))


def test_a_source_package_is_refused(places: Places, lock: Lock, tmp_path: Path) -> None:
    """No build backend ever runs: this one would leave a file behind."""
    source = tmp_path / "feather-1.0.tar.gz"
    source.write_bytes(b"")
    wheel = lock.packages[0].model_copy(update={"filename": source.name, "url": source.as_uri()})
    wheel = wheel.model_copy(update={"sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca4"
                                     "95991b7852b855", "size": None})  # fmt: skip
    assert "only wheels are installed" in _refused(places, lock_of(wheel))


def test_another_platform_is_refused(places: Places, lock: Lock, tmp_path: Path) -> None:
    foreign = lock.model_copy(update={"tags": "win_amd64"})
    with pytest.raises(PackageError, match="for another platform: win_amd64"):
        _apply(places, foreign)
    wheel = make_wheel(tmp_path, tag="cp312-cp312-manylinux_2_28_s390x")
    assert "do not take" in _refused(places, lock_of(wheel))


def test_another_python_is_refused(places: Places, lock: Lock) -> None:
    for python, kind in (("2.7", PackageError), ("three", PackageError), ("3.9", UsageError)):
        with pytest.raises(kind):
            _apply(places, lock.model_copy(update={"python": python}))
    with pytest.raises(MachineError, match=r"no Python 3\.99 on this machine"):
        apply(places, lock.model_copy(update={"python": "3.99"}), silent)


def test_a_package_twice_in_a_lock_is_refused(places: Places, tmp_path: Path) -> None:
    wheels = [make_wheel(tmp_path, version=version) for version in ("1.0", "2.0")]
    with pytest.raises(PackageError, match="holds feather twice"):
        _apply(places, lock_of(*wheels))


def test_a_taken_name_is_refused(places: Places, lock: Lock) -> None:
    pretend(places, "old")
    before = hashes(places.environments)
    with pytest.raises(UsageError, match="the name old is taken"):
        apply(places, lock, silent, name="old", python=_HERE)
    assert before.items() <= hashes(places.environments).items()


def test_a_disk_without_room_is_told_before_anything_is_written(
    places: Places, lock: Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    assert "no room on the disk" in _refused(places, lock, MachineError)


def test_a_file_that_no_wheel_brought_is_found(
    places: Places, lock: Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two readers of one archive may differ: what lies there is held against what was read."""
    original = uv.install

    def install(folder: Path, *rest: Any) -> None:
        original(folder, *rest)
        (folder / site_packages(PYTHON) / "evil.pth").write_text("import os")

    monkeypatch.setattr(uv, "install", install)
    assert "evil.pth comes from no wheel" in _refused(places, lock)


@pytest.fixture
def small_disk(tmp_path: Path) -> Any:
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting needs rights")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_fills_up_meanwhile_leaves_nothing(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else took the room after it was looked for."""
    monkeypatch.setattr(build, "need_space", lambda *_: None)
    places = Places(small_disk / "stack")
    pretend(places, "old")
    link.switch(places, "old")
    large = make_wheel(tmp_path, files={"feather/data": bytes(20 << 20)})
    assert "the disk became full" in _refused(places, lock_of(large), MachineError)
    assert link.current(places) == "old"
    assert _apply(places, lock_of(make_wheel(tmp_path, "quill"))).state == "ready"


def test_odd_versions_are_installed_as_they_are(places: Places, tmp_path: Path) -> None:
    versions = ("2.11.0.dev20260219+cu130", "1!2.0rc1", "0.3.18.post2+cu130")
    wheels = [make_wheel(tmp_path, f"w{number}", each) for number, each in enumerate(versions)]
    site = _apply(places, lock_of(*wheels)).path / site_packages(PYTHON)
    assert {path.name for path in site.glob("*.dist-info")} == {
        f"w{number}-{version}.dist-info" for number, version in enumerate(versions)
    }


def test_its_variables_are_its_own(places: Places, lock: Lock) -> None:
    record = _apply(places, lock)
    code = "import os, json; print(json.dumps(dict(os.environ)))"
    script = f". {record.path}/bin/activate && python -c '{code}'"
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": "/elsewhere"}
    said = subprocess.run(["sh", "-c", script], capture_output=True, env=environ, check=True)
    found = json.loads(said.stdout)
    assert found["TRITON_CACHE_DIR"] == str(places.compiled(record.name) / "triton")
    assert Path(found["FLASHINFER_WORKSPACE_BASE"]).is_dir()
    assert "PYTHONPATH" not in found


def test_a_toolkit_that_is_still_to_be_installed_is_told(places: Places, tmp_path: Path) -> None:
    owner = Toolkit(kind="owner", version="13.0", path=str(tmp_path / "cuda"), command="install it")
    applied = apply(places, lock_of(make_wheel(tmp_path), toolkit=owner), silent, python=_HERE)
    assert "install it" in applied.notes[0]
    (tmp_path / "cuda").mkdir()
    assert apply(places, lock_of(make_wheel(tmp_path), toolkit=owner), silent).notes == ()


def test_the_address_is_the_only_source(places: Places, tmp_path: Path) -> None:
    """A file beside the locked one, newer and of the same name, is not looked at."""
    locked = wheel_of(make_wheel(tmp_path / "one"))
    make_wheel(tmp_path / "one", version="9.0")
    record = _apply(places, lock_of(locked))
    assert (record.path / site_packages(PYTHON) / "feather-1.0.dist-info").is_dir()
