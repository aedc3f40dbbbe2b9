"""CUDA toolkits, and which one each just-in-time compiler would pick.

Nothing found is run: versions and architectures are read from the text inside the binaries.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from alula.machine.capability import Capability
from alula.machine.environment import Environment, resolved
from alula.machine.source import exists, is_file

_RELEASE = re.compile(rb"Cuda compilation tools, release (\d+\.\d+), V(\d+\.\d+\.\d+)")
_ARCHITECTURE = re.compile(rb"sm_(\d{2,3}[af]?)\0")
_OLDEST = {13: 75, 12: 50}
"""Oldest architecture of each major version: ptxas goes on naming what it no longer compiles for.
Source: release notes of CUDA 12.0 and 13.0."""
_CALL = re.compile(rb"\A#!.*\n(?:#.*\n|[ \t\r]*\n)*[ \t]*exec\s+\"?(/[^\s\"]*/nvcc)\"?\s")
_LONGEST_SCRIPT = 4096
_LARGEST_TOOL = 256 << 20
_PIECE = 8 << 20
_OVERLAP = 256

_SYSTEM_HOMES = ("usr/local/cuda", "usr/local/cuda-*", "opt/cuda", "usr/lib/cuda")


@dataclass(frozen=True, slots=True)
class Toolkit:
    """One ptxas, and what it compiles for."""

    path: str
    """The toolkit's folder, or the ptxas where it stands alone."""
    version: str = ""
    architectures: tuple[str, ...] = ()
    """As ptxas names them, without the sm_."""

    def knows(self, gpu: Capability, suffix: str = "") -> bool | None:
        """Whether it compiles for a capability; None where its architectures are not known."""
        return f"{gpu.arch}{suffix}" in self.architectures if self.architectures else None

    def release(self) -> tuple[int, int] | None:
        """Major and minor version."""
        major, _, rest = self.version.partition(".")
        return (int(major), int(rest.partition(".")[0] or 0)) if major else None


@dataclass(frozen=True, slots=True)
class Jit:
    """A compiler at run time, and the toolkit it would pick in this shell."""

    name: str
    toolkit: Toolkit | None
    because: str


def find_toolkits(
    environment: Environment, environ: Mapping[str, str], root: Path = Path("/")
) -> tuple[Toolkit, ...]:
    """Every toolkit in its usual places: the system's, CUDA_HOME, and those of wheels."""
    homes = [home for pattern in _SYSTEM_HOMES for home in sorted(root.glob(pattern))]
    homes += [Path(environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if environ.get(name)]
    homes += [environment.prefix]
    for site in environment.sites:
        homes += [*sorted(site.glob("nvidia/cu[0-9]*")), site / "nvidia/cuda_nvcc"]
    found: dict[Path, Toolkit] = {}
    for home in homes:
        tool = home / "bin/ptxas"
        if is_file(tool) and resolved(tool) not in found:
            found[resolved(tool)] = replace(read_ptxas(tool), path=str(home))
    return tuple(found.values())


def read_ptxas(path: Path) -> Toolkit:
    """Version and architectures of a ptxas, from its own text."""
    version, architectures = "", set[str]()
    try:
        for piece in _pieces(path):
            if found := _RELEASE.search(piece):
                version = found[2].decode()
            architectures.update(name.decode() for name in _ARCHITECTURE.findall(piece))
    except OSError:
        return Toolkit(str(path))
    oldest = _OLDEST.get(int(version.partition(".")[0] or 0), 0)
    ordered = sorted(architectures, key=lambda name: (_number(name), name))
    return Toolkit(str(path), version, tuple(name for name in ordered if _number(name) >= oldest))


def _number(architecture: str) -> int:
    return int(architecture.rstrip("af"))


def _pieces(path: Path) -> Iterable[bytes]:
    """A file in overlapping pieces, so that it is never in memory as a whole."""
    if not is_file(path):  # a pipe would be waited for
        return
    with path.open("rb") as file:
        before, left = b"", _LARGEST_TOOL
        while left > 0 and (piece := file.read(min(_PIECE, left))):
            left -= len(piece)
            yield before + piece
            before = piece[-_OVERLAP:]


def jits(
    environment: Environment, toolkits: Iterable[Toolkit], environ: Mapping[str, str]
) -> tuple[Jit, ...]:
    """What each just-in-time compiler would use, by the rules in its own source.

    torch.utils.cpp_extension, flashinfer.jit.cpp_ext and deep_gemm look at CUDA_HOME, then
    CUDA_PATH, then for nvcc on PATH, then at /usr/local/cuda.
    """
    by_path = {resolved(Path(toolkit.path)): toolkit for toolkit in toolkits}
    home, because = _cuda_home(environment, environ)
    picked = None if home is None else by_path.get(resolved(home), _toolkit_at(home))
    return (
        Jit("torch extensions", picked, because),
        Jit("FlashInfer", picked, because),
        Jit("DeepGEMM", picked, because),
        *_triton(environment, environ),
        _nvrtc(environment),
    )


def _toolkit_at(home: Path) -> Toolkit:
    """The toolkit that an nvcc belongs to, which may be a link to another place."""
    compiler = _called_by(resolved(home / "bin/nvcc"))
    found = read_ptxas(compiler.with_name("ptxas"))
    return replace(found, path=str(home), version=found.version or read_ptxas(compiler).version)


def _called_by(compiler: Path) -> Path:
    """The nvcc behind one that is a script of a single call, as packages of systems write them."""
    try:
        if not is_file(compiler):
            return compiler
        with compiler.open("rb") as file:
            found = _CALL.search(file.read(_LONGEST_SCRIPT))
    except OSError:
        return compiler
    return resolved(Path(os.fsdecode(found[1]))) if found else compiler


def _cuda_home(environment: Environment, environ: Mapping[str, str]) -> tuple[Path | None, str]:
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if value := environ.get(name):
            return Path(value), f"{name} is set"
    # An activated environment stands first on PATH.
    folders = [str(environment.prefix / "bin"), *environ.get("PATH", "").split(":")]
    for folder in filter(None, folders):
        if is_file(Path(folder) / "nvcc"):
            # As their sources do it: a link to nvcc elsewhere is not followed.
            return Path(folder).parent, f"nvcc stands in {folder}"
    default = Path("/usr/local/cuda")
    if exists(default):
        return default, "it is the default place"
    return None, "CUDA_HOME is not set, and there is neither an nvcc on PATH nor /usr/local/cuda"


def _triton(environment: Environment, environ: Mapping[str, str]) -> list[Jit]:
    distribution = environment.find("triton", "pytorch-triton")
    if distribution is None:
        return []
    folder = distribution.site / "triton/backends/nvidia/bin"
    found = []
    for tool, name, scope in (
        ("ptxas", "TRITON_PTXAS_PATH", "Triton"),
        ("ptxas-blackwell", "TRITON_PTXAS_BLACKWELL_PATH", "Triton from 10.0 on"),
    ):
        own = Path(environ.get(name, ""))
        if environ.get(name) and is_file(own):
            found.append(Jit(scope, read_ptxas(own), f"{name} is set"))
        elif is_file(folder / tool):
            found.append(Jit(scope, read_ptxas(folder / tool), "Triton brings it"))
    return found


def _nvrtc(environment: Environment) -> Jit:
    names = [f"nvidia-cuda-nvrtc{suffix}" for suffix in ("", "-cu13", "-cu12", "-cu11")]
    distribution = environment.find(*names)
    if distribution is None:
        return Jit("nvrtc", None, "no package brings it; the system's libnvrtc would be taken")
    toolkit = Toolkit(distribution.name, distribution.version)
    return Jit("nvrtc", toolkit, f"{distribution.name} {distribution.version} brings it")
