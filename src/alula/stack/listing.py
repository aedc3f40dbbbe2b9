"""The files of a project as an index lists them, and what is odd about the list."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from urllib.parse import urldefrag, urlsplit, urlunsplit

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import Tag
from packaging.utils import BuildTag, InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version
from pypi_simple import DistributionPackage, ProjectPage, UnsupportedRepoVersionError

from alula.stack.indexes import Index
from alula.stack.reading import Page

_FOREIGN = re.compile(r"(?:win32|win_|macosx_|musllinux_|android_|ios_|pyodide_)[^-]*\.whl$")
"""Wheels of systems that alula never installs on: most of a page, and not worth parsing."""


@dataclass(frozen=True)
class WheelFile:
    """One wheel that an index offers."""

    index: str
    name: str
    version: Version
    build: BuildTag
    tags: frozenset[Tag]
    filename: str
    url: str
    sha256: str | None = None
    size: int | None = None
    uploaded: datetime | None = None
    yanked: bool = False
    requires_python: str = ""
    has_metadata: bool = False
    """Whether its METADATA lies beside it."""
    rivals: tuple[str, ...] = ()
    """Hashes under which the same file is listed; more than one means that some are stale."""

    def allows_python(self, python: str) -> bool:
        """Whether its requires-python takes this version of Python."""
        try:
            return SpecifierSet(self.requires_python).contains(python, prereleases=True)
        except InvalidSpecifier:
            return True


@dataclass(frozen=True)
class Listing:
    """What one index says of one project."""

    index: Index
    project: str
    page: Page
    files: tuple[WheelFile, ...] = ()
    odd: tuple[str, ...] = ()
    """What is wrong with the list, in words."""
    sources: int = 0
    """Source archives, which are never installed."""
    dated: bool = True
    """Whether it says when each file came."""

    @property
    def is_up(self) -> bool:
        """Whether the index answered, or was read before."""
        return self.page.state != "down"

    def told_down(self) -> str:
        """That its index did not answer, and why."""
        return f"{self.index.name} is down: {self.page.why}"

    def until(self, day: datetime) -> Listing:
        """The list as it was then.

        One without upload times cannot be cut: it counts only if it was read by then, as a
        snapshot in a folder or a kept page, else it is empty.
        """
        if not self.dated:
            read_at = self.page.read_at
            old = read_at is not None and read_at <= day
            return self if old or self.page.url.startswith("file:") else replace(self, files=())
        return replace(self, files=tuple(f for f in self.files if f.uploaded and f.uploaded <= day))


@dataclass
class _Found:
    files: dict[str, WheelFile] = field(default_factory=dict)
    odd: list[str] = field(default_factory=list)
    sources: int = 0


def read_listing(index: Index, project: str, page: Page) -> Listing:
    """The wheels on a page; what no tool could install is left out and told."""
    found = _Found()
    try:
        for package in _packages(page, project):
            _add(found, index, project, package)
    except (ValueError, KeyError, TypeError, AttributeError, UnsupportedRepoVersionError) as error:
        found = _Found(odd=[f"the page of {project} cannot be read: {type(error).__name__}"])
    odd = [*found.odd, *_relisted(found.files.values())]
    files = tuple(found.files.values())
    dated = all(file.uploaded for file in files)
    return Listing(index, project, page, files, tuple(odd), found.sources, dated)


def _packages(page: Page, project: str) -> Iterable[DistributionPackage]:
    if not page.body:
        return ()
    if "json" in page.content_type:
        said = json.loads(page.body)
        said["files"] = [each for each in said["files"] if not _FOREIGN.search(each["filename"])]
        return ProjectPage.from_json_data(said, page.url).packages
    return ProjectPage.from_html(project, page.body, page.url).packages


def _add(found: _Found, index: Index, project: str, package: DistributionPackage) -> None:
    if not package.filename.endswith(".whl"):
        found.sources += package.package_type == "sdist"
        return
    try:
        name, version, build, tags = parse_wheel_filename(package.filename)
    except InvalidWheelFilename:
        found.odd.append(f"{package.filename} has no name of a wheel")
        return
    if name != canonicalize_name(project):
        found.odd.append(f"{package.filename} is listed under {project}")
        return
    sha256 = (package.digests or {}).get("sha256")
    file = WheelFile(
        index.name,
        name,
        version,
        build,
        tags,
        package.filename,
        _without_credentials(urldefrag(package.url).url),
        sha256,
        package.size,
        package.upload_time,
        bool(package.is_yanked),
        package.requires_python or "",
        bool(package.has_metadata),
        (sha256,) if sha256 else (),
    )
    before = found.files.get(file.filename)
    if before:
        # Releases are overwritten in place: the link that came last is the likeliest.
        rivals = dict.fromkeys((*before.rivals, *file.rivals))
        file = replace(file, rivals=tuple(rivals))
    found.files[file.filename] = file


def _without_credentials(url: str) -> str:
    """An address as it may be shown; those of its index go with every question to its host."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _relisted(files: Iterable[WheelFile]) -> Iterable[str]:
    for file in files:
        if len(file.rivals) > 1:
            yield f"{file.filename} is listed with {len(file.rivals)} different hashes"
