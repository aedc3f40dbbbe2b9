"""This machine as NVML and the kernel's files tell it, both made up."""

from __future__ import annotations

import platform
import struct
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from alula.machine import observe as observing
from alula.machine.facts import Machine, Pcie
from alula.machine.nvml import Nvml
from alula.machine.observe import machine_of
from alula.machine.platform_facts import SystemFiles

_UUIDS = ("GPU-aaaa1111-0000-0000-0000-000000000000", "GPU-bbbb2222-0000-0000-0000-000000000000")


class NvmlError(Exception):
    """What the library raises."""


def refuse(*_: int) -> int:
    raise NvmlError("not supported")


def fake_nvml(capabilities: tuple[tuple[int, int], ...], nvlinks: int) -> SimpleNamespace:
    """GPUs that answer some questions; what is not defined an old driver does not know."""
    of_nvlink = 2

    def p2p(_here: int, _there: int, kind: int) -> int:
        if kind == of_nvlink:
            return 0 if nvlinks else 5
        return 0 if kind < of_nvlink else 1

    return SimpleNamespace(
        NVMLError=NvmlError,
        nvmlSystemGetDriverVersion=lambda: "590.48.01",
        nvmlSystemGetCudaDriverVersion_v2=lambda: 13010,
        nvmlDeviceGetCount=lambda: len(capabilities),
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda gpu: f"GPU of {capabilities[gpu]}".encode(),
        nvmlDeviceGetCudaComputeCapability=lambda gpu: capabilities[gpu],
        nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(total=96 << 30, used=3 << 30),
        nvmlDeviceGetUUID=lambda gpu: _UUIDS[gpu],
        nvmlDeviceGetPciInfo=lambda gpu: SimpleNamespace(busId=f"00000000:{gpu + 1:02X}:00.0"),
        nvmlDeviceGetPowerManagementLimit=refuse,
        nvmlDeviceGetNvLinkState=lambda _, link: int(link < nvlinks),
        nvmlDeviceGetNvLinkRemoteDeviceType=lambda *_: 2,
        nvmlDeviceGetP2PStatus=p2p,
        nvmlDeviceGetTopologyCommonAncestor=lambda *_: 30,
    )


def seen(
    root: Path,
    capabilities: tuple[tuple[int, int], ...] = ((12, 0), (12, 0)),
    nvlinks: int = 0,
    environ: dict[str, str] | None = None,
) -> Machine:
    return machine_of(Nvml(fake_nvml(capabilities, nvlinks)), "", SystemFiles(root), environ or {})


def put(root: Path, path: str, content: str | bytes) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(content.encode() if isinstance(content, str) else content)


def test_gpus_driver_and_links_over_pcie(tmp_path: Path) -> None:
    machine = seen(tmp_path)
    assert [gpu.capability for gpu in machine.gpus] == ["12.0", "12.0"]
    assert machine.gpus[0].name == "GPU of (12, 0)"
    assert machine.gpus[0].power_watts == 0
    assert machine.gpus[0].memory_used_bytes == 3 << 30
    assert (machine.driver.version, machine.driver.cuda) == ("590.48.01", "13.1")
    (link,) = machine.links
    assert (link.distance, link.read, link.atomics) == ("PHB", "ok", "chipset")
    assert (machine.interconnect, machine.nvswitch) == ("pcie", False)


def test_nvlinks_are_counted_and_switches_seen(tmp_path: Path) -> None:
    machine = seen(tmp_path, nvlinks=18)
    assert machine.links[0].distance == "NV18"
    assert (machine.interconnect, machine.nvswitch) == ("nvlink", True)


def test_links_of_hidden_gpus_do_not_count(tmp_path: Path) -> None:
    fake = fake_nvml(((9, 0), (9, 0)), 0)
    fake.nvmlDeviceGetCount = lambda: 3
    fake.nvmlDeviceGetCudaComputeCapability = lambda _: (9, 0)
    fake.nvmlDeviceGetName = lambda _: "H100 NVL"
    fake.nvmlDeviceGetUUID = str
    fake.nvmlDeviceGetP2PStatus = lambda one, other, _: 0 if one + other == 1 else 5
    for chosen, joined in (("0,1", "nvlink"), ("0,1,2", "pcie"), ("1,2", "pcie")):
        environ = {"CUDA_VISIBLE_DEVICES": chosen}
        machine = machine_of(Nvml(fake), "", SystemFiles(tmp_path), environ)
        assert machine.interconnect == joined


def test_a_library_that_does_not_answer_is_waited_for_no_longer_than_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    monkeypatch.setattr(observing, "open_nvml", lambda: (None, str(released.wait(30))))
    start = time.monotonic()
    machine = observing.observe(0.2, SystemFiles(tmp_path))
    released.set()
    assert time.monotonic() - start < 5
    assert "NVML did not answer within 0.2 s" in machine.notes[0]


def test_a_library_that_breaks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise AttributeError("nvmlInit")

    monkeypatch.setattr(observing, "open_nvml", broken)
    machine = observing.observe(5, SystemFiles(tmp_path))
    assert "AttributeError: nvmlInit" in machine.notes[0]


@pytest.mark.parametrize(
    ("chosen", "shown"),
    [
        ("0", [0]),
        ("1,0", [0, 1]),
        ("", []),
        ("-1", []),
        ("1,9,0", [1]),
        ("GPU-bbbb2222", [1]),
        ("MIG-GPU-aaaa1111-0000-0000-0000-000000000000/1/0", [0]),
    ],
)
def test_cuda_visible_devices_is_kept(tmp_path: Path, chosen: str, shown: list[int]) -> None:
    machine = seen(tmp_path, environ={"CUDA_VISIBLE_DEVICES": chosen})
    assert [gpu.index for gpu in machine.visible()] == shown
    assert f"shows {len(shown)} of 2" in machine.notes[0]


def test_a_mixed_machine_has_two_capabilities_and_a_warning_on_its_order(tmp_path: Path) -> None:
    machine = seen(tmp_path, ((12, 0), (9, 0)), environ={"CUDA_VISIBLE_DEVICES": "0,1"})
    assert [str(each) for each in machine.capabilities()] == ["9.0", "12.0"]
    assert "fastest first" in machine.notes[1]


def test_pcie_links_and_numa_nodes_come_from_the_kernel(tmp_path: Path) -> None:
    folder = "sys/bus/pci/devices/0000:01:00.0"
    put(tmp_path, f"{folder}/current_link_speed", "16.0 GT/s PCIe\n")
    put(tmp_path, f"{folder}/current_link_width", "8\n")
    put(tmp_path, f"{folder}/max_link_speed", "32.0 GT/s PCIe\n")
    put(tmp_path, f"{folder}/max_link_width", "16\n")
    put(tmp_path, f"{folder}/numa_node", "1\n")
    first, second = seen(tmp_path).gpus
    assert (first.pcie, first.numa) == (Pcie(4, 8, 5, 16), 1)
    assert (second.pcie, second.numa) == (Pcie(), -1)


def config_space(control: int) -> bytes:
    """An extended configuration space with one ACS capability behind another one."""
    config = bytearray(4096)
    struct.pack_into("<I", config, 256, 0x1 | 0x1 << 16 | 0x140 << 20)
    struct.pack_into("<IHH", config, 0x140, 0xD | 0x1 << 16, 0x7F, control)
    return bytes(config)


@pytest.mark.parametrize(("control", "said"), [(0x1D, "redirects at 0000:00:01.1"), (0, "off")])
def test_acs_of_the_bridges_above(tmp_path: Path, control: int, said: str) -> None:
    bridge = tmp_path / "sys/devices/pci0000:00/0000:00:01.1"
    for number in (1, 2):
        (bridge / f"0000:0{number}:00.0").mkdir(parents=True)
        device = tmp_path / f"sys/bus/pci/devices/0000:0{number}:00.0"
        device.parent.mkdir(parents=True, exist_ok=True)
        device.symlink_to(bridge / f"0000:0{number}:00.0")
    (bridge / "config").write_bytes(config_space(control))
    assert seen(tmp_path).platform.acs == said


def test_acs_that_only_root_reads_is_said_to_be_hidden(tmp_path: Path) -> None:
    assert "only root" in seen(tmp_path).platform.hidden[-1]


@pytest.mark.parametrize(
    ("path", "content", "container"),
    [
        (".dockerenv", "", "docker"),
        ("run/.containerenv", "", "podman"),
        ("proc/1/environ", "PATH=/bin\0container=lxc\0", "lxc"),
        ("proc/version", "Linux version 5.15.0-microsoft-standard-WSL2", "wsl2"),
        ("proc/1/cgroup", "0::/init.scope", ""),
    ],
)
def test_containers_say_what_is_the_hosts(
    tmp_path: Path, path: str, content: str, container: str
) -> None:
    put(tmp_path, path, content)
    found = seen(tmp_path).platform
    assert found.container == container
    assert bool(found.hidden[:-1]) == bool(container)


@pytest.mark.parametrize(("system", "count"), [("Linux", 0), ("Windows", 1), ("Darwin", 1)])
def test_other_systems_say_what_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str, count: int
) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    found = machine_of(None, "NVML: none", SystemFiles(tmp_path), {}).platform
    assert found.system == system
    assert sum("on Linux alone" in text for text in found.hidden) == count


def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    machine = machine_of(None, "NVML: library not found", SystemFiles(tmp_path), {})
    assert machine.gpus == ()
    assert machine.notes == (
        "no GPU was seen and no NVIDIA driver is loaded (NVML: library not found): "
        "software facts only",
    )


def test_a_loaded_driver_is_read_without_nvml(tmp_path: Path) -> None:
    text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  590.48.01  Release Build\n"
    put(tmp_path, "proc/driver/nvidia/version", text)
    machine = machine_of(None, "NVML: denied", SystemFiles(tmp_path), {})
    assert (machine.driver.version, machine.driver.module) == ("590.48.01", "open")
    assert machine.driver.isa() == (9, 1)
    assert "driver 590.48.01 is loaded" in machine.notes[0]
