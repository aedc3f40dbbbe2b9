"""The lock: stable bytes, read back as it was, and without a credential."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from alula.errors import UsageError
from alula.stack.emit import requirements, uv_project
from alula.stack.indexes import Index
from alula.stack.lock import Lock, Override, Toolkit, Wheel


def wheel(name: str = "torch", url: str = "https://host/torch-2.9.1.whl") -> Wheel:
    return Wheel(
        name=name,
        version="2.9.1+cu130",
        filename="torch-2.9.1+cu130-cp312-cp312-manylinux_2_28_x86_64.whl",
        url=url,
        sha256="ab" * 32,
        size=10,
        index="own",
        architectures=("sm_120",),
    )


def lock(*wheels: Wheel) -> Lock:
    return Lock(
        created=datetime(2026, 2, 28, tzinfo=UTC),
        python="3.12",
        tags="manylinux_2_28_x86_64",
        toolkit=Toolkit(kind="wheels", version="13.0"),
        packages=wheels,
        overrides=(Override(package="x", pinned_by="y", requirement="x>=2", reason="it must be"),),
    )


def test_it_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    written = lock(wheel())
    written.write(tmp_path / "a")
    assert Lock.read(tmp_path / "a") == written
    Lock.read(tmp_path / "a").write(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@given(st.text(st.characters(categories=("L", "N")), min_size=1))
def test_no_credential_stands_in_it(secret: str) -> None:
    with pytest.raises(ValidationError):
        wheel(url=f"https://{secret}@host/x.whl")


@pytest.mark.parametrize("url", ["ftp://host/x.whl", "x.whl", "javascript:1"])
def test_an_address_of_another_kind_is_refused(url: str) -> None:
    with pytest.raises(ValidationError):
        wheel(url=url)


@pytest.mark.parametrize("content", ["", "{}", '{"format": 2}', "[]", "\0"])
def test_what_is_no_lock_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "lock").write_text(content)
    with pytest.raises(UsageError, match="is not a lock"):
        Lock.read(tmp_path / "lock")


def test_a_refusal_does_not_show_what_was_in_it(tmp_path: Path) -> None:
    text = lock(wheel()).to_bytes().decode().replace("https://", "https://a:hunter2@")
    (tmp_path / "lock").write_text(text)
    with pytest.raises(UsageError) as refused:
        Lock.read(tmp_path / "lock")
    assert "hunter2" not in f"{refused.value} {refused.value.why}"


def test_requirements_stand_by_address_and_hash() -> None:
    line = requirements(lock(wheel(url="https://host/torch-2.9.1%2Bcu130.whl"))).splitlines()[-1]
    assert line == f"torch @ https://host/torch-2.9.1%2Bcu130.whl --hash=sha256:{'ab' * 32}"


def test_a_project_binds_each_package_to_its_index() -> None:
    indexes = [
        Index("own", "https://a:b@host/cu130", "cu130", ("torch",)),
        Index("pypi", "https://pypi/simple"),
    ]
    project = uv_project(lock(wheel()), indexes)
    assert 'torch = { index = "own" }' in project
    assert 'url = "https://host/cu130/"\nexplicit = true' in project
    assert "pypi" not in project  # nothing is taken from it
    assert '# it must be\n    "x>=2",' in project
