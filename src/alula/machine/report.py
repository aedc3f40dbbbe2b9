"""What the doctor saw, in one value that can be saved and asked about later."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from alula.machine.capability import Capability
from alula.machine.facts import Machine
from alula.machine.gate import Gate
from alula.machine.kernels import EmptyKernels
from alula.machine.library import Library
from alula.machine.probe_child import Outcome
from alula.machine.records import to_json
from alula.machine.software import Software

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Report:
    """A machine, its software, and the gates that stand on them."""

    machine: Machine
    software: Software
    gates: tuple[Gate, ...] = ()
    """What stands in the way of a component as such."""
    features: Mapping[str, tuple[Gate, ...]] = field(default_factory=dict)
    """The whole chain of each feature that was asked for."""
    probes: tuple[Outcome, ...] = ()
    empty_kernels: tuple[EmptyKernels, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As plain values, with what each GPU would do with each library."""
        return {
            "format": FORMAT,
            "alula": version("alula"),
            "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "machine": to_json(self.machine),
            "software": {**self._software(), "loading": self._loading()},
            "gates": to_json(self.gates),
            "features": {name: to_json(chain) for name, chain in self.features.items()},
            "probes": to_json(self.probes),
            "empty_kernels": to_json(self.empty_kernels),
        }

    def _software(self) -> dict[str, Any]:
        """The software, with the count of the symbols asked of torch instead of their names.

        There are thousands; those that torch does not offer stand under `missing`.
        """
        software: dict[str, Any] = to_json(self.software)
        for component in software["components"]:
            for library in component["libraries"]:
                library["torch_symbols"] = len(library["torch_symbols"])
        return software

    def _loading(self) -> list[dict[str, Any]]:
        isa = self.machine.driver.isa()
        return [
            _loading(component.name, library, gpu, isa)
            for component in self.software.components
            for library in component.device_code()
            for gpu in self.machine.capabilities()
        ]


def _loading(
    component: str, library: Library, gpu: Capability, isa: tuple[int, int] | None
) -> dict[str, Any]:
    loadings = library.loadings(gpu, isa)
    return {
        "component": component,
        "library": library.path,
        "capability": str(gpu),
        "verdict": next(iter(loadings)),
        "containers": dict(loadings),
    }
