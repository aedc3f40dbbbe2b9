"""Which dtype a model's weights take on the CPU: a fact about the processor.

It is no measurement: a close race, or other work beside it, would give the same request other
tokens at the next start.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch

from alula.models.families import FAMILIES
from alula.models.placement import Placement, Reader
from alula.models.weights import WeightSource
from alula.ops.linear import Weight, row_invariant
from alula.shapes.decoder import DecoderShape

_NARROW, _WIDE = torch.bfloat16, torch.float32


class Chosen(NamedTuple):
    """A dtype, and why it is that one."""

    dtype: torch.dtype
    because: str

    def explain(self) -> str:
        """One line: what was chosen, what lost, why, how to override."""
        won, lost = ("bfloat16", "float32") if self.dtype == _NARROW else ("float32", "bfloat16")
        return f"weights in {won}, not {lost}: {self.because}; override with dtype= or --dtype"


def choose(shape: DecoderShape, source: WeightSource) -> Chosen:
    """bfloat16 where the processor multiplies it itself and rows stay exact, else float32.

    On two EPYC cores with avx512_bf16 eight layers of SmolLM2 take 7.2 ms at 1 and 8 rows together
    in bfloat16 and 12.3 ms in float32. Where each weight would have to be widened first, nothing
    says that it pays. Rows are probed on the model's own first layer.
    """
    if not torch.cpu._is_avx512_bf16_supported():
        return Chosen(_WIDE, "this processor does not multiply bfloat16 itself (no avx512_bf16)")
    if not all(map(row_invariant, _first_layer(shape, source))):
        return Chosen(_WIDE, "bfloat16 sums a row in another order beside other rows")
    return Chosen(
        _NARROW,
        "this processor multiplies it itself (avx512_bf16), and a token reads half as many bytes",
    )


def _first_layer(shape: DecoderShape, source: WeightSource) -> Iterable[Weight]:
    reader = Reader(source, Placement(torch.device("cpu"), _NARROW))
    return FAMILIES[shape.family].layer(reader.below("model.layers.0"), shape).weights()


def invariance_notes(weights: Iterator[Weight]) -> list[str]:
    """Probe one weight of each shape; a line for every one whose rows depend on their number."""
    probed: dict[tuple[int, int], Weight] = {}
    for weight in weights:
        probed.setdefault(weight.shape, weight)
    return [
        f"rows are not invariant for weights of {shape[0]} × {shape[1]} "
        f"({weight.layout}): on this machine token ids "
        "may depend on how many rows are computed together"
        for shape, weight in probed.items()
        if not row_invariant(weight)
    ]
