"""Small wheels, right ones and wrong ones, and locks of them."""

from __future__ import annotations

import base64
import hashlib
import sys
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from packaging.tags import platform_tags
from packaging.utils import parse_wheel_filename

from alula.stack.lock import Lock, Toolkit, Wheel
from alula.stack.places import Places
from alula.stack.records import Record, write_record

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
CREATED = datetime(2026, 2, 28, tzinfo=UTC)


def make_wheel(
    folder: Path,
    name: str = "feather",
    version: str = "1.0",
    files: Mapping[str, bytes] | None = None,
    *,
    tag: str = "py3-none-any",
    inner: str | None = None,
    entry_points: str = "",
    requires: Sequence[str] = (),
    unrecorded: Mapping[str, bytes] | None = None,
    record: Iterable[str] = (),
    entries: Sequence[tuple[zipfile.ZipInfo, bytes]] = (),
) -> Path:
    """A wheel with a module of its name; `unrecorded` files and raw `entries` are not in RECORD."""
    info = f"{name}-{inner or version}.dist-info"
    members = {f"{name}/__init__.py": f"VERSION = {version!r}\n".encode()} if files is None else {}
    members |= files or {}
    said = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {inner or version}"]
    said += [f"Requires-Dist: {text}" for text in requires]
    members[f"{info}/METADATA"] = "\n".join([*said, "", ""]).encode()
    members[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n".encode()
    if entry_points:
        members[f"{info}/entry_points.txt"] = entry_points.encode()
    lines = [f"{path},sha256={_hash(data)},{len(data)}" for path, data in members.items()]
    members[f"{info}/RECORD"] = "\n".join([*lines, *record, f"{info}/RECORD,,", ""]).encode()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in (members | dict(unrecorded or {})).items():
            archive.writestr(member, data)
        for entry, data in entries:
            archive.writestr(entry, data)
    return path


def _hash(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def wheel_of(path: Path, url: str | None = None) -> Wheel:
    """As a lock names it."""
    name, version, _, _ = parse_wheel_filename(path.name)
    return Wheel(
        name=name,
        version=str(version),
        filename=path.name,
        url=url or path.absolute().as_uri(),
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        size=path.stat().st_size,
        index="test",
    )


def lock_of(*wheels: Path | Wheel, toolkit: Toolkit | None = None, python: str = PYTHON) -> Lock:
    """A lock of these files for this machine."""
    return Lock(
        created=CREATED,
        python=python,
        tags=next(iter(platform_tags())),
        toolkit=toolkit or Toolkit(kind="none"),
        packages=tuple(wheel_of(each) if isinstance(each, Path) else each for each in wheels),
    )


def pretend(places: Places, name: str, age: int = 0, lock: Lock | None = None) -> Record:
    """An environment that was built, as far as its record and its interpreter tell."""
    path = places.environment(name)
    (path / "bin").mkdir(parents=True)
    (path / f"lib/python{PYTHON}/site-packages").mkdir(parents=True)
    (path / "bin/python").symlink_to(sys.executable)
    (path / "marker").write_text(name)
    record = Record(
        name=name,
        path=path,
        created=CREATED.replace(year=CREATED.year - age),
        state="ready",
        python=PYTHON,
        lock=lock or lock_of(),
        size_bytes=1000,
    )
    write_record(places, record)
    return record


def hashes(folder: Path) -> dict[str, str]:
    """Of every file below a folder, where every link leads, and when each changed."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name, status = str(path.relative_to(folder)), path.lstat()
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_file():
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            found[name] = f"{digest} {status.st_mode} {status.st_ctime_ns}"
    return found
