"""Changes of a stack, spelled `package==version`, and the facts after them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from alula.diagnosis.facts import Facts, Value
from alula.diagnosis.report import canonical, torch_cuda_of

_CHANGE = re.compile(r"([A-Za-z0-9][\w.-]*)\s*==\s*([\w.+!]+)")


@dataclass(frozen=True)
class Change:
    """One component in one version. `cuda` is the toolkit, `driver` the driver."""

    component: str
    version: str

    @classmethod
    def parse(cls, text: str) -> Change:
        """Raises `ValueError` for text that is not `component==version`."""
        match = _CHANGE.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"{text!r} is not of the form component==version")
        return cls(canonical(match[1]), match[2])

    def apply(self, facts: Facts) -> Facts:
        """The facts once this is installed."""
        name = "nvcc" if self.component == "cuda" else self.component
        values: dict[str, Value] = {name: (self.version,)}
        if self.component == "torch":
            values |= torch_cuda_of(self.version)
        return facts.with_values(values)

    def __str__(self) -> str:
        return f"{self.component} {self.version}"


def applied(changes: Iterable[Change], facts: Facts) -> Facts:
    """The facts after all changes."""
    for change in changes:
        facts = change.apply(facts)
    return facts
