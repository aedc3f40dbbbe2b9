"""The parts of an environment that decide what a GPU can do: what each is, holds and lacks."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from alula.machine.environment import Distribution, Environment, canonical, read_text
from alula.machine.library import Library, read_library
from alula.machine.linkage import Linker, Missing, SystemLibraries, shared_libraries

NAMED = (
    "torch",
    "triton",
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
    "flashinfer-python",
    "flashinfer-cubin",
    "flashinfer-jit-cache",
    "sgl-kernel",
    "sglang-kernel",
    "sglang",
    "vllm",
    "flash-attn",
    "nvidia-cudnn-cu12",
    "nvidia-cudnn-cu13",
    "nvidia-cuda-runtime",
    "nvidia-cuda-runtime-cu12",
    "nvidia-cuda-nvrtc",
    "nvidia-cuda-nvrtc-cu12",
)
"""Shown even without device code; any other package that holds device code is shown too."""

_LABEL = re.compile(r"\+(cu\d+|cpu|rocm[\d.]+)")
_IN_NAME = re.compile(r"-(cu\d+)$")
_TORCH_CUDA = re.compile(r"^cuda\b[^=]*= *'(\d+)\.(\d+)'", re.MULTILINE)
_RUNTIME = re.compile(r"lib(?:cudart|cublas|cublasLt|nvrtc|nvJitLink|cusparse|cufft)\.so\.(\d+)")


@dataclass(frozen=True, slots=True)
class Component:
    """One package with what its binaries say."""

    name: str
    version: str
    variant: str = ""
    """The CUDA it was built for: "cu128", or "cu12" where only the major version is known."""
    variant_from: str = ""
    libraries: tuple[Library, ...] = ()
    """Those with device code, or with something missing or unknown."""
    cubins: Library | None = None
    """All loose cubin files together, each counted as a container."""
    missing: tuple[Missing, ...] = ()

    def device_code(self) -> tuple[Library, ...]:
        """Everything that holds device code."""
        held = tuple(library for library in self.libraries if library.containers)
        return held if self.cubins is None else (*held, self.cubins)


def read_components(environment: Environment, system: SystemLibraries) -> tuple[Component, ...]:
    """The components of an environment, the well-known first."""
    libraries = {
        key: [read_library(path) for path in shared_libraries(distribution)]
        for key, distribution in environment.distributions.items()
    }
    asked_for = {name for each in libraries.values() for library in each for name in library.needed}
    linker = Linker(environment, system, frozenset(asked_for))
    found: dict[str, Component] = {}
    for key, distribution in environment.distributions.items():
        component = _component(distribution, libraries[key], linker)
        if key in NAMED or component.device_code() or component.missing:
            found[key] = component
    order = {name: rank for rank, name in enumerate(NAMED)}
    return tuple(found[key] for key in sorted(found, key=lambda k: (order.get(k, 99), k)))


def _component(distribution: Distribution, libraries: list[Library], linker: Linker) -> Component:
    missing = tuple(filter(None, map(linker.missing, libraries)))
    lacking = {each.library for each in missing}
    variant, source = _variant(distribution, libraries)
    return Component(
        name=canonical(distribution.name),
        version=distribution.version,
        variant=variant,
        variant_from=source,
        libraries=tuple(
            library
            for library in libraries
            if library.containers or library.unknown or library.path in lacking
        ),
        cubins=_cubins(distribution),
        missing=missing,
    )


def _cubins(distribution: Distribution) -> Library | None:
    """Loose cubin files, added up: a package may bring thousands."""
    paths = [distribution.site / file for file in distribution.files if file.endswith(".cubin")]
    if not paths:
        return None
    read = [read_library(path) for path in paths]
    containers: dict[str, int] = {}
    for signature, count in (item for each in read for item in each.containers.items()):
        containers[signature] = containers.get(signature, 0) + count
    unread = sum(not each.containers for each in read)
    return Library(
        path=f"{len(paths)} cubin files",
        size=sum(each.size for each in read),
        containers=containers,
        unknown=(f"{unread} of them could not be read",) if unread else (),
    )


def _variant(distribution: Distribution, libraries: Iterable[Library]) -> tuple[str, str]:
    """For which CUDA a package was built, and where that stands."""
    if label := _LABEL.search(distribution.version):
        return label[1], "its version"
    if distribution.name == "torch" and (cuda := _torch_cuda(distribution.site)):
        return cuda, "torch/version.py"
    if label := _IN_NAME.search(canonical(distribution.name)):
        return label[1], "its name"
    majors = {
        found[1] for each in libraries for name in each.needed if (found := _RUNTIME.match(name))
    }
    return (f"cu{'/cu'.join(sorted(majors))}", "the sonames it needs") if majors else ("", "")


def _torch_cuda(site: Path) -> str:
    text = read_text(site / "torch/version.py")
    found = _TORCH_CUDA.search(text)
    if found:
        return f"cu{found[1]}{found[2]}"
    return "cpu" if re.search(r"^cuda\b[^=]*= *None", text, re.MULTILINE) else ""
