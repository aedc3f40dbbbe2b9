"""GPUs and their links as NVIDIA's management library tells them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import combinations
from typing import Any

from alula.machine.facts import Driver, Gpu, Link, Pcie

_MOST_NVLINKS = 36
_DISTANCES = {0: "INT", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_SWITCH = 2  # nvmlIntNvLinkDeviceType_t: a GPU, an IBM NPU, a switch; 255 is unknown
_P2P = ("ok", "chipset", "gpu", "no topology", "disabled by settings", "not supported", "unknown")
"""nvmlGpuP2PStatus_t, in its order: what stands in the way."""
_READ, _WRITE, _NVLINK, _ATOMICS = range(4)


class Nvml:
    """One session with the library; every question may go unanswered."""

    def __init__(self, library: Any) -> None:
        self._nvml = library

    def ask(self, name: str, otherwise: Any, *arguments: Any) -> Any:
        """What a function of the library returns, or `otherwise` where it does not answer.

        Drivers answer a growing number of questions, and virtual GPUs only some.
        """
        function = getattr(self._nvml, name, None)
        if function is None:
            return otherwise
        try:
            return function(*arguments)
        except (self._nvml.NVMLError, OSError, ValueError):
            return otherwise

    def driver(self) -> Driver:
        """The driver that the library belongs to."""
        cuda = self.ask("nvmlSystemGetCudaDriverVersion_v2", 0)
        return Driver(
            version=_text(self.ask("nvmlSystemGetDriverVersion", "")),
            cuda=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "",
            source="NVML",
        )

    def gpus(self) -> tuple[Gpu, ...]:
        """Every GPU that the library sees; CUDA_VISIBLE_DEVICES does not hide any from it."""
        return tuple(self._gpu(index, handle) for index, handle in self._handles())

    def links(self) -> tuple[Link, ...]:
        """What lies between each two GPUs."""
        return tuple(self._link(*pair) for pair in combinations(self._handles(), 2))

    def nvswitch(self) -> bool | None:
        """Whether an NVLink of the first GPU ends at a switch."""
        for _, handle in self._handles():
            ends = [
                self.ask("nvmlDeviceGetNvLinkRemoteDeviceType", -1, handle, link)
                for link in self._nvlinks(handle)
            ]
            known = [end for end in ends if 0 <= end <= _SWITCH]
            return (_SWITCH in known) if known or not ends else None
        return None

    def _handles(self) -> list[tuple[int, Any]]:
        found = []
        for index in range(self.ask("nvmlDeviceGetCount", 0)):
            handle = self.ask("nvmlDeviceGetHandleByIndex", None, index)
            if handle is not None:
                found.append((index, handle))
        return found

    def _gpu(self, index: int, handle: Any) -> Gpu:
        major, minor = self.ask("nvmlDeviceGetCudaComputeCapability", (0, 0), handle)
        memory = self.ask("nvmlDeviceGetMemoryInfo", None, handle)
        bar1 = self.ask("nvmlDeviceGetBAR1MemoryInfo", None, handle)
        mig = self.ask("nvmlDeviceGetMigMode", None, handle)
        pci = self.ask("nvmlDeviceGetPciInfo", None, handle)
        clock = self._clocks(handle)
        return Gpu(
            index=index,
            name=_text(self.ask("nvmlDeviceGetName", "", handle)),
            capability=f"{major}.{minor}" if major else "",
            memory_bytes=memory.total if memory else 0,
            memory_used_bytes=memory.used if memory else 0,
            bar1_bytes=bar1.bar1Total if bar1 else 0,
            power_watts=self.ask("nvmlDeviceGetPowerManagementLimit", 0, handle) / 1000,
            sm_clock_mhz=clock[0],
            sm_clock_mhz_at_most=clock[1],
            memory_clock_mhz_at_most=clock[2],
            mig="" if mig is None else "on" if mig[0] else "off",
            processes=len(self.ask("nvmlDeviceGetComputeRunningProcesses", (), handle)),
            pci=_text(pci.busId).lower() if pci else "",
            uuid=_text(self.ask("nvmlDeviceGetUUID", "", handle)),
            pcie=self._pcie(handle),
        )

    def _clocks(self, handle: Any) -> tuple[int, int, int]:
        sm, memory = 1, 2  # nvmlClockType_t
        return (
            self.ask("nvmlDeviceGetClockInfo", 0, handle, sm),
            self.ask("nvmlDeviceGetMaxClockInfo", 0, handle, sm),
            self.ask("nvmlDeviceGetMaxClockInfo", 0, handle, memory),
        )

    def _pcie(self, handle: Any) -> Pcie:
        return Pcie(
            generation=self.ask("nvmlDeviceGetCurrPcieLinkGeneration", 0, handle),
            width=self.ask("nvmlDeviceGetCurrPcieLinkWidth", 0, handle),
            generation_at_most=self.ask("nvmlDeviceGetMaxPcieLinkGeneration", 0, handle),
            width_at_most=self.ask("nvmlDeviceGetMaxPcieLinkWidth", 0, handle),
        )

    def _nvlinks(self, handle: Any) -> Iterator[int]:
        for link in range(_MOST_NVLINKS):
            if self.ask("nvmlDeviceGetNvLinkState", 0, handle, link):
                yield link

    def _link(self, one: tuple[int, Any], other: tuple[int, Any]) -> Link:
        (first, here), (second, there) = one, other
        status = [
            _p2p(self.ask("nvmlDeviceGetP2PStatus", -1, here, there, kind)) for kind in range(4)
        ]
        if status[_NVLINK] == "ok":
            distance = f"NV{self._nvlinks_between(here, there)}"
        else:
            level = self.ask("nvmlDeviceGetTopologyCommonAncestor", -1, here, there)
            distance = _DISTANCES.get(level, "")
        return Link(first, second, distance, status[_READ], status[_WRITE], status[_ATOMICS])

    def _nvlinks_between(self, here: Any, there: Any) -> int:
        """NVLinks that lead from one GPU to another, directly or over switches."""
        active = list(self._nvlinks(here))
        ends = [self.ask("nvmlDeviceGetNvLinkRemotePciInfo", None, here, link) for link in active]
        target = self.ask("nvmlDeviceGetPciInfo", None, there)
        direct = [end for end in ends if end and target and end.busId == target.busId]
        return len(direct) or len(active)


def open_nvml() -> tuple[Nvml | None, str]:
    """A session, or None and why there is none."""
    try:
        import pynvml
    except ImportError:
        return None, "the package nvidia-ml-py is not installed"
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError, OSError) as error:
        return None, f"NVML: {error}"
    return Nvml(pynvml), ""


def close_nvml() -> None:
    """End the session of `open_nvml`."""
    import pynvml

    with suppress(pynvml.NVMLError):
        pynvml.nvmlShutdown()


def _p2p(status: int) -> str:
    return _P2P[status] if 0 <= status < len(_P2P) else ""


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
