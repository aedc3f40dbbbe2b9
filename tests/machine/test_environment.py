"""Packages of an environment, from their records alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from alula.errors import UsageError
from alula.machine.environment import environment_at, own_environment
from alula.machine.software import read_software
from environments import SITE, install, make_environment, set_traps


def test_packages_versions_and_python(tmp_path: Path) -> None:
    site = make_environment(tmp_path)
    install(site, "sgl-kernel", "0.3.21", {"sgl_kernel/__init__.py": ""})
    found = environment_at(tmp_path)
    assert found.python == "3.12.4"
    assert {name: each.version for name, each in found.distributions.items()} == {
        "sgl-kernel": "0.3.21"
    }
    kernel = found.find("SGL_Kernel")
    assert kernel is not None
    assert kernel.files == ("sgl_kernel/__init__.py", "sgl_kernel-0.3.21.dist-info/METADATA")


def test_a_site_packages_folder_is_taken_too(tmp_path: Path) -> None:
    install(tmp_path, "torch", "2.9.1")
    assert environment_at(tmp_path).find("torch") is not None


@pytest.mark.parametrize("folder", ["lib/python3.12", "local/lib/python3.12"])
def test_debian_calls_it_dist_packages(tmp_path: Path, folder: str) -> None:
    site = tmp_path / folder / "dist-packages"
    site.mkdir(parents=True)
    install(site, "torch", "2.9.1")
    found = environment_at(tmp_path)
    assert found.find("torch") is not None
    assert found.python == "3.12"


def test_files_owned_twice(tmp_path: Path) -> None:
    site = make_environment(tmp_path)
    library = "nvidia/nccl/lib/libnccl.so.2"
    install(site, "nvidia-nccl-cu12", "2.27.5", {library: b"12"})
    install(site, "nvidia-nccl-cu13", "2.28.9", {library: b"13", "nvidia/other": b""})
    assert environment_at(tmp_path).owned_twice() == {
        f"{SITE}/{library}": ("nvidia-nccl-cu12", "nvidia-nccl-cu13")
    }


def test_the_same_file_of_two_packages_harms_nobody(tmp_path: Path) -> None:
    site = make_environment(tmp_path)
    for name, digest in (("a", "1"), ("b", "1"), ("c", "2")):
        install(site, name, "1")
        shared = "sha256=5" if name != "c" else "sha256=6"
        record = f"nvidia/__init__.py,{shared},0\n" if name != "c" else ""
        record += f"x/y.py,sha256={digest},0\n"
        (site / f"{name}-1.dist-info/RECORD").write_text(record)
    assert environment_at(tmp_path).owned_twice() == {f"{SITE}/x/y.py": ("a", "b", "c")}


def test_an_editable_package_is_read_where_it_lies(tmp_path: Path) -> None:
    site = make_environment(tmp_path / "env")
    checkout = tmp_path / "my checkout"
    (checkout / "python/sglang/srt").mkdir(parents=True)
    (checkout / "python/sglang/srt/tables.py").write_text("MAX_SIZES = {9: 1, 10: 2}\n")
    install(site, "sglang", "0.5.9", editable=checkout / "python")
    software = read_software(environment_at(tmp_path / "env"), {})
    assert [each.where for each in software.allow_lists] == ["sglang/srt/tables.py:1"]


def test_damaged_records_are_notes(tmp_path: Path) -> None:
    site = make_environment(tmp_path)
    (site / "broken-1.0.dist-info").mkdir()
    (site / "latin-1.0.dist-info").mkdir()
    (site / "latin-1.0.dist-info/METADATA").write_bytes(b"Name: latin\nVersion: 1\xff\n")
    (site / "latin-1.0.dist-info/RECORD").write_bytes(b'a"b,\xff\n')
    (site / "latin-1.0.dist-info/direct_url.json").write_text("[1, 2]")
    found = environment_at(tmp_path)
    assert found.notes == ("broken-1.0.dist-info has no readable METADATA",)
    assert read_software(found, {}).packages == {"latin": "1�"}


def test_system_packages_that_it_sees_are_named(tmp_path: Path) -> None:
    make_environment(tmp_path)
    (tmp_path / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = true\n")
    assert "also sees the packages" in environment_at(tmp_path).notes[0]


@pytest.mark.parametrize("name", ["nothing", "file", "empty"])
def test_what_is_no_environment(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="environment"):
        environment_at(tmp_path / name)


def test_no_code_of_the_environment_runs(tmp_path: Path) -> None:
    site = make_environment(tmp_path)
    install(site, "torch", "2.9.1", {"torch/version.py": "cuda: str = '12.8'\n"})
    sprung = set_traps(tmp_path)
    environ = {**os.environ, "CUDA_HOME": str(tmp_path), "PATH": f"{tmp_path}/bin"}
    read_software(environment_at(tmp_path), environ)
    assert not sprung.exists()


def test_own_environment_has_what_runs_these_tests() -> None:
    assert own_environment().find("pytest") is not None


def test_packages_of_the_old_kind_are_named(tmp_path: Path) -> None:
    site = make_environment(tmp_path)
    install(site, "torch", "2.9.1")
    (site / "apex-0.1.egg-info").mkdir()
    environment = environment_at(tmp_path)
    assert tuple(environment.distributions) == ("torch",)
    assert environment.notes == (
        "packages of the old kind (.egg-info) are not listed: apex-0.1.egg-info",
    )
