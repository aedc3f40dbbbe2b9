"""Linear layers over typed weights.

A weight is an object that says how it is stored; `linear` dispatches on it. The sum over the
inner dimension must not depend on how many rows are computed together (DESIGN, principle 2);
`row_invariant` tests that for one weight.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

LEAST_ROWS = 4
"""oneDNN sums a single row in another order where the inner size is large, and takes longer for
one to three rows than for four (SmolLM2 in fp32 on two EPYC cores: 29 ms against 23 ms)."""

_PROBED_ROWS = (1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 32, 33)


@dataclass(frozen=True)
class DenseWeight:
    """A matrix [out, in] as torch holds it, and its bias [out]."""

    values: Tensor
    bias: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in)."""
        return int(self.values.shape[0]), int(self.values.shape[1])


@dataclass(frozen=True)
class PackedWeight:
    """A matrix laid out once for oneDNN, the form inductor's freezing uses; CPU only."""

    packed: Tensor
    shape: tuple[int, int]
    dtype: torch.dtype
    bias: Tensor | None = None


Weight = DenseWeight | PackedWeight


def pack(weight: DenseWeight) -> PackedWeight:
    """Lay a CPU weight out for oneDNN. The original is not kept."""
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.values.detach())
    return PackedWeight(packed, weight.shape, weight.values.dtype, weight.bias)


def can_pack(weight: DenseWeight) -> bool:
    """Whether this build of torch packs the weight: on the CPU, with oneDNN."""
    return weight.values.device.type == "cpu" and torch._C._has_mkldnn


def linear(x: Tensor, weight: Weight) -> Tensor:
    """x [R, in] times the weight's transpose, plus its bias: [R, out] in the weight's dtype."""
    if isinstance(weight, PackedWeight):
        return _packed_linear(x.to(weight.dtype), weight)
    return F.linear(x.to(weight.values.dtype), weight.values, weight.bias)


def linear_fp32(x: Tensor, weight: Weight) -> Tensor:
    """As `linear`, the sums left in fp32 instead of rounded to the weight's dtype: [R, out].

    On the CPU that takes a weight held in fp32, since oneDNN rounds to the weight's own dtype.
    """
    if isinstance(weight, DenseWeight) and weight.values.is_cuda and weight.values.itemsize == 2:
        y = torch.mm(x.to(weight.values.dtype), weight.values.T, out_dtype=torch.float32)
        return y if weight.bias is None else y + weight.bias
    return linear(x, weight).float()


def _packed_linear(x: Tensor, weight: PackedWeight) -> Tensor:
    rows = x.shape[0]
    if rows < LEAST_ROWS:
        x = F.pad(x, (0, 0, 0, LEAST_ROWS - rows))
    y: Tensor = torch.ops.mkldnn._linear_pointwise(
        x.contiguous(), weight.packed, weight.bias, "none", [], ""
    )
    return y[:rows] if rows < LEAST_ROWS else y


def row_invariant(weight: Weight, rows: tuple[int, ...] = _PROBED_ROWS) -> bool:
    """Probe whether a row's result is bit-equal at every number of rows in `rows`."""
    if isinstance(weight, PackedWeight):
        device, dtype = torch.device("cpu"), weight.dtype
    else:
        device, dtype = weight.values.device, weight.values.dtype
    generator = torch.Generator(device="cpu").manual_seed(0)
    x = torch.randn(max(rows), weight.shape[1], generator=generator).to(device, dtype)
    whole = linear(x, weight)
    return all(torch.equal(linear(x[:n], weight), whole[:n]) for n in rows)
