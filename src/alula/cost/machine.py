"""Machines: GPUs, the links between them, and what is measured about them."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from alula.cost.allreduce import AllReduce, FlatAllReduce, LinkAllReduce, TableAllReduce
from alula.cost.step import Constants, Speed
from alula.cost.units import parse_time
from alula.errors import UsageError


@dataclass(frozen=True)
class Device:
    """A GPU: `devices.toml` has them, with sources."""

    key: str
    name: str
    reported: tuple[str, ...]
    """What the driver calls it."""
    capability: str
    memory_bytes: float
    bandwidth_bytes_s: float
    flops_s: float
    link: str


@dataclass(frozen=True)
class Machine:
    """So many of one GPU, joined by one kind of link."""

    device: Device
    count: int
    link: str

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.count} × {self.device.name}"

    @property
    def name(self) -> str:
        """As it is typed."""
        return f"{self.count}x-{self.device.key}"


class HostTime(NamedTuple):
    """What the host adds to a round, in seconds, as observed."""

    each_s: float
    engine: str
    source: str


class KnownDrafter(NamedTuple):
    """Accepted lengths that public drafters reach."""

    name: str
    tau_low: float
    tau_high: float
    source: str


@cache
def _data(name: str) -> dict[str, Any]:
    return tomllib.loads((files("alula.cost") / "data" / f"{name}.toml").read_text("utf-8"))


def devices() -> dict[str, Device]:
    """All GPUs by key."""
    return {
        key: Device(
            key=key,
            name=entry["name"],
            reported=tuple(entry["reported"]),
            capability=entry["capability"],
            memory_bytes=entry["memory_gb"] * 1e9,
            bandwidth_bytes_s=entry["bandwidth_gb_s"] * 1e9,
            flops_s=entry["bf16_tflops"] * 1e12,
            link=entry["link"],
        )
        for key, entry in _data("devices").items()
    }


def links() -> list[str]:
    """All links by key."""
    return list(_data("links"))


def constants() -> Constants:
    """Those of `constants.toml`."""
    values = {name: float(entry["value"]) for name, entry in _data("constants").items()}
    return Constants(
        bandwidth_share=values["bandwidth_share"],
        compute_share=values["compute_share"],
        launch_s=values["launch_us"] * 1e-6,
        fixed_s=values["fixed_us"] * 1e-6,
    )


def host_time(machine: Machine, ranks: int) -> HostTime | None:
    """What was observed on such a machine, if anything was."""
    for entry in _data("observed")["host"]:
        if entry["device"] == machine.device.key and entry["ranks"] == ranks:
            return HostTime(entry["ms"] * 1e-3, entry["engine"], entry["source"])
    return None


def known_drafter(model: str, depth: int) -> KnownDrafter | None:
    """What public drafters of a named model reach with drafts that deep, if that is known."""
    for entry in _data("observed")["drafter"]:
        if model in entry["models"] and entry["depth"] <= depth and entry["tau_high"] <= depth + 1:
            return KnownDrafter(entry["name"], entry["tau_low"], entry["tau_high"], entry["source"])
    return None


def tables(machine: Machine, ranks: int) -> dict[str, TableAllReduce]:
    """Measured all-reduces of such a machine, the default one first."""
    if machine.link != machine.device.link:
        return {}
    found = [
        (not entry.get("default", False), name, entry)
        for name, entry in _data("allreduce").items()
        if entry["device"] == machine.device.key and entry["ranks"] == ranks
    ]
    return {name: _table(name, entry) for _, name, entry in sorted(found, key=lambda f: f[0])}


def remedy_tables(machine: Machine, ranks: int) -> dict[str, tuple[TableAllReduce, str]]:
    """Measured all-reduces that one may wish for, with what having them takes."""
    return {
        name: (table, _data("allreduce")[name]["opens"])
        for name, table in tables(machine, ranks).items()
        if not _data("allreduce")[name].get("broken", False)
    }


def _table(name: str, entry: dict[str, Any]) -> TableAllReduce:
    points = tuple((kib * 1024.0, us * 1e-6) for kib, us in entry["points_kib_us"])
    return TableAllReduce(points, name, entry["source"])


def link_allreduce(machine: Machine, ranks: int) -> LinkAllReduce:
    """The least that the link allows."""
    entry = _data("links")[machine.link]
    return LinkAllReduce(
        ranks=ranks,
        latency_s=entry["latency_us"] * 1e-6,
        bandwidth_bytes_s=entry["bandwidth_gb_s"] * 1e9,
        name=f"least of {entry['name']}",
        source=entry["source"],
    )


def allreduce_named(machine: Machine, ranks: int, asked: str | None) -> AllReduce:
    """What `--allreduce` names: a time with its unit, a table's name, `table` or `link`.

    Without it the machine's default table, else the least of its link. Raises UsageError for
    anything else.
    """
    measured = tables(machine, ranks)
    if asked is None:
        return next(iter(measured.values()), None) or link_allreduce(machine, ranks)
    if asked == "link":
        return link_allreduce(machine, ranks)
    if asked == "table" and measured:
        return next(iter(measured.values()))
    if asked in measured:
        return measured[asked]
    if asked[:1].isdigit():
        each_s = parse_time(asked, "--allreduce")
        return FlatAllReduce(each_s, f"{asked} flat", "--allreduce")
    there = ", ".join(measured) or "none"
    raise UsageError(
        f"--allreduce {asked!r} is not understood",
        f"measured tables for {ranks} ranks of {machine.title}: {there}",
        "give a time such as 60us, link, or one of these tables",
    )


def speed(machine: Machine, allreduce: AllReduce, own: Constants | None = None) -> Speed:
    """What a machine does in a second."""
    return Speed(
        bandwidth_bytes_s=machine.device.bandwidth_bytes_s,
        flops_s=machine.device.flops_s,
        constants=own or constants(),
        allreduce=allreduce,
        link_bytes_s=_data("links")[machine.link]["alone_gb_s"] * 1e9,
    )
