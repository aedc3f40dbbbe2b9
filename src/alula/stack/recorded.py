"""The files of an environment held against the RECORD of each package, and those of none."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from alula.machine.environment import Distribution, Environment, canonical, read_text

_CHUNK = 1 << 20
_AT_ONCE = 4
_MADE_BY_PYTHON = "__pycache__"
_OF_INSTALLERS = (".pyc", ".dist-info", ".egg-info", ".egg")
_OF_ENVIRONMENTS = ("_virtualenv.py", "_virtualenv.pth", "README.txt")
"""What virtualenv, uv and Python itself put there."""


class Differing(NamedTuple):
    """A file that is not what its package installed."""

    distribution: Distribution
    file: str
    """Relative to the package's site."""
    recorded: str
    found: str
    """Its hash now, "" where the file is gone."""

    @property
    def path(self) -> Path:
        """Where it lies."""
        return self.distribution.site / self.file


def hash_of(path: Path, algorithm: str = "sha256") -> str:
    """A file's hash as RECORD writes it: "sha256=…"; OSError where it cannot be read."""
    digest = hashlib.new(algorithm)
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_CHUNK):
            digest.update(piece)
    text = base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()
    return f"{algorithm}={text}"


def hash_of_bytes(content: bytes) -> str:
    """The same for what a file holds."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
    return f"sha256={digest.decode()}"


def size_of(environment: Environment) -> int:
    """Bytes that `differing` reads."""
    return sum(_size(site / file) for site, file in _hashed(environment))


def differing(environment: Environment, read: Callable[[int], None]) -> list[Differing]:
    """Every file that is missing or changed; `read` is told the bytes of each that was looked at.

    Files without a hash, as RECORD itself and what Python compiles, cannot be told.
    """

    def look(owner: Distribution, file: str, recorded: str) -> Differing | None:
        path = owner.site / file
        try:
            found = hash_of(path, recorded.partition("=")[0])
        except (OSError, ValueError):
            found = ""
        return None if found == recorded else Differing(owner, file, recorded, found)

    def look_and_tell(row: tuple[Distribution, str, str]) -> Differing | None:
        seen = look(*row)
        read(_size(row[0].site / row[1]))
        return seen

    rows = [
        (owner, file, recorded)
        for owner in environment.distributions.values()
        for file, recorded in owner.record.items()
        if recorded and not file.endswith(".pyc")  # Python compiles them again as it likes
    ]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = list(pool.map(look_and_tell, rows))
    return [each for each in found if each is not None]


def unowned(environment: Environment) -> Iterator[tuple[Path, str]]:
    """Files in site-packages that no package lists, as (site, path below it).

    A folder without a single file that is owned is named once, with a slash at its end. Packages
    that list no files own what lies under their names.
    """
    owned = {
        os.path.normpath(owner.site / file)
        for owner in environment.distributions.values()
        for file in owner.files
    }
    folders = {folder for path in owned for folder in map(str, Path(path).parents)}
    for owner in environment.distributions.values():
        if not owner.files:
            owned |= {os.path.normpath(owner.site / name) for name in _top_level(owner)}
    for site in environment.sites:
        for path in _strange(site, owned, folders):
            yield site, path.relative_to(site).as_posix() + ("/" if path.is_dir() else "")


def _top_level(owner: Distribution) -> Iterator[str]:
    name = canonical(owner.name).replace("-", "_")
    for each in {name, *read_text(owner.info / "top_level.txt").split()}:
        yield from (each, f"{each}.py")


def _strange(folder: Path, owned: set[str], folders: set[str]) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name == _MADE_BY_PYTHON or path.suffix in _OF_INSTALLERS:
            continue
        if str(path) in owned or path.name in _OF_ENVIRONMENTS:
            continue
        if path.is_dir() and not path.is_symlink():
            if str(path) in folders:
                yield from _strange(path, owned, folders)
            elif next((each for each in path.rglob("*") if _counts(each)), None) is not None:
                yield path
        else:
            yield path


def _counts(path: Path) -> bool:
    return path.is_file() and _MADE_BY_PYTHON not in path.parts


def _hashed(environment: Environment) -> Iterator[tuple[Path, str]]:
    for owner in environment.distributions.values():
        yield from ((owner.site, file) for file, recorded in owner.record.items() if recorded)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
