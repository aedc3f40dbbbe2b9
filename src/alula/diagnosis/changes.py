"""Changes of a stack, spelled `package==version`, and the facts after them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from alula.diagnosis.facts import Condition, Facts, Value, is_version
from alula.diagnosis.report import canonical, torch_cuda_of

_CHANGE = re.compile(r"([A-Za-z0-9][\w.-]*)\s*==\s*([\w.+!]+)")


_FACTS = {"cuda": "nvcc"}
_COMPONENTS = {"nvcc": "cuda"}
"""Facts that are called otherwise than what one installs."""
_NOT_INSTALLED = frozenset({"capability", "gpus", "tp"})


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
        if not is_version(match[2]):
            raise ValueError(f"{match[2]!r} in {text!r} is no version")
        return cls(canonical(match[1]), match[2])

    @classmethod
    def towards(cls, condition: Condition) -> Change | None:
        """The smallest change that makes a condition `component >= version` hold; else None."""
        name = condition.name
        if condition.operator != ">=" or not condition.value[:1].isdigit():
            return None
        if "." in name or name in _NOT_INSTALLED:
            return None
        return cls(_COMPONENTS.get(name, name), condition.value)

    def apply(self, facts: Facts) -> Facts:
        """The facts once this is installed."""
        values: dict[str, Value] = {_FACTS.get(self.component, self.component): (self.version,)}
        if self.component == "torch":
            # A version without a CUDA in it is whatever its index takes for the default.
            values |= torch_cuda_of(self.version) or {"torch.cuda": (), "torch.cuda.major": ()}
        if self.component == "driver":
            values |= {"driver.cuda": (), "driver.cuda.major": ()}
        return facts.with_values(values)

    def __str__(self) -> str:
        return f"{self.component} {self.version}"


def applied(changes: Iterable[Change], facts: Facts) -> Facts:
    """The facts after all changes."""
    for change in changes:
        facts = change.apply(facts)
    return facts
