"""What a process in an environment is given, and what it is spared."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from alula.errors import UsageError
from alula.stack import link
from alula.stack.launch import prepare
from alula.stack.lock import Toolkit
from alula.stack.places import Places, stack_home
from alula.stack.records import write_record
from alula.stack.variables import variables
from made_wheels import PYTHON, lock_of, pretend


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path / "stack")


def test_caches_are_inside_the_store_and_no_two_environments_share_one(places: Places) -> None:
    own = [variables(places, pretend(places, name), {}).set for name in "ab"]
    for name, value in own[0].items():
        assert value != own[1][name]
        assert value.startswith(str(places.root))


def test_a_foreign_toolkit_and_foreign_modules_are_left_out_and_told(places: Places) -> None:
    environ = {"CUDA_HOME": "/usr/local/cuda-12.8", "PYTHONPATH": "/old", "KEPT": "1"}
    found = variables(places, pretend(places, "a"), environ)
    assert set(found.removed) == {"CUDA_HOME", "PYTHONPATH"}
    assert any("/usr/local/cuda-12.8" in note for note in found.notes)
    applied = found.applied(environ)
    assert applied["KEPT"] == "1"
    assert "CUDA_HOME" not in applied


def test_the_toolkit_is_the_locks(places: Places, tmp_path: Path) -> None:
    home = tmp_path / "cuda-13.0"
    toolkit = Toolkit(kind="folder", version="13.0", path=str(home))
    record = pretend(places, "a", lock=lock_of(toolkit=toolkit))
    environ = {"CUDA_HOME": "/usr/local/cuda-12.8"}
    assert variables(places, record, environ).removed == ("CUDA_HOME",)
    home.mkdir()
    found = variables(places, record, environ)
    assert found.applied(environ)["CUDA_HOME"] == found.set["CUDA_PATH"] == str(home)


def test_a_toolkit_that_its_owner_installs_is_found_where_it_is_put(
    places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    toolkit = Toolkit(kind="owner", version="99.0", command="sh cuda.run")
    record = pretend(places, "a", lock=lock_of(toolkit=toolkit))
    assert "CUDA_HOME" not in variables(places, record, {}).set
    (tmp_path / "cuda-99.0").mkdir()
    assert variables(places, record, {}).set["CUDA_HOME"] == str(tmp_path / "cuda-99.0")


def test_a_toolkit_of_wheels_lies_in_the_environment(places: Places) -> None:
    record = pretend(places, "a", lock=lock_of(toolkit=Toolkit(kind="wheels", version="13.0")))
    home = record.path / f"lib/python{PYTHON}/site-packages/nvidia/cu13"
    (home / "bin").mkdir(parents=True)
    assert "CUDA_HOME" not in variables(places, record, {}).set
    (home / "bin/ptxas").write_bytes(b"Cuda compilation tools, release 13.0, V13.0.88")
    assert variables(places, record, {}).set["CUDA_HOME"] == str(home)


def test_libraries_of_another_stack_are_left_out_and_the_drivers_kept(
    places: Places, tmp_path: Path
) -> None:
    for folder, library in (("old", "libcudart.so.12"), ("driver", "libcuda.so.1")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / library).touch()
    old, driver = str(tmp_path / "old"), str(tmp_path / "driver")
    record = pretend(places, "a")
    found = variables(places, record, {"LD_LIBRARY_PATH": f"{old}:{driver}"})
    assert found.set["LD_LIBRARY_PATH"] == driver
    assert old in found.notes[0]
    alone = variables(places, record, {"LD_LIBRARY_PATH": old})
    assert alone.removed == ("LD_LIBRARY_PATH",)


def test_an_adopted_environment_keeps_what_its_owner_set(places: Places) -> None:
    record = pretend(places, "a").model_copy(update={"baseline": True})
    environ = {"CUDA_HOME": "/usr/local/cuda-12.8", "PYTHONPATH": "/patches", "PATH": "/bin"}
    found = variables(places, record, environ)
    assert found.applied(environ) == environ | {
        "VIRTUAL_ENV": str(record.path),
        "PATH": f"{record.path}/bin{os.pathsep}/bin",
    }


def test_a_launch_holds_the_resolved_environment(places: Places) -> None:
    with pytest.raises(UsageError, match="no current environment"):
        prepare(places, None, {})
    for name in "ab":
        pretend(places, name)
    link.switch(places, "a")
    launch = prepare(places, None, {})
    link.switch(places, "b")
    assert launch.variables.set["VIRTUAL_ENV"] == str(places.environment("a"))
    assert os.get_inheritable(launch.held)
    os.close(launch.held)
    record = pretend(places, "c").model_copy(update={"state": "broken", "reason": "no wheel"})
    write_record(places, record)
    with pytest.raises(UsageError, match="no wheel"):
        prepare(places, "c", {})


def test_environments_are_data_and_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    monkeypatch.delenv("ALULA_HOME", raising=False)
    assert stack_home().root == Path("/data/alula/stack")
    monkeypatch.setenv("ALULA_HOME", "/own")
    assert stack_home().root == Path("/own/stack")
