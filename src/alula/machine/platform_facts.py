"""The system around the GPUs, from /proc and /sys, and what a container hides of it."""

from __future__ import annotations

import platform
import re
import struct
from pathlib import Path

from alula.machine.facts import Driver, Gpu, Pcie, Platform
from alula.machine.source import exists, is_folder

_GENERATION_OF_SPEED = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}
"""Gigatransfers a second of each generation, as the kernel writes them."""
_ACS_CAPABILITY = 0x000D
_ACS_REDIRECTS = 0x0C
"""Request and completion redirect: peer traffic is sent up to the root."""
_OF_THE_HOST = (
    "driver version, kernel, PCIe links and NUMA nodes are the host's",
    "IOMMU and ACS settings are the host's and can only be changed there",
)
_HIDDEN_BY_WSL = (
    "PCIe links, NVLink and topology are hidden by WSL2",
    "the driver is that of Windows; ACS, IOMMU and BIOS settings are not visible",
)


_NOT_OF_LINUX = (
    "PCIe links, topology and what is inside .dll, .pyd and .dylib files: read on Linux alone",
)


class SystemFiles:
    """The files under /proc and /sys, or a copy of them elsewhere for tests."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root

    def text(self, path: str) -> str:
        """A file's text without the line end, "" where it cannot be read."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return ""

    def exists(self, path: str) -> bool:
        """Whether there is such a file."""
        return exists(self.root / path)


def read_platform(files: SystemFiles, gpus: tuple[Gpu, ...]) -> Platform:
    """System, container, IOMMU and ACS."""
    container = _container(files)
    acs, unread = _acs(files, gpus)
    hidden = _HIDDEN_BY_WSL if container == "wsl2" else _OF_THE_HOST if container else ()
    system = platform.system()
    elsewhere = () if system == "Linux" else _NOT_OF_LINUX
    return Platform(
        system=system,
        kernel=platform.release(),
        libc=" ".join(platform.libc_ver()).strip(),
        container=container,
        iommu=_iommu(files),
        acs=acs,
        hidden=(*hidden, *elsewhere, *unread),
    )


def driver_of_kernel(files: SystemFiles) -> Driver:
    """The driver as its kernel module tells it; empty where none is loaded."""
    text = files.text("proc/driver/nvidia/version")
    version = files.text("sys/module/nvidia/version")
    if found := re.search(r"Kernel Module.*?(\d{3}\.\d+(?:\.\d+)?)", text):
        version = version or found[1]
    if not version:
        return Driver()
    return Driver(version, module=_module(text), source="the kernel module")


def pcie_of(files: SystemFiles, pci: str) -> tuple[Pcie, int]:
    """A GPU's link and NUMA node by its bus id; zeros and -1 where they cannot be read."""
    folder = f"sys/bus/pci/devices/{bus_id(pci)}"
    link = Pcie(
        _generation(files.text(f"{folder}/current_link_speed")),
        _number(files.text(f"{folder}/current_link_width")),
        _generation(files.text(f"{folder}/max_link_speed")),
        _number(files.text(f"{folder}/max_link_width")),
    )
    return link, _number(files.text(f"{folder}/numa_node"), otherwise=-1)


def bus_id(pci: str) -> str:
    """The kernel's spelling of a bus id, of which NVML writes the domain with 8 digits."""
    domain, _, rest = pci.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def _module(text: str) -> str:
    if not text:
        return ""
    return "open" if "Open Kernel Module" in text else "closed"


def _container(files: SystemFiles) -> str:
    if "microsoft" in files.text("proc/version").lower():
        return "wsl2"
    if files.exists(".dockerenv"):
        return "docker"
    if files.exists("run/.containerenv"):
        return "podman"
    init = files.text("proc/1/environ")
    cgroup = files.text("proc/1/cgroup")
    if "container=lxc" in init or files.exists("dev/.lxc") or "/lxc" in cgroup:
        return "lxc"
    if "kubepods" in cgroup or "docker" in cgroup:
        return "docker"
    return ""


def _iommu(files: SystemFiles) -> str:
    asked = re.findall(r"\b(?:amd_|intel_)?iommu=\S+", files.text("proc/cmdline"))
    classes = files.root / "sys/class/iommu"
    active = "on" if any(classes.glob("*")) else ""
    if not active and is_folder(classes):
        active = "off"
    return " ".join([active, *(f"({word})" for word in asked)]).strip()


def _acs(files: SystemFiles, gpus: tuple[Gpu, ...]) -> tuple[str, tuple[str, ...]]:
    """Whether a bridge above a GPU sends peer traffic up, and what could not be read.

    Only root reads the extended configuration space.
    """
    if not gpus:
        return "", ()
    bridges = {bridge for gpu in gpus if gpu.pci for bridge in _bridges_above(files, gpu.pci)}
    read = {bridge: _redirects(bridge) for bridge in bridges}
    if not read or None in read.values():
        return "", ("ACS of the PCIe bridges: only root can read it",)
    redirecting = sorted(bridge.name for bridge, on in read.items() if on)
    return (f"redirects at {', '.join(redirecting)}" if redirecting else "off"), ()


def _bridges_above(files: SystemFiles, pci: str) -> list[Path]:
    device = (files.root / "sys/bus/pci/devices" / bus_id(pci)).resolve()
    return [
        parent for parent in device.parents if re.fullmatch(r"\w{4}:\w\w:\w\w\.\w", parent.name)
    ]


def _redirects(bridge: Path) -> bool | None:
    """Whether the ACS control word of a bridge redirects; None where it cannot be read."""
    try:
        config = (bridge / "config").read_bytes()
    except OSError:
        return None
    if len(config) <= 256:
        return None
    offset = 256
    for _ in range(64):  # the list is linked, and may be damaged
        if offset + 8 > len(config):
            break
        header = struct.unpack_from("<I", config, offset)[0]
        if header & 0xFFFF == _ACS_CAPABILITY:
            return bool(struct.unpack_from("<H", config, offset + 6)[0] & _ACS_REDIRECTS)
        offset = header >> 20
        if offset < 256:
            break
    return False


def _generation(speed: str) -> int:
    return _GENERATION_OF_SPEED.get(speed.partition(" ")[0], 0)


def _number(text: str, otherwise: int = 0) -> int:
    try:
        return int(text)
    except ValueError:
        return otherwise
