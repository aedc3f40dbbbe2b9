"""The software of an environment as a whole, read from files alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from alula.machine.allow_lists import AllowList, scan_file, sources
from alula.machine.components import Component, read_components
from alula.machine.environment import Environment
from alula.machine.linkage import SystemLibraries
from alula.machine.scan_cache import ScanCache
from alula.machine.text_gates import TextGate, find_text_gates
from alula.machine.toolkits import Jit, Toolkit, find_toolkits, jits

SCANNED = {
    "flashinfer-python": ("flashinfer",),
    "sglang": ("sglang", "python/sglang"),
    "vllm": ("vllm",),
    "sgl-kernel": ("sgl_kernel",),
    "sglang-kernel": ("sgl_kernel",),
    "flash-attn": ("flash_attn",),
}
"""Packages that choose kernels by architecture in Python, and their folders."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """What a package says it needs, as its METADATA writes it."""

    package: str
    text: str


@dataclass(frozen=True, slots=True)
class Software:
    """What an environment holds."""

    environment: str = ""
    python: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)
    """Versions by canonical name."""
    components: tuple[Component, ...] = ()
    requirements: tuple[Requirement, ...] = ()
    """Those of the components."""
    toolkits: tuple[Toolkit, ...] = ()
    jits: tuple[Jit, ...] = ()
    allow_lists: tuple[AllowList, ...] = ()
    texts: tuple[TextGate, ...] = ()
    owned_twice: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def component(self, *names: str) -> Component | None:
        """The first of these components that is there."""
        found = {component.name: component for component in self.components}
        return next((found[name] for name in names if name in found), None)

    def jit(self, name: str) -> Jit | None:
        """One of the compilers at run time."""
        return next((jit for jit in self.jits if jit.name == name), None)


def read_software(
    environment: Environment, environ: Mapping[str, str], cache: Path | None = None
) -> Software:
    """Everything that files say of an environment; `cache` is a file to keep scans in."""
    system = SystemLibraries(
        library_path=environ.get("LD_LIBRARY_PATH", ""), prefix=environment.library_folder()
    )
    components = read_components(environment, system)
    toolkits = find_toolkits(environment, environ)
    return Software(
        environment=str(environment.prefix),
        python=environment.python,
        packages={name: each.version for name, each in sorted(environment.distributions.items())},
        components=components,
        requirements=tuple(
            Requirement(component.name, text)
            for component in components
            for text in environment.distributions[component.name].requires
        ),
        toolkits=toolkits,
        jits=jits(environment, toolkits, environ),
        allow_lists=find_allow_lists(environment, ScanCache(cache)),
        texts=find_text_gates(environment),
        owned_twice=environment.owned_twice(),
        notes=(
            *environment.notes,
            *_without_record(environment, components),
            *(
                f"LD_LIBRARY_PATH puts {path} before the packages' own"
                for path in system.overriding()
            ),
        ),
    )


def _without_record(environment: Environment, components: tuple[Component, ...]) -> Iterator[str]:
    """Packages whose files are not known, as those of a system's own package manager."""
    for component in components:
        distribution = environment.distributions[component.name]
        if not distribution.files and not distribution.is_editable:
            yield f"{component.name} has no RECORD: its binaries were not read"


def find_allow_lists(environment: Environment, cache: ScanCache) -> tuple[AllowList, ...]:
    """The lists of architectures in the source of the packages that have some."""
    found: list[AllowList] = []
    for package, folders in SCANNED.items():
        distribution = environment.find(package)
        if distribution is None:
            continue
        for path, shown in sources(distribution.roots, folders):
            found += cache.lists(path, partial(scan_file, package, path, shown))
    cache.save()
    return tuple(found)
