"""Which CUDA toolkit compiles kernels at run time: a folder, wheels, or what the owner installs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from alula.machine.driver_versions import ptx_isa_of_cuda
from alula.machine.facts import Machine
from alula.machine.toolkits import Toolkit as Found
from alula.stack.catalog import Catalog
from alula.stack.lock import Toolkit
from alula.stack.picture import Picture
from alula.stack.rules import rules

_FLASHINFER_FLOOR = (12, 9)
_FIRST_FOR = {100: (12, 8), 103: (12, 9), 110: (13, 0), 120: (12, 8), 121: (12, 9)}
"""First toolkit that compiles for an architecture. Source: release notes of CUDA 12.8 to 13.0."""

Release = tuple[int, int]


@dataclass(frozen=True)
class Choice:
    """The toolkit, the wheels that bring it, and what was not taken."""

    toolkit: Toolkit
    wanted: tuple[str, ...] = ()
    """Requirements that bring it, where it comes in wheels."""
    rejected: tuple[tuple[str, str], ...] = ()
    """Other releases, and why not."""


def release_of(cuda: str) -> Release | None:
    """The CUDA release that a label names: cu130 is 13.0, cu128 is 12.8."""
    digits = cuda.removeprefix("cu")
    return (int(digits[:2]), int(digits[2:])) if len(digits) >= 3 and digits.isdigit() else None


def choose_toolkit(
    picture: Picture,
    cuda: str,
    machine: Machine,
    catalog: Catalog,
    folders: Sequence[Found],
    asked: Release | None = None,
    refused: str = "",
) -> Choice:
    """The toolkit for a set.

    `asked` is a release that somebody wants, `refused` why its wheels do not go into the set.
    """
    if not any(name in rules().compiling for name in picture.chosen):
        return Choice(Toolkit(kind="none", reason="nothing in the set compiles kernels"))
    release = asked or release_of(cuda) or runtime_release(picture)
    if release is None:
        return Choice(Toolkit(kind="none", reason="the CUDA of the set is not known"))
    release = max(release, _floor(machine, picture, release))
    version = f"{release[0]}.{release[1]}"
    reason = _why(release, picture, machine)
    rejected = tuple(_newer(release, picture, machine, catalog))
    for folder in folders:
        if folder.release() == release:
            words = f"it lies at {folder.path}; {reason}"
            toolkit = Toolkit(kind="folder", version=version, path=folder.path, reason=words)
            return Choice(toolkit, rejected=rejected)
    if not refused and (wanted := _wheels(release, catalog)):
        words = f"in wheels of the environment's own, nothing of the system is touched; {reason}"
        return Choice(Toolkit(kind="wheels", version=version, reason=words), wanted, rejected)
    # NVIDIA's installer of that name, into a folder of one's own and without the driver.
    command = f"sh cuda_{version}_linux.run --silent --toolkit --toolkitpath=$HOME/cuda-{version}"
    toolkit = Toolkit(
        kind="owner",
        version=version,
        command=command,
        reason=f"{refused or 'no index that was read has its wheels'}; {reason}",
    )
    return Choice(toolkit, rejected=rejected)


def runtime_release(picture: Picture) -> Release | None:
    """The release of the runtime library that the set brings."""
    for name in ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12", "nvidia-cuda-nvrtc"):
        if each := picture.of(name):
            return each.file.version.major, each.file.version.minor
    return None


def _floor(machine: Machine, picture: Picture, release: Release) -> Release:
    """The oldest release of the same major version that compiles for every GPU."""
    floors = [_FIRST_FOR.get(gpu.arch, (0, 0)) for gpu in machine.capabilities()]
    if _flashinfer_asks(picture, machine):
        floors.append(_FLASHINFER_FLOOR)
    usable = [floor for floor in floors if floor[0] == release[0]]
    return max(usable, default=release)


def _flashinfer_asks(picture: Picture, machine: Machine) -> bool:
    """Whether its source refuses an older nvcc for 12.x, as it does from 0.6.7 on."""
    each = picture.of("flashinfer-python")
    texts = each.contents.texts if each and each.contents else ()
    asks = any(text.name == "nvcc-12.9" for text in texts)
    return asks and any(gpu.major == 12 for gpu in machine.capabilities())


def _why(release: Release, picture: Picture, machine: Machine) -> str:
    parts = [f"{release[0]}.{release[1]} is the release of the set's own libraries"]
    runtime = runtime_release(picture)
    if runtime and runtime != release:
        parts = [f"the set's libraries are of {runtime[0]}.{runtime[1]}"]
    for gpu in machine.capabilities():
        first = _FIRST_FOR.get(gpu.arch)
        if first:
            parts.append(f"{gpu} needs {first[0]}.{first[1]} or newer")
    if _flashinfer_asks(picture, machine):
        parts.append("FlashInfer asks 12.9 or newer for 12.x")
    return "; ".join(parts)


def _newer(
    release: Release, picture: Picture, machine: Machine, catalog: Catalog
) -> Sequence[tuple[str, str]]:
    """Why the next releases were not taken."""
    found = []
    driver = machine.driver.isa()
    for other in sorted(_releases(catalog, release[0])):
        if other <= release:
            continue
        why = [f"no binary of the set asks for it: they name libcudart.so.{release[0]} alone"]
        runtime = runtime_release(picture)
        if runtime and runtime < other:
            why.append(f"its headers would be used with libraries of {runtime[0]}.{runtime[1]}")
        isa = ptx_isa_of_cuda(other)
        if isa and driver and isa > driver:
            why.append(f"its PTX {isa[0]}.{isa[1]} is newer than the driver's")
        found.append((f"{other[0]}.{other[1]}", "; ".join(why)))
    return found


def _names(major: int) -> tuple[str, str, str]:
    suffix = "" if major >= 13 else f"-cu{major}"
    return f"nvidia-cuda-nvcc{suffix}", f"nvidia-cuda-runtime{suffix}", f"nvidia-cuda-cccl{suffix}"


def _releases(catalog: Catalog, major: int) -> set[Release]:
    found: set[Release] = set()
    for name in _names(major)[:2]:
        listing = catalog.bound(name, "")
        for file in catalog.offered(listing).values() if listing else ():
            if file.version.major == major:
                found.add((file.version.major, file.version.minor))
    return found


def _wheels(release: Release, catalog: Catalog) -> tuple[str, ...]:
    """Requirements of the compiler and its headers, where an index has them for this release."""
    found = []
    for name in _names(release[0]):
        listing = catalog.bound(name, "")
        offered = catalog.offered(listing).values() if listing else ()
        if any((file.version.major, file.version.minor) == release for file in offered):
            found.append(f"{name}=={release[0]}.{release[1]}.*")
    return tuple(found) if found and "nvcc" in found[0] else ()
