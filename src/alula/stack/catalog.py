"""What is on offer for one target: for each package the files of the one index it is bound to."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from email.parser import BytesHeaderParser
from functools import cached_property
from pathlib import Path
from typing import Literal

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import canonicalize_name
from packaging.version import Version

from alula.stack.archive import read_metadata
from alula.stack.indexes import Index, binding_of
from alula.stack.listing import Listing, WheelFile, read_listing
from alula.stack.lock import IndexPage
from alula.stack.reading import Reader

_OLDEST_MANYLINUX_2 = 5
_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}


@dataclass(frozen=True)
class Target:
    """Where the set is to be installed."""

    python: str = "3.12"
    glibc: tuple[int, int] = (2, 28)
    machine: str = "x86_64"

    @property
    def platform(self) -> str:
        """The newest platform tag that it takes."""
        return f"manylinux_{self.glibc[0]}_{self.glibc[1]}_{self.machine}"

    @cached_property
    def ranks(self) -> Mapping[Tag, int]:
        """Every tag that it takes, the best first."""
        major, minor = (int(part) for part in self.python.split(".")[:2])
        platforms = list(self._platforms())
        version = (major, minor)
        tags = [
            *cpython_tags(version, platforms=platforms),
            *compatible_tags(version, f"cp{major}{minor}", platforms),
        ]
        return {tag: rank for rank, tag in reversed(list(enumerate(tags)))}

    def _platforms(self) -> Iterator[str]:
        for minor in range(self.glibc[1], _OLDEST_MANYLINUX_2 - 1, -1):
            yield f"manylinux_2_{minor}_{self.machine}"
            if minor in _LEGACY:
                yield f"{_LEGACY[minor]}_{self.machine}"
        yield f"linux_{self.machine}"

    def rank(self, file: WheelFile) -> int | None:
        """How well a wheel fits, 0 best; None where it does not."""
        found = [self.ranks[tag] for tag in file.tags if tag in self.ranks]
        return min(found) if found and file.allows_python(self.python) else None


@dataclass(frozen=True)
class Metadata:
    """What a wheel says of itself."""

    version: str
    requires: tuple[str, ...]
    extras: tuple[str, ...]
    requires_python: str = ""


class Catalog:
    """Listings and metadata, read once and kept for the whole plan."""

    def __init__(
        self,
        reader: Reader,
        indexes: Sequence[Index],
        target: Target,
        as_of: datetime | None = None,
        cache: Path | None = None,
        wheelhouse: Path | None = None,
    ) -> None:
        self.reader, self.indexes, self.target, self.as_of = reader, tuple(indexes), target, as_of
        self._cache = cache
        self.wheelhouse = wheelhouse
        self._listings: dict[tuple[str, str], Listing] = {}
        self._offered: dict[tuple[str, str], Mapping[str, WheelFile]] = {}
        self._metadata: dict[str, Metadata] = {}
        self.shown_pages: dict[tuple[str, str, frozenset[str]], bytes] = {}
        """Pages as they were shown to uv, which asks for each many times."""
        self._lock = threading.Lock()

    def listing(self, index: Index, project: str) -> Listing:
        """One project of one index, cut at the day that was asked for."""
        key = (index.name, canonicalize_name(project))
        if key not in self._listings:
            found = self._cut(read_listing(index, key[1], self.reader.page(index, key[1])))
            with self._lock:
                self._listings.setdefault(key, found)
        return self._listings[key]

    def _cut(self, listing: Listing) -> Listing:
        return listing if self.as_of is None else listing.until(self.as_of)

    def prefetch(self, projects: Iterable[str]) -> None:
        """Read the pages of these projects from every index that may have them, side by side."""
        asked = [
            (index, name)
            for name in projects
            for index in self.indexes
            if index.serves(name) and (index.packages or not index.cuda)
        ]
        for (index, name), page in zip(asked, self.reader.pages(asked), strict=True):
            self._listings[index.name, name] = self._cut(read_listing(index, name, page))

    def bound(self, project: str, cuda: str) -> Listing | None:
        """The listing that a package is taken from for a CUDA; None where no index has it."""
        name = canonicalize_name(project)
        for index in binding_of(name, cuda, self.indexes):
            listing = self.listing(index, name)
            if self.offered(listing):
                return listing
        return None

    def silent(self, project: str, cuda: str) -> Listing | None:
        """A listing that did not answer, where the package would be taken from it if it has it."""
        name = canonicalize_name(project)
        for index in binding_of(name, cuda, self.indexes):
            listing = self.listing(index, name)
            if not listing.is_up:
                return listing
            if self.offered(listing):
                break
        return None

    def offered(self, listing: Listing) -> Mapping[str, WheelFile]:
        """Of each version the one wheel to install here, by file name."""
        key = (listing.index.name, listing.project)
        if key not in self._offered:
            found = {file.filename: file for file in self._best(listing)}
            with self._lock:
                self._offered.setdefault(key, found)
        return self._offered[key]

    def _best(self, listing: Listing) -> Iterator[WheelFile]:
        """By build number, then by tag."""
        chosen: dict[Version, tuple[tuple[object, ...], WheelFile]] = {}
        for file in listing.files:
            rank = self.target.rank(file)
            if rank is None:
                continue
            order = (file.yanked, -file.build[0] if file.build else 0, rank)
            if file.version not in chosen or order < chosen[file.version][0]:
                chosen[file.version] = (order, file)
        return (file for _, file in chosen.values())

    def metadata(self, file: WheelFile) -> Metadata:
        """What a wheel says of itself. Raises MachineError where it cannot be read."""
        key = file.sha256 or file.url
        if key not in self._metadata:
            self._metadata[key] = _parsed(self._metadata_bytes(file))
        return self._metadata[key]

    def _metadata_bytes(self, file: WheelFile) -> bytes:
        own = self.in_wheelhouse(file)
        source = replace(file, url=own.as_uri(), has_metadata=False) if own else file
        place = self._place(file)
        if place is not None:
            with suppress(OSError):
                return place.read_bytes()
        data = read_metadata(self.reader, source)
        if place is not None:
            with suppress(OSError):
                place.parent.mkdir(parents=True, exist_ok=True)
                partial = place.with_suffix(f".{threading.get_native_id()}")
                partial.write_bytes(data)
                partial.replace(place)
        return data

    def in_wheelhouse(self, file: WheelFile) -> Path | None:
        """A copy of a wheel in the folder that was named, if it is the same."""
        if self.wheelhouse is None:
            return None
        path = self.wheelhouse / file.filename
        same = path.is_file() and (file.size is None or path.stat().st_size == file.size)
        return path.resolve() if same else None

    def _place(self, file: WheelFile) -> Path | None:
        if self._cache is None or file.sha256 is None:
            return None
        return self._cache / "metadata" / file.sha256

    def read(self) -> tuple[tuple[str, str], ...]:
        """Index and project of every listing that was read."""
        return tuple(self._listings)

    def pages(self) -> tuple[IndexPage, ...]:
        """Every page that was read, for the lock."""
        return tuple(
            IndexPage(
                name=listing.index.name,
                url=listing.page.url,
                state=_state(listing, self.as_of),
                sha256=listing.page.sha256,
                read_at=listing.page.read_at,
            )
            for _, listing in sorted(self._listings.items())
        )

    def odd(self) -> dict[str, tuple[str, ...]]:
        """What is wrong with the lists that were read, by index."""
        found: dict[str, tuple[str, ...]] = {}
        for (index, _), listing in sorted(self._listings.items()):
            if listing.odd:
                found[index] = (*found.get(index, ()), *listing.odd)
        return found

    def undated(self) -> tuple[str, ...]:
        """Indexes without upload times that a day was asked of."""
        if self.as_of is None:
            return ()
        names = {listing.index.name for listing in self._listings.values() if not listing.dated}
        return tuple(sorted(names))

    def down(self) -> dict[str, str]:
        """Indexes that did not answer, and why."""
        return {
            listing.index.name: listing.page.why
            for listing in self._listings.values()
            if not listing.is_up
        }


def _state(
    listing: Listing, as_of: datetime | None
) -> Literal["read", "cached", "down", "undated"]:
    return "undated" if as_of and not listing.dated else listing.page.state


def _parsed(data: bytes) -> Metadata:
    headers = BytesHeaderParser().parsebytes(data.partition(b"\n\n")[0])
    return Metadata(
        str(headers.get("Version", "")),
        tuple(map(str, headers.get_all("Requires-Dist") or ())),
        tuple(map(str, headers.get_all("Provides-Extra") or ())),
        str(headers.get("Requires-Python") or ""),
    )


def digest_of(path: Path) -> str:
    """The sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
