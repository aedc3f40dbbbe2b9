"""Where a model's weights go, in which dtype, and in which layout."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from alula.models.weights import WeightSource
from alula.ops.kernels import Kernels, kernels_for
from alula.ops.linear import DenseWeight, Weight


@dataclass(frozen=True)
class Placement:
    """A device and the dtype of the weights on it."""

    device: torch.device
    dtype: torch.dtype

    @property
    def kernels(self) -> Kernels:
        """The form of the ops that runs there."""
        return kernels_for(self.device)

    @property
    def residual_dtype(self) -> torch.dtype:
        """Of the residual stream: fp32 on the CPU, where its width costs nothing."""
        return torch.float32 if self.device.type == "cpu" else self.dtype

    def put(self, tensor: Tensor) -> Tensor:
        """A tensor on the device in the weights' dtype."""
        return tensor.to(self.device, self.dtype)

    def weight(self, parts: list[Tensor], biases: list[Tensor]) -> Weight:
        """Matrices [out, in] that share their input as one weight, laid out for the kernels.

        `parts` is emptied, so that no matrix is held twice.
        """
        values = self.put(parts[0]) if len(parts) == 1 else torch.cat([*map(self.put, parts)])
        parts.clear()
        bias = torch.cat([*map(self.put, biases)]) if biases else None
        return self.kernels.lay_out(DenseWeight(values, bias))


@dataclass(frozen=True)
class Reader:
    """Reads tensors under a prefix and places them."""

    source: WeightSource
    placement: Placement
    prefix: str = ""

    def below(self, prefix: str) -> Reader:
        """A reader of the names that begin with `prefix` and a dot."""
        return replace(self, prefix=f"{self.prefix}{prefix}.")

    def norm(self, name: str) -> Tensor:
        """A norm's weight, fp32 as the norm computes."""
        return self._get(f"{name}.weight").to(self.placement.device, torch.float32)

    def embedding(self, name: str) -> Tensor:
        """A table [V, h] to look rows up in."""
        return self.placement.put(self._get(f"{name}.weight"))

    def linear(self, *names: str, bias: bool = False) -> Weight:
        """The projections `names` as one weight."""
        parts = [self._get(f"{name}.weight") for name in names]
        biases = [self._get(f"{name}.bias") for name in names] if bias else []
        return self.placement.weight(parts, biases)

    def head(self, name: str) -> Weight:
        """The projection to logits, which stay fp32: on the CPU that takes fp32 weights."""
        placement = self.placement
        if placement.device.type == "cpu":
            placement = replace(placement, dtype=torch.float32)
        return placement.weight([self._get(f"{name}.weight")], [])

    def _get(self, name: str) -> Tensor:
        return self.source.get(self.prefix + name)
