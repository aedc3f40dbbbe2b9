"""The wheels of a set, looked into: their tables of files, and the facts inside those that matter.

Facts that ship or were read before cost nothing. Where more than a gigabyte would have to be
fetched, somebody is asked first; without a yes the wheel counts as not looked into.
"""

from __future__ import annotations

import functools
import json
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from alula.errors import AlulaError
from alula.machine.software import SCANNED
from alula.models.progress import Progress, silent
from alula.stack.archive import DAMAGE, open_wheel, wheel_size
from alula.stack.catalog import Catalog, digest_of
from alula.stack.listing import WheelFile
from alula.stack.picture import Chosen
from alula.stack.rules import rules
from alula.stack.side_by_side import in_order
from alula.stack.wheel_facts import Contents, FactStore, bytes_to_read, read_contents

ASK_ABOVE = 10**9
_SIDE_BY_SIDE = 16


@dataclass
class Wheels:
    """Looks into wheels, each once."""

    catalog: Catalog
    facts: FactStore
    cache: Path | None = None
    kept: Path | None = None
    """Where whole wheels are kept, by their sha256."""
    may_read: Callable[[int], bool] = lambda _: False
    """Asked with the bytes that would be fetched, above `ASK_ABOVE`."""
    progress: Progress = silent
    refused: int = 0
    """Bytes that were not fetched since nobody said yes."""
    _known: dict[str, Chosen] = field(default_factory=dict)
    _settled: set[str] = field(default_factory=set)
    """Addresses of files that were fetched whole."""

    def look(self, files: Sequence[tuple[WheelFile, str]]) -> dict[str, Chosen]:
        """Each file with the CUDA of its index, by package."""
        fresh = [item for item in files if item[0].url not in self._known]
        calls = [functools.partial(self._listed, *item) for item in fresh]
        with self.progress("listing wheels", len(fresh)) as task:
            for each in in_order(calls, _SIDE_BY_SIDE):
                self._known[each.file.url] = each
                task.advance(1)
        self._read_facts([self._known[file.url] for file, _ in files])
        found = (self._known[file.url] for file, _ in files)
        return {each.name: each for each in found}

    def _listed(self, file: WheelFile, cuda: str) -> Chosen:
        metadata = self.catalog.metadata(file)
        contents = self.facts.find(file.sha256)
        size, paths = self._table(file)
        return Chosen(replace(file, size=file.size or size), metadata, contents, paths, cuda)

    def _table(self, file: WheelFile) -> tuple[int | None, Mapping[str, int] | None]:
        """The size of a wheel, and its files with their checksums; None where it has no table."""
        place = self._place(file)
        with suppress(OSError, ValueError, KeyError, TypeError):
            if place is not None:
                kept = json.loads(place.read_bytes())
                return int(kept["size"]), dict(kept["files"])
        try:
            with open_wheel(self.catalog.reader, self._source(file)) as archive:
                size = wheel_size(archive)
                files = {
                    member.filename: member.CRC
                    for member in archive.infolist()
                    if not member.is_dir() and ".dist-info/" not in member.filename
                }
        except AlulaError:
            return None, None
        if place is not None:
            with suppress(OSError):
                place.parent.mkdir(parents=True, exist_ok=True)
                partial = place.with_suffix(f".{threading.get_native_id()}")
                partial.write_text(json.dumps({"size": size, "files": files}))
                partial.replace(place)
        return size, files

    def _source(self, file: WheelFile) -> WheelFile:
        own = self.catalog.in_wheelhouse(file)
        return replace(file, url=own.as_uri()) if own else file

    def _place(self, file: WheelFile) -> Path | None:
        if self.cache is None or file.sha256 is None:
            return None
        return self.cache / "tables" / file.sha256

    def _read_facts(self, chosen: Iterable[Chosen]) -> None:
        """Look into those that matter and were not looked into, and settle their hashes."""
        wanted = [
            each
            for each in chosen
            if self._is_unsettled(each.file) or (each.contents is None and _is_to_be_read(each))
        ]
        sizes = {each.file.url: self._bytes(each) for each in wanted}
        total = sum(sizes.values())
        if total > ASK_ABOVE and not (self.refused or self.may_read(total)):
            self.refused = total
        if self.refused:
            wanted = _cheapest(wanted, sizes)
            total = sum(sizes[each.file.url] for each in wanted)
        with self.progress("reading wheels", total) as task:
            for each in wanted:
                self._known[each.file.url] = self._looked_into(each, task.advance)

    def _is_unsettled(self, file: WheelFile) -> bool:
        """Whether its index says no hash, or several."""
        sure = file.sha256 is not None and len(file.rivals) <= 1
        return not sure and file.url not in self._settled

    def _bytes(self, each: Chosen) -> int:
        if self._is_unsettled(each.file):
            return each.file.size or 0
        try:
            with open_wheel(self.catalog.reader, self._source(each.file)) as archive:
                return bytes_to_read(each.name, archive)
        except AlulaError:
            return 0

    def _looked_into(self, each: Chosen, advance: Callable[[int], None]) -> Chosen:
        try:
            if self._is_unsettled(each.file):
                return self._fetched_whole(each, advance)
            with open_wheel(self.catalog.reader, self._source(each.file)) as archive:
                contents = read_contents(each.name, each.file.filename, archive, advance)
        except (AlulaError, *DAMAGE):
            return each
        self.facts.keep(each.file.sha256, contents)
        return replace(each, contents=contents)

    def _fetched_whole(self, each: Chosen, advance: Callable[[int], None]) -> Chosen:
        """A wheel without a sure hash, settled by its bytes and kept: tomorrow it may be gone."""
        self._settled.add(each.file.url)
        with tempfile.TemporaryDirectory(dir=self._room(), prefix=".alula-") as folder:
            path = self.catalog.in_wheelhouse(each.file)
            if path is None:
                path = Path(folder, each.file.filename)
                digest = self.catalog.reader.download(each.file.url, path, advance)
            else:
                digest = digest_of(path)
            if each.file.rivals and digest not in each.file.rivals:
                return replace(each, file=replace(each.file, sha256=None))
            with zipfile.ZipFile(path) as archive:
                contents = read_contents(each.name, each.file.filename, archive)
            if path.parent == Path(folder):
                self._put_away(path, digest)
        self.facts.keep(digest, contents)
        return replace(each, file=replace(each.file, sha256=digest), contents=contents)

    def _room(self) -> Path | None:
        """A folder on the disk that wheels are kept on."""
        if self.kept is None:
            return None
        self.kept.mkdir(parents=True, exist_ok=True)
        return self.kept

    def _put_away(self, path: Path, digest: str) -> None:
        """What was fetched whole, to where building an environment looks for it."""
        if self.kept is not None:
            folder = self.kept / digest
            folder.mkdir(exist_ok=True)
            path.replace(folder / path.name)

    def contents_of(self, file: WheelFile) -> Contents | None:
        """The facts of a wheel that is not in the set, as far as they cost nothing."""
        known = self._known.get(file.url)
        return known.contents if known else self.facts.find(file.sha256)


def _cheapest(wanted: Sequence[Chosen], sizes: Mapping[str, int]) -> list[Chosen]:
    """As many as need nobody's yes."""
    found, total = [], 0
    for each in sorted(wanted, key=lambda each: sizes[each.file.url]):
        total += sizes[each.file.url]
        if total <= ASK_ABOVE:
            found.append(each)
    return found


def _is_to_be_read(each: Chosen) -> bool:
    """Whether something that matters stands in it."""
    names = rules().needed | SCANNED.keys() | {rule.package for rule in rules().optional}
    compiler = each.name.startswith("nvidia-cuda-nvcc")
    matters = (each.name in names and (each.is_binary or each.name in SCANNED)) or compiler
    return matters and each.paths is not None
