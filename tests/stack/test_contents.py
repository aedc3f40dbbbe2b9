"""What a wheel may hold, and what it is refused for."""

from __future__ import annotations

import stat
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alula.errors import PackageError
from alula.stack.contents import Contents, announced_size, look_through
from alula.stack.platforms import accepted_tags
from made_wheels import make_wheel, wheel_of

_EMPTY = "47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU"
_TAGS = accepted_tags((3, 12))


def _look(path: Path) -> Contents:
    return look_through(path, wheel_of(path), _TAGS, lambda _: None)


def _refused(path: Path) -> str:
    with pytest.raises(PackageError) as refusal:
        _look(path)
    assert path.name in refusal.value.what
    return refusal.value.why


def _entry(name: str, mode: int = 0) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name)
    entry.external_attr = mode << 16
    return entry


def test_a_good_wheel_tells_its_files_and_commands(tmp_path: Path) -> None:
    points = "[console_scripts]\nfly = feather:fly\n[other]\nx = y\n"
    path = make_wheel(tmp_path, files={"feather/a.py": b"x" * 5000}, entry_points=points)
    contents = _look(path)
    assert contents.info == "feather-1.0.dist-info"
    assert contents.members["feather/a.py"].size == 5000
    assert contents.commands == {"fly": "feather:fly"}
    assert contents.size == announced_size(path) > 5000


@pytest.mark.parametrize(
    "name",
    ["../evil.py", "/etc/evil", "feather/../../evil", "feather\\..\\evil", "C:/evil", "a/./b"],
)
def test_a_path_outside_the_archive_is_refused(tmp_path: Path, name: str) -> None:
    path = make_wheel(tmp_path, entries=[(_entry(name), b"")])
    assert repr(name) in _refused(path)


@given(parts=st.lists(st.sampled_from(["..", "a", ".", "", "b.py", "~"]), min_size=1, max_size=5))
def test_no_file_that_is_taken_leads_out(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str]
) -> None:
    folder, name = tmp_path_factory.mktemp("named"), "/".join(parts)
    lines = [f"{name},sha256={_EMPTY},0"]
    path = make_wheel(folder, entries=[(_entry(name), b"")], record=lines)
    try:
        contents = _look(path)
    except PackageError:
        return
    for member in contents.members:
        assert (folder / member).resolve().is_relative_to(folder)
        assert Path(member).as_posix() == member


@pytest.mark.parametrize(
    ("mode", "word"),
    [
        (stat.S_IFLNK | 0o777, "symbolic link"),
        (stat.S_IFIFO | 0o644, "neither a file"),
        (stat.S_IFCHR | 0o644, "neither a file"),
    ],
)
def test_links_and_devices_are_refused(tmp_path: Path, mode: int, word: str) -> None:
    path = make_wheel(tmp_path, entries=[(_entry("feather/link", mode), b"/etc/passwd")])
    assert word in _refused(path)


def test_a_file_that_record_does_not_list_is_refused(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, unrecorded={"feather/extra.py": b"1"})
    assert "does not list feather/extra.py" in _refused(path)


def test_a_file_that_only_record_lists_is_refused(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, record=["feather/gone.py,sha256=abc,3"])
    assert "feather/gone.py, which is not there" in _refused(path)


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("feather/x.py,sha256=AAAA,1", "differs from the hash"),
        ("feather/x.py,md5=AAAA,1", "no sha256"),
        ("feather/x.py,,", "no sha256"),
        ("feather/x.py,sha256=AAAA,2", "has 1 bytes"),
        ("feather/x.py", "a line of 1 fields"),
    ],
)
def test_a_file_unlike_its_record_is_refused(tmp_path: Path, line: str, word: str) -> None:
    path = make_wheel(tmp_path, unrecorded={"feather/x.py": b"1"}, record=[line])
    assert word in _refused(path)


def test_sizes_that_lie_are_refused(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, files={"feather/a.py": b"a" * 1000})
    data = bytearray(path.read_bytes())
    for signature, offset in ((b"PK\3\4", 22), (b"PK\1\2", 24)):  # uncompressed size, both times
        at = data.index(signature) + offset
        data[at : at + 4] = (2000).to_bytes(4, "little")
    path.write_bytes(bytes(data))
    assert _refused(path)


def test_entries_that_overlap_are_refused(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, files={"feather/a.py": b"a"})
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\1\2") + 20
    data[at : at + 4] = (1 << 24).to_bytes(4, "little")
    path.write_bytes(bytes(data))
    assert "overlap" in _refused(path)


def test_the_same_entry_twice_is_refused(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, files={"feather/a.py": b"a"})
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "a") as archive:
        archive.writestr("feather/a.py", b"b")
    assert "twice" in _refused(path)


def test_another_platform_is_refused(tmp_path: Path) -> None:
    for tag in ("cp312-cp312-win_amd64", "cp312-cp312-manylinux_2_28_s390x", "cp39-cp39-any"):
        assert "which this machine and Python do not take" in _refused(
            make_wheel(tmp_path, tag=tag)
        )


def test_a_local_version_may_be_missing_inside(tmp_path: Path) -> None:
    _look(make_wheel(tmp_path, version="0.3.21+cu130", inner="0.3.21"))
    path = make_wheel(tmp_path, version="0.3.21+cu130", inner="0.3.20")
    assert "says feather 0.3.20" in _refused(path)


def test_another_name_than_the_locks_is_refused(tmp_path: Path) -> None:
    path = make_wheel(tmp_path)
    with pytest.raises(PackageError, match="the lock calls it quill"):
        other = wheel_of(path).model_copy(update={"name": "quill"})
        look_through(path, other, _TAGS, lambda _: None)


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "feather-1.0-py3-none-any.whl"
    path.write_bytes(b"<html>404</html>")
    assert announced_size(path) == 0
    assert "zip" in _refused(path)
    source = tmp_path / "feather-1.0.tar.gz"
    source.write_bytes(b"")
    wheel = wheel_of(make_wheel(tmp_path)).model_copy(update={"filename": source.name})
    with pytest.raises(PackageError, match="only wheels are installed"):
        look_through(source, wheel, _TAGS, lambda _: None)


@pytest.mark.parametrize(
    "name", ["feather-1.0.data/other/x", "feather-1.0.data/x", "q-1.data/data/x"]
)
def test_data_that_belongs_nowhere_is_refused(tmp_path: Path, name: str) -> None:
    assert "its" in _refused(make_wheel(tmp_path, files={name: b""}))


def test_a_command_that_is_a_path_is_refused(tmp_path: Path) -> None:
    points = "[console_scripts]\n../../evil = feather:fly\n"
    assert "is no file name" in _refused(make_wheel(tmp_path, entry_points=points))


@given(at=st.integers(0, 900), value=st.integers(0, 255))
def test_a_damaged_archive_is_refused_or_the_same(
    tmp_path_factory: pytest.TempPathFactory, at: int, value: int
) -> None:
    path = make_wheel(tmp_path_factory.mktemp("damaged"))
    before = _look(path)
    data = bytearray(path.read_bytes())
    data[at % len(data)] = value
    path.write_bytes(bytes(data))
    try:
        assert _look(path).members == before.members
    except PackageError as refusal:
        assert refusal.why
