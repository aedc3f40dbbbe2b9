"""A set of wheels as the doctor would see it installed, told from the wheels alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath
from typing import NamedTuple

from packaging.markers import UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from alula.machine.components import Component
from alula.machine.library import Library
from alula.machine.linkage import SHARED_LIBRARY, Missing, is_of_the_system, missing_symbols
from alula.machine.software import Requirement as Needed
from alula.machine.software import Software
from alula.machine.toolkits import Jit, Toolkit
from alula.stack.catalog import Metadata
from alula.stack.listing import WheelFile
from alula.stack.rules import rules
from alula.stack.wheel_facts import Contents

_LABEL = re.compile(r"cu(\d{2,3})(?:$|\.)")
_IN_NAME = re.compile(r"-cu(\d\d)$")
_RUNTIME = re.compile(r"lib(?:cudart|cublas|cublasLt|nvrtc|nvJitLink)\.so\.(\d+)")
"""Libraries whose soname carries the major version of CUDA."""
_MARKERS = {
    "extra": "",
    "sys_platform": "linux",
    "platform_system": "Linux",
    "platform_machine": "x86_64",
    "os_name": "posix",
}
_CUDA_OWNED = re.compile(
    r"lib(cu(da|dart|dnn|blas|fft|rand|solver|sparse|pti|file|tensor)|nv|nccl|torch|c10|caffe2|mpi_cu)"
)
"""Libraries that a set has to bring; what else is missing is the system's to have."""


@dataclass(frozen=True)
class Chosen:
    """One wheel of a set, with what is known of it."""

    file: WheelFile
    metadata: Metadata
    contents: Contents | None = None
    """None where it has not been looked into."""
    paths: Mapping[str, int] | None = None
    """Its files with their checksums; None where its table was not read."""
    cuda_index: str = ""
    """The CUDA of the index that it comes from."""

    @property
    def name(self) -> str:
        """The canonical name of the package."""
        return self.file.name

    @property
    def shown(self) -> str:
        """Name and version."""
        return f"{self.file.name} {self.file.version}"

    @property
    def inner_version(self) -> str:
        """The version that it states within, where that is another than its name says."""
        with suppress(InvalidVersion):
            if Version(self.metadata.version) == self.file.version:
                return ""
        return self.metadata.version

    @property
    def is_binary(self) -> bool:
        """Whether it is made for one platform."""
        return all(tag.platform != "any" for tag in self.file.tags)

    def variant(self) -> tuple[str, str]:
        """The CUDA that it was built for, "cu130" or "cu13", and where that stands; or two ""."""
        if label := _LABEL.search(self.file.version.local or ""):
            return f"cu{label[1]}", "its version"
        if label := _IN_NAME.search(self.name):
            return f"cu{label[1]}", "its name"
        if self.cuda_index:
            return self.cuda_index, f"the index {self.file.index}"
        if self.name.startswith("nvidia-cuda-"):
            return f"cu{self.file.version.major}", "its version"
        majors = set(self._needed_majors())
        if majors:
            return f"cu{'/cu'.join(sorted(majors))}", "the sonames that it needs"
        required = set(self._required_majors())
        if len(required) == 1 and self.name in rules().needed:
            return f"cu{required.pop()}", "what it requires"
        return "", ""

    def major(self) -> int | None:
        """The major version of its CUDA; None for none, or for several."""
        found = re.fullmatch(r"cu(\d\d)\d?", self.variant()[0])
        return int(found[1]) if found else None

    def _needed_majors(self) -> Iterator[str]:
        for library in self.contents.libraries if self.contents else ():
            for soname in library.needed:
                if found := _RUNTIME.fullmatch(soname):
                    yield found[1]

    def _required_majors(self) -> Iterator[str]:
        for requirement in self.requirements:
            name = canonicalize_name(requirement.name)
            if name.startswith("nvidia-") and (found := _IN_NAME.search(name)):
                yield found[1]

    @cached_property
    def requirements(self) -> tuple[Requirement, ...]:
        """What it requires on Linux without any extra, as far as that can be read."""
        found = []
        for text in self.metadata.requires:
            with suppress(InvalidRequirement, UndefinedEnvironmentName):
                requirement = Requirement(text)
                if requirement.marker is None or requirement.marker.evaluate(_MARKERS):
                    found.append(requirement)
        return tuple(found)


@dataclass(frozen=True)
class Picture:
    """A whole set for one Python."""

    python: str
    chosen: Mapping[str, Chosen]
    toolkit: Toolkit | None = None
    toolkit_because: str = ""
    environment: str = "the plan"

    def of(self, name: str) -> Chosen | None:
        """One of its packages."""
        return self.chosen.get(canonicalize_name(name))

    @cached_property
    def offered(self) -> frozenset[str]:
        """The names of all libraries that it brings."""
        names: set[str] = set()
        for each in self.chosen.values():
            names.update(
                PurePosixPath(path).name for path in each.paths or () if SHARED_LIBRARY.search(path)
            )
            names.update(each.contents.library_names() if each.contents else ())
        return frozenset(names)

    @cached_property
    def asked_for(self) -> frozenset[str]:
        """The names of all libraries that something in it needs."""
        return frozenset(
            name
            for each in self.chosen.values()
            if each.contents
            for library in each.contents.libraries
            for name in library.needed
        )

    def missing(self, each: Chosen) -> tuple[Missing, ...]:
        """What the libraries of one package do not find in the set."""
        return self._all_missing[each.name]

    @cached_property
    def _all_missing(self) -> Mapping[str, tuple[Missing, ...]]:
        return {
            name: tuple(
                filter(None, (self._missing(each, library) for library in each.contents.libraries))
            )
            if each.contents
            else ()
            for name, each in self.chosen.items()
        }

    def _missing(self, each: Chosen, library: Library) -> Missing:
        name = PurePosixPath(library.path).name
        plugin = not name.endswith(".so") and not {name, library.soname} & self.asked_for
        own = each.contents.offers if each.contents else ()
        return Missing(
            library.path,
            tuple(
                soname
                for soname in library.needed
                if _CUDA_OWNED.match(soname)
                and not is_of_the_system(soname)
                and soname not in self.offered
            ),
            () if each.name == "torch" else _unmet(library.torch_symbols, own, self._torch),
            _unmet(library.nccl_symbols, own, self._nccl),
            plugin,
        )

    def of_the_system(self) -> dict[str, tuple[str, ...]]:
        """Libraries that needed packages ask the system for, and who does."""
        found: dict[str, set[str]] = {}
        for each in self.chosen.values():
            for library in each.contents.libraries if each.contents else ():
                for soname in library.needed:
                    ours = is_of_the_system(soname) or soname in self.offered
                    plugin = not library.path.endswith(".so") and not (
                        {PurePosixPath(library.path).name, library.soname} & self.asked_for
                    )
                    foreign = not ours and not plugin and not _CUDA_OWNED.match(soname)
                    if each.name in rules().needed and foreign:
                        found.setdefault(soname, set()).add(each.name)
        return {soname: tuple(sorted(names)) for soname, names in sorted(found.items())}

    def _contents(self, name: str) -> Contents | None:
        each = self.of(name)
        return each.contents if each else None

    @cached_property
    def _torch(self) -> Owner | None:
        return _owner(self._contents("torch"))

    @cached_property
    def _nccl(self) -> Owner | None:
        found = self._contents("nvidia-nccl-cu13") or self._contents("nvidia-nccl-cu12")
        return _owner(found)

    @cached_property
    def software(self) -> Software:
        """The same as the doctor's picture of an environment."""
        components = tuple(
            self._component(each)
            for each in self.chosen.values()
            if each.contents is not None or each.name in rules().needed
        )
        contents = [each.contents for each in self.chosen.values() if each.contents]
        return Software(
            environment=self.environment,
            python=self.python,
            packages={name: str(each.file.version) for name, each in sorted(self.chosen.items())},
            components=components,
            requirements=tuple(self._requirements()),
            toolkits=() if self.toolkit is None else (self.toolkit,),
            jits=tuple(self._jits()),
            allow_lists=tuple(each for found in contents for each in found.allow_lists),
            texts=tuple(each for found in contents for each in found.texts),
            owned_twice=self.owned_twice,
        )

    def _component(self, each: Chosen) -> Component:
        variant, source = each.variant()
        return Component(
            each.name,
            str(each.file.version),
            variant,
            source,
            each.contents.libraries if each.contents else (),
            each.contents.cubins if each.contents else None,
            self.missing(each),
        )

    def _requirements(self) -> Iterator[Needed]:
        for each in self.chosen.values():
            for text in each.metadata.requires:
                yield Needed(each.name, text)

    def _jits(self) -> Iterator[Jit]:
        yield Jit("FlashInfer", self.toolkit, self.toolkit_because)
        triton = self._contents("triton")
        for path, found in sorted((triton.compilers if triton else {}).items()):
            scope = "Triton from 10.0 on" if path.endswith("-blackwell") else "Triton"
            yield Jit(scope, found, "Triton brings it")

    @cached_property
    def owned_twice(self) -> dict[str, tuple[str, ...]]:
        """Files that two wheels bring with unlike content."""
        owners: dict[str, list[tuple[str, int]]] = {}
        for name, each in self.chosen.items():
            for path, checksum in (each.paths or {}).items():
                owners.setdefault(path, []).append((name, checksum))
        return {
            path: tuple(sorted(name for name, _ in found))
            for path, found in sorted(owners.items())
            if len(found) > 1 and len({checksum for _, checksum in found}) > 1
        }


class Owner(NamedTuple):
    """The symbols of a library that others ask for."""

    offers: frozenset[str]
    lacks: frozenset[str]
    whole: bool


def _owner(contents: Contents | None) -> Owner | None:
    if contents is None:
        return None
    return Owner(frozenset(contents.offers), frozenset(contents.lacks), contents.whole)


def _unmet(asked: Iterable[str], own: Iterable[str], owner: Owner | None) -> tuple[str, ...]:
    """Symbols that their owner is known not to define; none where that is not known."""
    if owner is None:
        return ()
    missing = (
        missing_symbols(asked, owner.offers)
        if owner.whole
        else tuple(symbol for symbol in asked if symbol in owner.lacks)
    )
    return missing_symbols(missing, frozenset(own)) if missing else ()
