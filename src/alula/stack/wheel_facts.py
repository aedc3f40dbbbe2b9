"""What is inside a wheel: device code, sonames, symbols, compilers, gates. Kept by its sha256.

Reading is that of the doctor, on members that are unpacked one at a time. The facts of the wheels
of the published case ship with alula, so that it needs no download of gigabytes.
"""

from __future__ import annotations

import ast
import gzip
import json
import shutil
import tempfile
import threading
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from pathlib import Path, PurePosixPath

from alula.machine.allow_lists import AllowList
from alula.machine.environment import environment_at
from alula.machine.library import Library, defined_symbols, of_torch_or_nccl, read_library
from alula.machine.linkage import SHARED_LIBRARY
from alula.machine.records import from_json, to_json
from alula.machine.scan_cache import ScanCache
from alula.machine.software import SCANNED, find_allow_lists
from alula.machine.text_gates import TextGate, files_with_gates, find_text_gates
from alula.machine.toolkits import Toolkit, read_ptxas
from alula.stack.archive import metadata_member

_COMPILERS = ("ptxas", "ptxas-blackwell")
_MULTIMODAL = "sglang/srt/configs/model_config.py"
_START_UP = "sglang/srt/server_args.py"
_LARGEST = 16 << 30
_SHIPPED = "facts.json.gz"


@dataclass(frozen=True, slots=True)
class Contents:
    """The facts of one wheel."""

    filename: str
    libraries: tuple[Library, ...] = ()
    """Its shared libraries, by their path within the wheel."""
    cubins: Library | None = None
    offers: tuple[str, ...] = ()
    """Symbols of torch's namespaces and of NCCL that it defines."""
    lacks: tuple[str, ...] = ()
    """Where `offers` is not all of them: symbols that it was looked for and does not define."""
    whole: bool = True
    """Whether `offers` is all of them."""
    compilers: Mapping[str, Toolkit] = field(default_factory=dict)
    """Each ptxas by its path within the wheel."""
    allow_lists: tuple[AllowList, ...] = ()
    texts: tuple[TextGate, ...] = ()
    multimodal: tuple[str, ...] = ()
    """Architectures of models that it takes for multimodal."""

    def architectures(self) -> tuple[str, ...]:
        """What its device code is made for."""
        held = (*self.libraries, *([self.cubins] if self.cubins else []))
        found: Counter[str] = Counter()
        for library in held:
            found.update(library.targets())
        return tuple(sorted(found))

    def library_names(self) -> frozenset[str]:
        """What others may name in their NEEDED."""
        names = {PurePosixPath(library.path).name for library in self.libraries}
        return frozenset(names | {each.soname for each in self.libraries if each.soname})


def members_to_read(package: str, archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    """The members that facts are read from."""
    folders = tuple(f"{folder}/" for folder in SCANNED.get(package, ()))
    named = files_with_gates(package) | ({_START_UP} if package == "sglang" else set())
    return [
        member
        for member in archive.infolist()
        if SHARED_LIBRARY.search(member.filename)
        or member.filename.endswith(".cubin")
        or PurePosixPath(member.filename).name in _COMPILERS
        or member.filename in named
        or (member.filename.startswith(folders) and member.filename.endswith(".py"))
    ]


def bytes_to_read(package: str, archive: zipfile.ZipFile) -> int:
    """How much has to be fetched for the facts."""
    return sum(member.compress_size for member in members_to_read(package, archive))


def read_contents(
    package: str,
    filename: str,
    archive: zipfile.ZipFile,
    advance: Callable[[int], None] = lambda _: None,
) -> Contents:
    """The facts of a wheel; one of archive.DAMAGE where it cannot be read."""
    members = members_to_read(package, archive)
    if sum(member.file_size for member in members) > _LARGEST:
        raise OSError(f"it unpacks to more than {_LARGEST >> 30} GiB")
    found = Contents(filename)
    libraries: list[Library] = []
    cubins: list[Library] = []
    offers: set[str] = set()
    compilers: dict[str, Toolkit] = {}
    with tempfile.TemporaryDirectory(prefix="alula-wheel-") as name:
        scratch = Path(name)
        for member, path in _binaries(archive, members, scratch):
            place = PurePosixPath(member.filename)
            if place.name in _COMPILERS:
                compilers[member.filename] = replace(read_ptxas(path), path=member.filename)
            elif place.suffix == ".cubin":
                cubins.append(read_library(path))
            else:
                libraries.append(replace(read_library(path), path=member.filename))
                offers.update(of_torch_or_nccl(defined_symbols(path)))
            advance(member.compress_size)
        found = replace(
            found,
            libraries=tuple(libraries),
            cubins=_together(cubins),
            offers=tuple(sorted(offers)),
            compilers=compilers,
        )
        return _with_source(found, package, archive, members, scratch / "site", advance)


def _binaries(
    archive: zipfile.ZipFile, members: list[zipfile.ZipInfo], scratch: Path
) -> Iterator[tuple[zipfile.ZipInfo, Path]]:
    """One member at a time on disk, under a name of our own."""
    path = scratch / "member"
    for member in members:
        if not _is_text(member):
            with archive.open(member) as source, path.open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
            yield member, path


def _is_text(member: zipfile.ZipInfo) -> bool:
    return PurePosixPath(member.filename).suffix in (".py", ".cuh", ".h")


def _together(cubins: list[Library]) -> Library | None:
    """Loose cubin files added up, each counted as a container."""
    if not cubins:
        return None
    containers: Counter[str] = Counter()
    for each in cubins:
        containers.update(each.containers)
    size = sum(each.size for each in cubins)
    return Library(f"{len(cubins)} cubin files", size, dict(containers))


def _with_source(
    found: Contents,
    package: str,
    archive: zipfile.ZipFile,
    members: list[zipfile.ZipInfo],
    site: Path,
    advance: Callable[[int], None],
) -> Contents:
    """The gates in its source, laid out as an environment of this one package."""
    texts = [member for member in members if _is_text(member)]
    if not texts:
        return found
    record = metadata_member(archive)
    for name in (record, *(member.filename for member in texts)):
        parts = PurePosixPath(name).parts
        if ".." in parts or name.startswith("/"):
            continue
        target = site.joinpath(*parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(archive.read(name))
    advance(sum(member.compress_size for member in texts))
    environment = environment_at(site)
    return replace(
        found,
        allow_lists=find_allow_lists(environment, ScanCache(None)),
        texts=(*find_text_gates(environment), *_start_up(package, site)),
        multimodal=_multimodal(site / _MULTIMODAL),
    )


def _start_up(package: str, site: Path) -> Iterator[TextGate]:
    """Where SGLang refuses to start a model on one torch with an older cuDNN."""
    text = "def check_torch_2_9_1_cudnn_compatibility"
    with suppress(OSError):
        for number, line in enumerate((site / _START_UP).read_text("utf-8").splitlines(), start=1):
            if text in line:
                yield TextGate("cudnn-9.15", package, _START_UP, number, text)
                return


def _multimodal(path: Path) -> tuple[str, ...]:
    """SGLang's list of multimodal architectures."""
    with suppress(OSError, SyntaxError, ValueError):
        for node in ast.parse(path.read_bytes()).body:
            match node:
                case ast.Assign(
                    targets=[ast.Name(id="multimodal_model_archs")], value=ast.List(elts=elements)
                ):
                    values = [each.value for each in elements if isinstance(each, ast.Constant)]
                    return tuple(str(value) for value in values)
    return ()


class FactStore:
    """Facts by sha256: those that ship, those that were read before."""

    def __init__(self, cache: Path | None) -> None:
        self._cache = cache

    def find(self, sha256: str | None) -> Contents | None:
        """The facts of a wheel; None where it has not been looked into."""
        if sha256 is None:
            return None
        if sha256 in (shipped := _shipped()):
            return from_json(Contents, shipped[sha256], "facts")
        if self._cache is None:
            return None
        with suppress(OSError, ValueError, EOFError):
            data = gzip.decompress(self._place(sha256).read_bytes())
            return from_json(Contents, json.loads(data), "facts")
        return None

    def keep(self, sha256: str | None, contents: Contents) -> None:
        """Keep what was read."""
        if self._cache is None or sha256 is None:
            return
        place = self._place(sha256)
        with suppress(OSError):
            place.parent.mkdir(parents=True, exist_ok=True)
            partial = place.with_suffix(f".{threading.get_native_id()}")
            partial.write_bytes(gzip.compress(json.dumps(to_json(contents)).encode(), 1))
            partial.replace(place)

    def _place(self, sha256: str) -> Path:
        assert self._cache is not None
        return self._cache / "facts" / f"{sha256}.json.gz"


@cache
def _shipped() -> dict[str, object]:
    data = (files("alula.stack") / "data" / _SHIPPED).read_bytes()
    found: dict[str, object] = json.loads(gzip.decompress(data))
    return found
