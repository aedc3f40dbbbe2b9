"""A machine that is asked about instead of seen: saved, named, or overridden piece by piece.

Everything in alula that answers for another machine takes the same four options: `--machine`,
`--gpu`, `--driver`, `--links`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from alula.errors import UsageError
from alula.machine.capability import Capability
from alula.machine.driver_versions import cuda_of_driver, parse_driver
from alula.machine.facts import Driver, Gpu, Link, Machine, Platform
from alula.machine.records import from_json
from alula.machine.source import is_file

_MOST_GPUS = 1024
_LARGEST_REPORT = 64 << 20
_BOARD = 8
_GB = 10**9
_GIB = 2**30


class _Model(NamedTuple):
    name: str
    capability: str
    memory_bytes: int
    power_watts: float
    links: str
    """How several of them are joined where they are sold as one machine."""
    switched: bool = False
    """Whether boards of eight have NVSwitch; boards of four are joined without."""


_MODELS = {
    "rtx-pro-6000": _Model(
        "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "12.0", 96 * _GB, 600, "pcie"
    ),
    "rtx-5090": _Model("NVIDIA GeForce RTX 5090", "12.0", 32 * _GIB, 575, "pcie"),
    "rtx-4090": _Model("NVIDIA GeForce RTX 4090", "8.9", 24 * _GIB, 450, "pcie"),
    "rtx-3090": _Model("NVIDIA GeForce RTX 3090", "8.6", 24 * _GIB, 350, "pcie"),
    "gb10": _Model("NVIDIA GB10", "12.1", 128 * _GB, 140, "pcie"),
    "l40s": _Model("NVIDIA L40S", "8.9", 48 * _GB, 350, "pcie"),
    "v100": _Model("Tesla V100-SXM2-32GB", "7.0", 32 * _GIB, 300, "nvlink"),
    "a100": _Model("NVIDIA A100-SXM4-80GB", "8.0", 80 * _GIB, 400, "nvlink", switched=True),
    "h100": _Model("NVIDIA H100 80GB HBM3", "9.0", 80 * _GB, 700, "nvlink", switched=True),
    "h200": _Model("NVIDIA H200", "9.0", 141 * _GB, 700, "nvlink", switched=True),
    "b200": _Model("NVIDIA B200", "10.0", 180 * _GB, 1000, "nvlink", switched=True),
    "b300": _Model("NVIDIA B300", "10.3", 288 * _GB, 1400, "nvlink", switched=True),
}
"""Names, memory and power as NVIDIA's data sheets state them."""

_PRESET = re.compile(r"(\d{1,4})x-([a-z0-9-]+)")
_GPU = re.compile(r"(\d{1,2}\.\d)(?:x(\d{1,4}))?")


@dataclass(frozen=True)
class WhatIf:
    """The four options as they were given."""

    machine: str | None = None
    gpus: Sequence[str] = ()
    driver: str | None = None
    links: str | None = None

    @property
    def given(self) -> bool:
        """Whether any of them was."""
        single = (self.machine, self.driver, self.links)
        return bool(self.gpus) or any(option is not None for option in single)


def resolve(what_if: WhatIf, observe: Callable[[], Machine]) -> Machine:
    """The machine that is asked about; `observe` looks at this one where it is the base.

    Raises UsageError for what is no machine, GPU, driver or kind of link.
    """
    machine = observe() if what_if.machine is None else named(what_if.machine)
    if what_if.gpus:
        machine = _with_gpus(machine, what_if.gpus)
    if what_if.driver is not None:
        machine = _with_driver(machine, what_if.driver)
    if what_if.links is not None:
        machine = _with_links(machine, what_if.links)
    return machine


def named(text: str) -> Machine:
    """A machine by the name of its GPUs, "h100" or "8x-rtx-pro-6000", or from a saved report."""
    if text in _MODELS:
        return _preset(1, text, text)
    if found := _PRESET.fullmatch(text):
        return _preset(int(found[1]), found[2], text)
    if not is_file(Path(text)):
        raise UsageError(
            f"--machine {text!r} is not known",
            "it is neither a file nor a model, nor a count and a model, as in 8x-rtx-pro-6000",
            f"name a report saved by alula doctor --json, or a model: {', '.join(_MODELS)}",
        )
    return _saved(Path(text))


def _preset(count: int, model: str, text: str) -> Machine:
    if model not in _MODELS or not 1 <= count <= _MOST_GPUS:
        raise UsageError(
            f"--machine {text!r} is not known",
            f"{model} is no model that alula knows" if model not in _MODELS else "of that count",
            f"use 1x- to {_MOST_GPUS}x- and one of: {', '.join(_MODELS)}; or --gpu 12.0x8",
        )
    known = _MODELS[model]
    gpus = tuple(
        Gpu(n, known.name, known.capability, known.memory_bytes, power_watts=known.power_watts)
        for n in range(count)
    )
    machine = Machine(gpus=gpus, platform=Platform(system="Linux"), assumed=(text,))
    joined = _joined(machine, known.links)
    return replace(joined, nvswitch=True) if known.switched and count >= _BOARD else joined


def _saved(path: Path) -> Machine:
    """The machine of a report; what it says of its software stays with that report."""
    try:
        if path.stat().st_size > _LARGEST_REPORT:
            raise ValueError(f"it is larger than {_LARGEST_REPORT >> 20} MiB")
        report = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
        machine = report["machine"] if isinstance(report, dict) else None
        return replace(
            _checked(from_json(Machine, machine, "machine")), assumed=(f"report {path.name}",)
        )
    except (OSError, ValueError, KeyError, RecursionError) as error:
        raise UsageError(
            f"--machine {path} is not a report",
            f"{type(error).__name__}: {error}" if isinstance(error, KeyError) else str(error),
            "save one with alula doctor --json > report.json",
        ) from error


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no number of JSON")


def _checked(machine: Machine) -> Machine:
    """A machine whose facts fit each other; ValueError otherwise."""
    if len(machine.gpus) > _MOST_GPUS:
        raise ValueError(f"it has more than {_MOST_GPUS} GPUs")
    numbers = {gpu.index for gpu in machine.gpus}
    if len(numbers) < len(machine.gpus):
        raise ValueError("two of its GPUs have one index")
    if any(not {link.first, link.second} <= numbers for link in machine.links):
        raise ValueError("one of its links leads to a GPU that it has not")
    if machine.interconnect not in ("", "pcie", "nvlink"):
        raise ValueError(f"machine.interconnect is {machine.interconnect!r}")
    try:
        machine.capabilities()
        machine.driver.isa()
    except UsageError as error:
        raise ValueError(error.what) from error
    return machine


def _with_gpus(machine: Machine, written: Sequence[str]) -> Machine:
    gpus: list[Gpu] = []
    for text in written:
        found = _GPU.fullmatch(text.strip())
        count = int(found[2] or 1) if found else 0
        if found is None or not 1 <= count <= _MOST_GPUS:
            raise UsageError(
                f"--gpu {text!r} is not understood",
                "it is a compute capability, and a count behind an x",
                "write for example --gpu 12.0 or --gpu 12.0x8",
            )
        capability = str(Capability.parse(found[1]))
        gpus += [Gpu(len(gpus) + n, capability=capability) for n in range(count)]
    assumed = f"GPUs {', '.join(written)}"
    return replace(
        machine,
        gpus=tuple(gpus),
        links=(),
        interconnect="",
        nvswitch=None,
        notes=(),
        assumed=(*machine.assumed, assumed),
    )


def _with_driver(machine: Machine, version: str) -> Machine:
    cuda = cuda_of_driver(parse_driver(version))
    driver = Driver(version, f"{cuda[0]}.{cuda[1]}" if cuda else "", source="--driver")
    return replace(machine, driver=driver, assumed=(*machine.assumed, f"driver {version}"))


def _with_links(machine: Machine, links: str) -> Machine:
    if links not in ("pcie", "nvlink"):
        raise UsageError(
            f"--links {links!r} is not known",
            "GPUs are joined in one of two ways",
            "pcie or nvlink",
        )
    return replace(_joined(machine, links), assumed=(*machine.assumed, f"links {links}"))


def _joined(machine: Machine, links: str) -> Machine:
    """All GPUs joined in one way: by NVLink, of which it is not said whether it has switches."""
    distance = "NV" if links == "nvlink" else ""
    pairs = combinations([gpu.index for gpu in machine.gpus], 2)
    several = len(machine.gpus) > 1
    return replace(
        machine,
        links=tuple(Link(first, second, distance) for first, second in pairs),
        interconnect=links if several else "",
        nvswitch=False if several and links == "pcie" else machine.nvswitch or None,
    )
