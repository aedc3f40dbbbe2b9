"""A gate: one condition that stands between a feature and this machine."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Layer(StrEnum):
    """Where a gate sits, from the metal up. What opens it depends on this."""

    HARDWARE = "hardware"
    TOPOLOGY = "topology"
    DRIVER = "driver"
    TOOLKIT = "toolkit"
    DEVICE_CODE = "device code"
    LINKAGE = "linkage"
    VERSION_CHECK = "version check"
    ALLOW_LIST = "allow-list"
    CPP_CHECK = "C++ check"
    MEASURED = "measured"


class GateVerdict(StrEnum):
    """What a gate does to the feature on the machine and software it was held against."""

    OPEN = "open"
    CLOSED = "closed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Gate:
    """One gate of a chain.

    `evidence` says where a person can look: `file:line`, a symbol, an image of a binary, a probe,
    or the source of a published fact. `opened_in` is the release from which the gate no longer
    stands in the way, "" where none is known.
    """

    component: str
    """Who owns the gate: a package, the driver, the machine."""
    feature: str
    layer: Layer
    predicate: str
    """What must hold."""
    observed: str
    """What was found instead, or beside it."""
    verdict: GateVerdict
    evidence: str
    opened_in: str = ""
    probe: str = ""
    """What measures it: a probe, or a part of one as "kernel triton on 12.0"."""
