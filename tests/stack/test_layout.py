"""Which two wheels cannot be in one environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from alula.errors import PackageError
from alula.stack.contents import Contents, look_through
from alula.stack.layout import check_owners, places
from alula.stack.platforms import accepted_tags
from made_wheels import make_wheel, wheel_of


def _contents(path: Path) -> Contents:
    return look_through(path, wheel_of(path), accepted_tags((3, 12)), lambda _: None)


def _refused(*wheels: Path) -> str:
    with pytest.raises(PackageError) as refusal:
        check_owners([_contents(path) for path in wheels], "3.12")
    return f"{refusal.value}"


def test_files_go_where_the_wheel_format_says(tmp_path: Path) -> None:
    files = {f"feather-1.0.data/{scheme}/x": b"" for scheme in ("purelib", "scripts", "headers")}
    path = make_wheel(tmp_path, files=files | {"feather-1.0.data/data/lib64/y": b""})
    found = {place.path for place in places(_contents(path), "3.12")}
    assert {
        "lib/python3.12/site-packages/x",
        "bin/x",
        "include/site/python3.12/feather/x",
        "lib/y",
        "lib/python3.12/site-packages/feather-1.0.dist-info/METADATA",
    } <= found


def test_a_file_owned_twice_is_refused(tmp_path: Path) -> None:
    one = make_wheel(tmp_path, "nccl_cu12", files={"nvidia/nccl/lib/libnccl.so.2": b"12"})
    other = make_wheel(tmp_path, "nccl_cu13", files={"nvidia/nccl/lib/libnccl.so.2": b"13"})
    told = _refused(one, other)
    assert "nvidia/nccl/lib/libnccl.so.2 is owned twice" in told
    assert one.name in told
    assert other.name in told


def test_the_same_file_twice_harms_nobody(tmp_path: Path) -> None:
    wheels = [make_wheel(tmp_path, name, files={"nvidia/__init__.py": b""}) for name in ("a", "b")]
    check_owners([_contents(path) for path in wheels], "3.12")


def test_a_command_owned_twice_is_refused(tmp_path: Path) -> None:
    one = make_wheel(tmp_path, "a", entry_points="[console_scripts]\nfly = a:fly\n")
    other = make_wheel(tmp_path, "b", files={"b-1.0.data/scripts/fly": b"#!python\n"})
    assert "bin/fly is owned twice" in _refused(one, other)


@pytest.mark.parametrize("name", ["pyvenv.cfg", "bin/python", "bin/python3.12", "bin/activate"])
def test_the_environments_own_files_are_nobodys(tmp_path: Path, name: str) -> None:
    path = make_wheel(tmp_path, files={f"feather-1.0.data/data/{name}": b""})
    assert "the environment itself" in _refused(path)


def test_a_file_where_another_has_a_folder_is_refused(tmp_path: Path) -> None:
    one = make_wheel(tmp_path, "a", files={"shared": b""})
    other = make_wheel(tmp_path, "b", files={"shared/x.py": b""})
    assert "site-packages/shared is owned twice" in _refused(one, other)
