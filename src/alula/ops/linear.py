"""Linear layers over typed weights.

A weight is an object that knows how it is stored and multiplied. The sum over the inner
dimension must not depend on how many rows are computed together (DESIGN, principle 2);
`row_invariant` tests that for one weight.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

LEAST_ROWS = 4
"""oneDNN sums a single row in another order where the inner size is large, and takes longer for
one to three rows than for four (SmolLM2 in fp32 on two EPYC cores: 29 ms against 23 ms)."""

FEW_ROWS, ROWS_STEP = 16, 8
"""oneDNN keeps a program for every matrix and number of rows it has seen, of about half a megabyte
each. Beyond a few rows their number is rounded up, so that prompts of all lengths share some."""

PROBED_ROWS = (1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 32, 33)


class Weight(ABC):
    """A matrix [out, in], and perhaps a bias [out], stored in some way."""

    shape: tuple[int, int]
    dtype: torch.dtype
    device: torch.device
    layout: str
    probed_rows: tuple[int, ...] = PROBED_ROWS
    """Numbers of rows at which the sums might change their order."""

    @abstractmethod
    def multiply(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """x [R, in], in the weight's dtype, times the transpose, plus the bias.

        Returns [R, out] in `dtype`: the weight's own, or fp32 for sums that are not rounded.
        """

    def multiply_in_any_order(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """As `multiply` but for the order of the sums: for work that need not be exact."""
        return self.multiply(x, dtype)


class DenseWeight(Weight):
    """A matrix as torch holds it."""

    layout = "plain"

    def __init__(self, values: Tensor, bias: Tensor | None = None) -> None:
        self.values = values
        self.bias = bias
        self.shape = (int(values.shape[0]), int(values.shape[1]))
        self.dtype = values.dtype
        self.device = values.device

    def multiply(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """See `Weight.multiply`; on the CPU fp32 takes a weight in fp32, as oneDNN rounds."""
        if dtype != self.dtype and self.values.is_cuda:
            y = torch.mm(x, self.values.T, out_dtype=dtype)
            return y if self.bias is None else y + self.bias
        return F.linear(x, self.values, self.bias).to(dtype)


class PackedWeight(Weight):
    """A matrix laid out once for oneDNN, the form inductor's freezing uses; CPU only."""

    layout = "packed"

    def __init__(self, weight: DenseWeight) -> None:
        """The original is not kept."""
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.values.detach())
        self._bias = weight.bias
        self.shape = weight.shape
        self.dtype = weight.dtype
        self.device = weight.device

    def multiply(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """See `Weight.multiply`; fp32 takes a weight in fp32, since oneDNN rounds."""
        rows = x.shape[0]
        padded = max(rows, LEAST_ROWS)
        if rows > FEW_ROWS:
            padded = -(-rows // ROWS_STEP) * ROWS_STEP
        if padded > rows:
            x = F.pad(x, (0, 0, 0, padded - rows))
        y: Tensor = torch.ops.mkldnn._linear_pointwise(
            x.contiguous(), self._packed, self._bias, "none", [], ""
        )
        return y[:rows].to(dtype)


def lay_out(weight: DenseWeight) -> Weight:
    """Pack the weight where this build of torch can: on the CPU, with oneDNN."""
    on_cpu = weight.device.type == "cpu"
    return PackedWeight(weight) if on_cpu and torch._C._has_mkldnn else weight


def linear(x: Tensor, weight: Weight) -> Tensor:
    """x [R, in] times the weight's transpose, plus its bias: [R, out] in the weight's dtype."""
    return weight.multiply(x.to(weight.dtype), weight.dtype)


def linear_fp32(x: Tensor, weight: Weight) -> Tensor:
    """As `linear`, the sums left in fp32 instead of rounded to the weight's dtype: [R, out]."""
    return weight.multiply(x.to(weight.dtype), torch.float32)


def row_invariant(weight: Weight) -> bool:
    """Probe whether a row's result is bit-equal at every one of `weight.probed_rows`."""
    most = max(weight.probed_rows)
    generator = torch.Generator(device="cpu").manual_seed(0)
    x = torch.randn(most, weight.shape[1], generator=generator).to(weight.device, weight.dtype)
    whole = linear(x, weight)
    return all(torch.equal(linear(x[:n], weight), whole[:n]) for n in weight.probed_rows)
