"""A machine, its software and one compute capability: what a chain of gates is held against."""

from __future__ import annotations

from dataclasses import dataclass

from alula.machine.allow_lists import AllowList
from alula.machine.capability import Capability
from alula.machine.facts import Machine
from alula.machine.gate import Gate, GateVerdict, Layer
from alula.machine.software import Software
from alula.machine.text_gates import TextGate

OPEN, CLOSED, UNKNOWN = GateVerdict.OPEN, GateVerdict.CLOSED, GateVerdict.UNKNOWN


@dataclass(frozen=True)
class Scene:
    """What the gates of one feature look at."""

    feature: str
    machine: Machine
    software: Software
    gpu: Capability | None
    """None where no GPU was seen or asked about."""

    def gate(
        self,
        component: str,
        layer: Layer,
        predicate: str,
        observed: str,
        verdict: GateVerdict,
        evidence: str,
        opened_in: str = "",
        *,
        probe: str = "",
    ) -> Gate:
        """A gate of this feature; one that is open needs no release to open it."""
        name = self.with_version(component)
        opened = "" if verdict is OPEN else opened_in
        return Gate(
            name, self.feature, layer, predicate, observed, verdict, evidence, opened, probe
        )

    def with_version(self, package: str) -> str:
        """A package as it is installed: "sglang 0.5.9"."""
        version = self.software.packages.get(package, "")
        return f"{package} {version}".rstrip()

    def installed(self, *packages: str) -> str:
        """The first of these packages that is there, "" for none."""
        return next((name for name in packages if name in self.software.packages), "")

    def lists(self, package: str, file: str, owner: str) -> list[AllowList]:
        """The lists of a package in files that end so, held by an owner of that name."""
        return [
            each
            for each in self.software.allow_lists
            if each.package == package
            and each.file.endswith(file)
            and owner in (each.owner + each.text)
        ]

    def text(self, name: str, package: str) -> TextGate | None:
        """A gate that is a line of source."""
        found = (each for each in self.software.texts if each.name == name)
        return next((each for each in found if each.package == package), None)

    def allow_list(
        self, package: str, file: str, owner: str, what: str, opened_in: str
    ) -> list[Gate]:
        """The gate of a list in a package's source, wherever the list is found there."""
        return [
            self.gate(
                package,
                Layer.ALLOW_LIST,
                f"{what} lists {self.gpu or 'the GPU'}",
                found.text,
                self.whether(None if self.gpu is None else found.allows(self.gpu)),
                found.where,
                opened_in,
            )
            for found in self.lists(package, file, owner)
        ]

    def several_pcie(self) -> bool | None:
        """Whether more than two GPUs are joined without NVLink; None where that is unknown."""
        if len(self.machine.visible()) <= 2:
            return False if self.machine.gpus else None
        return {"pcie": True, "nvlink": False}.get(self.machine.interconnect)

    @staticmethod
    def whether(holds: bool | None) -> GateVerdict:
        """A verdict for a condition that may not be known."""
        return UNKNOWN if holds is None else OPEN if holds else CLOSED

    def joined(self) -> str:
        """How many GPUs there are and how they are joined, in words."""
        count = len(self.machine.visible())
        how = {"pcie": "over PCIe", "nvlink": "by NVLink"}.get(self.machine.interconnect, "")
        plural = "GPUs" if count != 1 else "GPU"
        return f"{count} {plural} {how}".rstrip() if self.machine.gpus else "no GPU was seen"
