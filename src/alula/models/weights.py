"""Named tensors, from whatever file they come, under Hugging Face's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from alula.errors import ModelError


class WeightSource(Protocol):
    """Where tensors are read from, one at a time."""

    def names(self) -> frozenset[str]:
        """All tensors."""

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of one, without reading it."""

    def get(self, name: str) -> Tensor:
        """Read one to the CPU, in memory of its own and the dtype it is stored in."""


def check(source: WeightSource, expected: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse missing, extra and mis-shaped tensors with a ModelError that names one.

    Rotary frequencies are left aside: old checkpoints carry them, the configuration tells them.
    """
    names = {name for name in source.names() if not name.endswith("rotary_emb.inv_freq")}
    if missing := sorted(expected.keys() - names):
        raise _refusal(f"{missing[0]} is missing", missing, f"expected {expected[missing[0]]}")
    if extra := sorted(names - expected.keys()):
        found = source.shape(extra[0])
        raise _refusal(f"{extra[0]} does not belong to this model", extra, f"found {found}")
    for name, shape in expected.items():
        if source.shape(name) != shape:
            raise ModelError(
                f"{name} has the wrong shape",
                f"expected {shape} by the model's configuration, found {source.shape(name)}",
                "take the configuration and the weights from the same model",
            )


def _refusal(what: str, all_names: list[str], why: str) -> ModelError:
    others = f", and {len(all_names) - 1} more" if len(all_names) > 1 else ""
    return ModelError(
        f"the weights do not fit the configuration: {what}",
        f"{why}{others}",
        "use the model as its maker published it",
    )
