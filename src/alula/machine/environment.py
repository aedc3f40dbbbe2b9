"""The installed packages of an environment, from their records alone.

Nothing of the environment runs: not its interpreter, whose `.pth` files and `sitecustomize` would
run with it, and no metadata hook. What a wheel left behind is text: METADATA, RECORD,
direct_url.json.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from email.parser import HeaderParser
from functools import cached_property
from pathlib import Path
from urllib.parse import unquote, urlsplit

from alula.errors import UsageError
from alula.machine.source import exists, is_folder

_SITES = (
    "lib/python3*/site-packages",
    "lib64/python3*/site-packages",
    "lib/python3*/dist-packages",
    "local/lib/python3*/dist-packages",
    "Lib/site-packages",
)
"""Of virtual environments and conda; Debian and the images made from it say dist-packages."""
_CACHE = "__pycache__"
_LARGEST_TEXT = 64 << 20


def canonical(name: str) -> str:
    """The one spelling of a package's name, as the packaging specifications define it."""
    return re.sub(r"[-_.]+", "-", name).lower()


@dataclass(frozen=True)
class Distribution:
    """One installed package."""

    name: str
    version: str
    info: Path
    """Its .dist-info folder."""
    requires: tuple[str, ...]

    @property
    def site(self) -> Path:
        """The folder that it is installed into."""
        return self.info.parent

    @cached_property
    def record(self) -> Mapping[str, str]:
        """The hash of each file it owns, by its path relative to `site`, "" where none is said."""
        lines = read_text(self.info / "RECORD").splitlines()
        rows = (row for line in lines for row in _fields(line))
        return {
            row[0]: row[1] if len(row) > 1 else "" for row in rows if row and "\0" not in row[0]
        }

    @property
    def files(self) -> tuple[str, ...]:
        """The files it owns, relative to `site`, as its RECORD lists them."""
        return tuple(self.record)

    @cached_property
    def roots(self) -> tuple[Path, ...]:
        """Folders in which its source lies: the site, or the checkout of an editable install."""
        try:
            origin = json.loads(read_text(self.info / "direct_url.json") or "{}")
            parts = urlsplit(str(origin["url"]) if origin["dir_info"]["editable"] else "")
        except (ValueError, KeyError, TypeError, RecursionError):
            return (self.site,)
        folder = Path(unquote(parts.path))
        if parts.scheme != "file" or "\0" in parts.path or folder == Path(folder.anchor):
            return (self.site,)
        return folder, folder / "src"

    @property
    def is_editable(self) -> bool:
        """Whether its files lie in a checkout, which no RECORD lists."""
        return self.roots != (self.site,)


@dataclass(frozen=True)
class Environment:
    """A Python environment, seen from outside."""

    prefix: Path
    sites: tuple[Path, ...]
    python: str
    """Version, "" where it is not known."""
    distributions: Mapping[str, Distribution]
    """By canonical name."""
    notes: tuple[str, ...]

    def find(self, *names: str) -> Distribution | None:
        """The first of these packages that is installed."""
        found = (self.distributions.get(canonical(name)) for name in names)
        return next((distribution for distribution in found if distribution), None)

    def library_folder(self) -> Path | None:
        """Where conda's interpreter lets all that it loads look; None in other environments."""
        return self.prefix / "lib" if is_folder(self.prefix / "conda-meta") else None

    def owned_twice(self) -> dict[str, tuple[str, ...]]:
        """Files that two packages claim with unlike content, so that one has overwritten the other.

        Packages of one family bring the same `__init__.py`: that harms nobody.
        """
        owners: dict[str, dict[str, str]] = {}
        for distribution in self.distributions.values():
            for file, digest in distribution.record.items():
                owners.setdefault(f"{distribution.site}/{file}", {})[distribution.name] = digest
        twice = {
            file: tuple(sorted(by))
            for file, by in sorted(owners.items())
            if len(by) > 1 and (len(set(by.values())) > 1 or "" in by.values())
        }
        return {self._shown(file): names for file, names in twice.items() if _CACHE not in file}

    def _shown(self, file: str) -> str:
        path = Path(file)
        return path.relative_to(self.prefix).as_posix() if self.prefix in path.parents else file


def _fields(line: str) -> list[list[str]]:
    """The row of one line of a RECORD, read alone so that damage ends with its line."""
    try:
        return list(csv.reader([line]))
    except csv.Error:
        return []


def own_environment() -> Environment:
    """The environment that alula itself runs in."""
    sites = [Path(entry) for entry in sys.path if entry and is_folder(Path(entry))]
    version = ".".join(map(str, sys.version_info[:3]))
    return _examine(Path(sys.prefix), [s for s in sites if _holds_packages(s)], version, [])


def environment_at(prefix: Path) -> Environment:
    """Another environment: a virtual environment, a conda prefix, or a site-packages folder.

    Raises UsageError where the folder is none of these.
    """
    if not is_folder(prefix):
        raise UsageError(
            f"there is no environment at {prefix}",
            "it is not a folder"
            if exists(prefix)
            else "the folder does not exist, or may not be seen",
            "name the folder of a virtual environment, the one that holds bin/ and lib/",
        )
    settings = _settings(prefix)
    sites = [site for pattern in _SITES for site in sorted(prefix.glob(pattern))]
    if not sites and _holds_packages(prefix):
        sites = [prefix]
    if not sites:
        raise UsageError(
            f"{prefix} is not a Python environment",
            "it has neither lib/python3.*/site-packages nor packages of its own",
            "name the folder of a virtual environment, the one that holds bin/ and lib/",
        )
    notes = []
    if settings.get("include-system-site-packages", "").lower() == "true":
        notes.append(
            "it also sees the packages of the Python it was made from "
            f"({settings.get('home', 'unknown')}); they are not listed here"
        )
    return _examine(prefix, sites, _python_version(settings, sites), notes)


def _examine(prefix: Path, sites: Iterable[Path], python: str, notes: list[str]) -> Environment:
    found: dict[str, Distribution] = {}
    unique = list(dict.fromkeys(resolved(site) for site in sites))
    for distribution in (each for site in unique for each in _distributions(site, notes)):
        key = canonical(distribution.name)
        if key in found:
            notes.append(
                f"{key} is installed twice: {found[key].version} and {distribution.version}"
            )
        found.setdefault(key, distribution)
    return Environment(resolved(prefix), tuple(unique), python, found, tuple(notes))


def _distributions(site: Path, notes: list[str]) -> Iterator[Distribution]:
    if old := [info.name for info in sorted(site.glob("*.egg-info"))]:
        named = f"{', '.join(old[:5])}{' …' if len(old) > 5 else ''}"
        notes.append(f"packages of the old kind (.egg-info) are not listed: {named}")
    for info in sorted(site.glob("*.dist-info")):
        headers = HeaderParser().parsestr(read_text(info / "METADATA").partition("\n\n")[0])
        name, version = headers.get("Name", ""), headers.get("Version", "")
        if not name or not version:
            notes.append(f"{info.name} has no readable METADATA")
            continue
        requires = tuple(headers.get_all("Requires-Dist") or ())
        yield Distribution(str(name), str(version), info, tuple(map(str, requires)))


def _holds_packages(folder: Path) -> bool:
    return next(folder.glob("*.dist-info"), None) is not None


def _settings(prefix: Path) -> dict[str, str]:
    """The lines of pyvenv.cfg."""
    lines = read_text(prefix / "pyvenv.cfg").splitlines()
    pairs = (line.partition("=") for line in lines if "=" in line)
    return {key.strip().lower(): value.strip() for key, _, value in pairs}


def _python_version(settings: Mapping[str, str], sites: Iterable[Path]) -> str:
    stated = settings.get("version_info") or settings.get("version") or ""
    named = next((site.parent.name.removeprefix("python") for site in sites), "")
    candidates = (re.match(r"3\.\d+(\.\d+)?", text) for text in (stated, named))
    return next((found[0] for found in candidates if found), "")


def resolved(path: Path) -> Path:
    """Where a path leads; itself where its links go round in a circle."""
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        return path


def read_text(path: Path) -> str:
    """A text file; "" where it is missing, unreadable or of a size that no such file has."""
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST_TEXT:
            return ""
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
