"""Whether the libraries of an environment find each other: sonames, and symbols of torch and NCCL.

The dynamic loader's own order is followed as far as files tell it: the library's search path, what
another package has loaded before, the system. What the driver brings is not an environment's to
have.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from alula.machine.environment import Distribution, Environment, resolved
from alula.machine.library import Library, defined_symbols
from alula.machine.source import exists, is_folder

SHARED_LIBRARY = re.compile(r"\.so(\.\d+)*$")

_OF_THE_DRIVER = re.compile(r"lib(cuda|nvidia-.*|nvcuvid|nvoptix)\.so")
_OF_CUDA = re.compile(r"lib(cuda|cudart|cublas|cublasLt|cudnn|nccl|nvrtc|nvJitLink)\.so")
_OF_THE_SYSTEM = re.compile(
    r"(lib(c|m|dl|rt|pthread|util|resolv|gcc_s|stdc\+\+|gomp|z|python3\.\d+m?(\.\d+)?)|ld-linux.*)"
    r"\.so"
)
"""There on every system, or within the interpreter."""


_MOST_OF_A_CHECKOUT = 200_000
"""Files looked at: the checkout of vLLM with its builds has under 20,000."""


@dataclass(frozen=True, slots=True)
class Missing:
    """What one library asks for and the environment does not offer."""

    library: str
    sonames: tuple[str, ...] = ()
    torch_symbols: tuple[str, ...] = ()
    nccl_symbols: tuple[str, ...] = ()
    is_plugin: bool = False
    """A versioned library that no other needs: it is loaded only where its system is there."""

    def __bool__(self) -> bool:
        return bool(self.sonames or self.torch_symbols or self.nccl_symbols)


class Linker:
    """The libraries that an environment offers to each other."""

    def __init__(
        self, environment: Environment, system: SystemLibraries, asked_for: frozenset[str]
    ) -> None:
        self._environment = environment
        self._system = system
        self._asked_for = asked_for

    @cached_property
    def offered(self) -> Mapping[str, Path]:
        """Libraries of the packages, by file name."""
        return {
            path.name: path
            for distribution in self._environment.distributions.values()
            for path in _library_files(distribution)
        }

    def missing(self, library: Library) -> Missing:
        """What a library does not find here."""
        return Missing(
            library.path,
            tuple(soname for soname in library.needed if not self._found(library, soname)),
            self._unmet(library, library.torch_symbols, self._torch),
            self._unmet(library, library.nccl_symbols, self._nccl),
            self._is_plugin(library),
        )

    def _is_plugin(self, library: Library) -> bool:
        name = Path(library.path).name
        return not name.endswith(".so") and not {name, library.soname} & self._asked_for

    def _found(self, library: Library, soname: str) -> bool:
        if is_of_the_system(soname):
            return True
        beside = Path(library.path).parent
        for entry in library.search_path:
            folder = entry.replace("${ORIGIN}", "$ORIGIN").replace("$ORIGIN", str(beside))
            if exists(Path(folder) / soname):
                return True
        return soname in self.offered or exists(beside / soname) or soname in self._system

    def _unmet(
        self, library: Library, asked: Iterable[str], offered: frozenset[str] | None
    ) -> tuple[str, ...]:
        """Symbols that neither their owner nor a library loaded along offers.

        A name within torch's namespaces may be defined beside the library that asks for it.
        """
        missing = missing_symbols(asked, offered)
        if not missing:
            return ()
        beside = (self.offered[name] for name in library.needed if name in self.offered)
        return missing_symbols(missing, frozenset().union(*map(self._symbols, beside)))

    @cached_property
    def _symbols(self) -> Callable[[Path], frozenset[str]]:
        return cache(defined_symbols)

    @cached_property
    def _torch(self) -> frozenset[str] | None:
        torch = self._environment.find("torch")
        return (
            None
            if torch is None
            else frozenset().union(*map(self._symbols, shared_libraries(torch)))
        )

    @cached_property
    def _nccl(self) -> frozenset[str] | None:
        path = self.offered.get("libnccl.so.2")
        return None if path is None else self._symbols(path)


def is_of_the_system(soname: str) -> bool:
    """Whether the driver or any system brings it, so that no package has to."""
    return bool(_OF_THE_DRIVER.match(soname) or _OF_THE_SYSTEM.match(soname))


def missing_symbols(asked: Iterable[str], offered: frozenset[str] | None) -> tuple[str, ...]:
    """Symbols that nobody offers; none where it is not known who would (`offered` is None)."""
    if offered is None:
        return ()
    return tuple(symbol for symbol in asked if symbol not in offered)


def shared_libraries(distribution: Distribution) -> list[Path]:
    """The shared libraries of a package, each once however many links lead to it."""
    found: dict[Path, Path] = {}
    for path in _library_files(distribution):
        found.setdefault(resolved(path), path)
    return list(found.values())


def _library_files(distribution: Distribution) -> list[Path]:
    """Every name of every shared library of a package."""
    paths = [distribution.site / file for file in distribution.files if SHARED_LIBRARY.search(file)]
    if distribution.is_editable:
        paths += _built_in(distribution.roots[0])
    return paths


def _built_in(checkout: Path) -> list[Path]:
    """Libraries below the checkout of an editable install, which may hold data without end."""
    found: list[Path] = []
    seen = 0
    for folder, folders, files in os.walk(checkout):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(folder, name) for name in sorted(files) if name.endswith(".so")]
        seen += len(folders) + len(files)
        if seen > _MOST_OF_A_CHECKOUT:
            break
    return found


class SystemLibraries:
    """What the system's loader would find: in LD_LIBRARY_PATH, its cache file, its folders."""

    def __init__(
        self, root: Path = Path("/"), library_path: str = "", prefix: Path | None = None
    ) -> None:
        machine = platform.machine()
        names = ("lib", "lib64", "usr/lib", "usr/lib64", f"usr/lib/{machine}-linux-gnu")
        self.first = [Path(entry) for entry in library_path.split(":") if entry]
        """Folders of LD_LIBRARY_PATH, which come before a library's own search path."""
        own = [] if prefix is None else [prefix]
        self._folders = [*self.first, *own, *(root / name for name in names)]
        self._cache_file = root / "etc/ld.so.cache"

    @cached_property
    def _cache(self) -> bytes:
        try:
            return self._cache_file.read_bytes()
        except OSError:
            return b""

    def overriding(self) -> list[Path]:
        """CUDA's libraries that LD_LIBRARY_PATH puts before those of the packages."""
        files = (path for folder in self.first if is_folder(folder) for path in folder.glob("lib*"))
        return sorted(path for path in files if _OF_CUDA.match(path.name))

    def __contains__(self, soname: str) -> bool:
        if f"\0{soname}\0".encode() in self._cache:
            return True
        return any(exists(folder / soname) for folder in self._folders)
