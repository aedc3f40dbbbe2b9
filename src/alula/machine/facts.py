"""What a machine is: its GPUs, the links between them, its driver, and what hides them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from alula.errors import UsageError
from alula.machine.capability import Capability, Isa
from alula.machine.driver_versions import cuda_of_driver, parse_driver, ptx_isa_of_cuda


@dataclass(frozen=True, slots=True)
class Pcie:
    """A GPU's own link to the host: generation and width, now and at most; 0 is not known.

    An idle GPU lowers its generation; only what it shows under load is its speed.
    """

    generation: int = 0
    width: int = 0
    generation_at_most: int = 0
    width_at_most: int = 0


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. What was not readable is "" or 0."""

    index: int
    name: str = ""
    capability: str = ""
    memory_bytes: int = 0
    memory_used_bytes: int = 0
    bar1_bytes: int = 0
    """As large as the memory where resizable BAR is on."""
    power_watts: float = 0.0
    """The limit that is set."""
    sm_clock_mhz: int = 0
    sm_clock_mhz_at_most: int = 0
    memory_clock_mhz_at_most: int = 0
    mig: str = ""
    """"on" or "off", "" where the GPU has none of it."""
    visible: bool = True
    """Whether CUDA_VISIBLE_DEVICES shows it."""
    processes: int = 0
    """Processes that compute on it now."""
    pci: str = ""
    numa: int = -1
    uuid: str = ""
    pcie: Pcie = Pcie()

    def cc(self) -> Capability | None:
        """Its compute capability, None where it is not known."""
        return Capability.parse(self.capability) if self.capability else None


@dataclass(frozen=True, slots=True)
class Link:
    """What lies between two GPUs."""

    first: int
    second: int
    distance: str = ""
    """As nvidia-smi says it: NV18 (that many NVLinks), PIX, PXB, PHB, NODE, SYS."""
    read: str = ""
    write: str = ""
    atomics: str = ""
    """Status of peer-to-peer access by the driver: "ok", or why not."""


@dataclass(frozen=True, slots=True)
class Driver:
    """NVIDIA's driver; "" where there is none or it cannot be seen."""

    version: str = ""
    cuda: str = ""
    """The CUDA version that it brings."""
    module: str = ""
    """"open" or "closed": the kind of its kernel module."""
    source: str = ""

    def cuda_version(self) -> tuple[int, int] | None:
        """The CUDA version as numbers, from what it says or from its branch."""
        if self.cuda:
            major, _, minor = self.cuda.partition(".")
            return int(major), int(minor or 0)
        with suppress(UsageError):  # vendors of boards and clouds have schemes of their own
            return cuda_of_driver(parse_driver(self.version))
        return None

    def isa(self) -> Isa | None:
        """The newest PTX that it compiles."""
        cuda = self.cuda_version()
        return None if cuda is None else ptx_isa_of_cuda(cuda)


@dataclass(frozen=True, slots=True)
class Platform:
    """What the system around says, and what it keeps from us."""

    system: str = ""
    kernel: str = ""
    libc: str = ""
    container: str = ""
    """docker, podman, lxc, wsl2, or "" for none."""
    iommu: str = ""
    acs: str = ""
    hidden: tuple[str, ...] = ()
    """Facts that are the host's, or that could not be read, and why."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine as it was seen, or as it was asked about."""

    gpus: tuple[Gpu, ...] = ()
    links: tuple[Link, ...] = ()
    driver: Driver = Driver()
    platform: Platform = Platform()
    interconnect: str = ""
    """Of the visible GPUs: "nvlink" where every pair has one, "pcie" where not; "" for one GPU or
    where it is not known."""
    nvswitch: bool | None = None
    """Whether switches join the NVLinks; multicast needs them. None where it is not known."""
    assumed: tuple[str, ...] = ()
    """What was asked about instead of seen."""
    notes: tuple[str, ...] = ()

    def capabilities(self) -> tuple[Capability, ...]:
        """The compute capabilities of the visible GPUs, each once."""
        found = {gpu.cc() for gpu in self.gpus if gpu.visible}
        return tuple(sorted(capability for capability in found if capability is not None))

    def visible_links(self) -> tuple[Link, ...]:
        """The links between the GPUs that CUDA would use."""
        shown = {gpu.index for gpu in self.gpus if gpu.visible}
        return tuple(link for link in self.links if {link.first, link.second} <= shown)

    def visible(self) -> tuple[Gpu, ...]:
        """The GPUs that CUDA would use."""
        return tuple(gpu for gpu in self.gpus if gpu.visible)
