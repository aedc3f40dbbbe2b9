"""A wheel looked through before a byte of it is written: what it holds, where that would go.

What is refused could write outside the environment, differs from the RECORD it brings, or could
make the reader's disk or memory full. The form is that of the packaging specification "Binary
distribution format".
"""

from __future__ import annotations

import base64
import configparser
import csv
import hashlib
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path, PurePosixPath

from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from alula.errors import PackageError
from alula.stack.lock import Wheel

_PIECE = 1 << 20
_LARGEST_TEXT = 64 << 20
_UNHASHED = ("RECORD", "RECORD.jws", "RECORD.p7s")
_PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_SCHEMES = ("purelib", "platlib", "scripts", "data", "headers")

Advance = Callable[[int], None]


class _RefusedError(Exception):
    """A fault of one wheel, to be told with the wheel's name."""


@dataclass(frozen=True, slots=True)
class Member:
    """One file of a wheel."""

    sha256: str
    """URL-safe base64 without padding, as a RECORD writes it; "" of the RECORD itself."""
    size: int


@dataclass(frozen=True, slots=True)
class Contents:
    """What a wheel would put into an environment."""

    wheel: Wheel
    info: str
    """The name of its .dist-info folder."""
    members: Mapping[str, Member]
    commands: Mapping[str, str]
    """Scripts that its entry points ask for, and what each calls."""

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(member.size for member in self.members.values())


def announced_size(path: Path) -> int:
    """Bytes on disk that a wheel says it needs; 0 where it is no archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            return sum(entry.file_size for entry in archive.infolist())
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        return 0  # looking through it says why


def look_through(path: Path, wheel: Wheel, tags: Set[Tag], advance: Advance) -> Contents:
    """Read a wheel once, from end to end; `advance` is told the packed bytes that are read.

    Raises PackageError with the reason where it is refused.
    """
    try:
        _check_file_name(wheel, tags)
        with zipfile.ZipFile(path) as archive:
            return _contents(archive, path.stat().st_size, wheel, advance)
    except (_RefusedError, zipfile.BadZipFile, configparser.Error) as error:
        raise _refusal(wheel, str(error)) from error
    except (zlib.error, csv.Error, EOFError, OSError, RuntimeError, ValueError) as error:
        raise _refusal(wheel, f"it cannot be read: {error}") from error


def _refusal(wheel: Wheel, why: str) -> PackageError:
    return PackageError(
        f"{wheel.filename} is refused",
        why,
        "nothing was written; plan with another file of this package, or tell who built it",
    )


def _check_file_name(wheel: Wheel, tags: Set[Tag]) -> None:
    try:
        name, version, _, named = parse_wheel_filename(wheel.filename)
    except (InvalidWheelFilename, InvalidVersion) as error:
        raise _RefusedError(
            "its name is not that of a wheel, and only wheels are installed"
        ) from error
    if name != canonicalize_name(wheel.name) or version != Version(wheel.version):
        raise _RefusedError(f"the lock calls it {wheel.name} {wheel.version}")
    if named.isdisjoint(tags):
        tag = ", ".join(sorted(map(str, named)))
        raise _RefusedError(f"it is for {tag}, which this machine and Python do not take")


def _contents(archive: zipfile.ZipFile, size: int, wheel: Wheel, advance: Advance) -> Contents:
    for entry in archive.infolist():
        _check_entry(entry)
    entries = [entry for entry in archive.infolist() if not entry.is_dir()]
    _check_sizes(entries, size)
    names = [entry.filename for entry in entries]
    info = _info_folder(names, wheel)
    recorded = _recorded(_text(archive, f"{info}/RECORD"), info)
    if extra := sorted(set(names) - set(recorded)):
        raise _RefusedError(f"its RECORD does not list {extra[0]}")
    if absent := sorted(set(recorded) - set(names)):
        raise _RefusedError(f"its RECORD lists {absent[0]}, which is not there")
    _check_metadata(_text(archive, f"{info}/METADATA"), wheel)
    for entry in entries:
        _check_content(archive, entry, recorded[entry.filename])
        advance(entry.compress_size)
    members = {
        entry.filename: Member(recorded[entry.filename].sha256, entry.file_size)
        for entry in entries
    }
    return Contents(wheel, info, members, _commands(archive, info, names))


def _check_entry(entry: zipfile.ZipInfo) -> None:
    """An entry is a file or a folder inside the archive's root, and nothing else."""
    name = entry.orig_filename
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\\" in name or ":" in parts[0]:
        raise _RefusedError(f"its entry {name!r} lies outside the archive")
    if any(ord(character) < 32 for character in name) or name.rstrip("/") != "/".join(parts):
        raise _RefusedError(f"its entry {name!r} has no plain name")
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind == stat.S_IFLNK:
        raise _RefusedError(f"its entry {name!r} is a symbolic link")
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise _RefusedError(f"its entry {name!r} is neither a file nor a folder")
    if entry.flag_bits & 0x1 or entry.compress_type not in _PACKED:
        raise _RefusedError(f"its entry {name!r} is encrypted, or packed as in no wheel")


def _check_sizes(entries: list[zipfile.ZipInfo], size: int) -> None:
    if sum(entry.compress_size for entry in entries) > size:
        raise _RefusedError("its entries overlap, as in an archive made to fill a disk")
    names = set[str]()
    for entry in entries:
        if entry.filename in names:
            raise _RefusedError(f"it holds {entry.filename!r} twice")
        names.add(entry.filename)
    for name in names:
        if inside := next((f"{up}" for up in PurePosixPath(name).parents if str(up) in names), ""):
            raise _RefusedError(f"{inside!r} is a file and a folder in it")


def _info_folder(names: list[str], wheel: Wheel) -> str:
    roots = {name.partition("/")[0] for name in names if "/" in name}
    infos = sorted(root for root in roots if root.endswith(".dist-info"))
    if len(infos) != 1:
        raise _RefusedError(f"it has {len(infos)} .dist-info folders, not one")
    name, _, version = infos[0].removesuffix(".dist-info").partition("-")
    _check_identity(name, version, wheel, "its .dist-info folder")
    for root in sorted(root for root in roots if root.endswith(".data")):
        if root.removesuffix(".data") != infos[0].removesuffix(".dist-info"):
            raise _RefusedError(f"its folder {root} is another package's")
        for each in names:
            parts = PurePosixPath(each).parts
            if parts[0] == root and (len(parts) < 3 or parts[1] not in _SCHEMES):
                raise _RefusedError(f"its entry {each!r} belongs nowhere")
    return infos[0]


def _check_identity(name: str, version: str, wheel: Wheel, where: str) -> None:
    """A build renamed to carry a local version keeps the version without it inside (sgl-kernel)."""
    wanted = Version(wheel.version)
    try:
        same = Version(version) in (wanted, Version(wanted.public))
    except InvalidVersion:
        same = False
    if canonicalize_name(name) != canonicalize_name(wheel.name) or not same:
        raise _RefusedError(f"{where} says {name} {version}")


def _check_metadata(text: str, wheel: Wheel) -> None:
    headers = HeaderParser().parsestr(text)
    _check_identity(str(headers["Name"]), str(headers["Version"]), wheel, "its METADATA")


def _recorded(text: str, info: str) -> dict[str, Member]:
    found: dict[str, Member] = {}
    for row in csv.reader(text.splitlines()):
        if len(row) != 3:
            raise _RefusedError(f"its RECORD has a line of {len(row)} fields")
        name, digest, size = row
        algorithm, _, value = digest.partition("=")
        if name in found:
            raise _RefusedError(f"its RECORD lists {name} twice")
        if not digest and name in (f"{info}/{each}" for each in _UNHASHED):
            found[name] = Member("", -1)
        elif algorithm != "sha256":
            raise _RefusedError(f"its RECORD has no sha256 of {name}")
        else:
            found[name] = Member(value.rstrip("="), int(size) if size else -1)
    return found


def _check_content(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, recorded: Member) -> None:
    if recorded.size not in (-1, entry.file_size):
        raise _RefusedError(
            f"{entry.filename} has {entry.file_size} bytes, its RECORD says otherwise"
        )
    digest, size = hashlib.sha256(), 0
    with archive.open(entry) as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
            size += len(piece)
    if size != entry.file_size:
        raise _RefusedError(f"{entry.filename} holds {size} bytes and announces {entry.file_size}")
    found = base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()
    if recorded.sha256 and recorded.sha256 != found:
        raise _RefusedError(f"{entry.filename} differs from the hash in its RECORD")


def _text(archive: zipfile.ZipFile, name: str) -> str:
    try:
        entry = archive.getinfo(name)
    except KeyError:
        raise _RefusedError(f"it has no {name}") from None
    if entry.file_size > _LARGEST_TEXT:
        raise _RefusedError(f"its {name} is larger than {_LARGEST_TEXT >> 20} MiB")
    return archive.read(entry).decode("utf-8")


def _commands(archive: zipfile.ZipFile, info: str, names: list[str]) -> dict[str, str]:
    path = f"{info}/entry_points.txt"
    if path not in names:
        return {}
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(_text(archive, path))
    return dict(_calls(parser))


def _calls(parser: configparser.ConfigParser) -> Iterator[tuple[str, str]]:
    for section in ("console_scripts", "gui_scripts"):
        for name, call in parser.items(section) if parser.has_section(section) else ():
            if not name or "/" in name or "\\" in name or name in (".", ".."):
                raise _RefusedError(f"its command {name!r} is no file name")
            yield name, call
