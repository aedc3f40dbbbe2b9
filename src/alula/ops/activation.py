"""The gated activation of the feed-forward block."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

_ONE_THREAD = 32767
"""Elements that torch leaves to one thread. It cuts larger tensors anywhere within a row, and the
few elements before a cut go through another exponential, so that they would depend on the rows
beside them."""


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """SwiGLU's inner product: silu(gate) * up, from the fused projection [R, 2 * f] to [R, f].

    Shazeer, arXiv 2002.05202.
    """
    gate, up = gate_up.chunk(2, dim=-1)
    rows = max(1, _ONE_THREAD // gate.shape[-1])
    if gate_up.is_cuda or len(gate) <= rows:
        return F.silu(gate) * up
    parts = zip(torch.split(gate, rows), torch.split(up, rows), strict=True)
    return torch.cat([F.silu(gate) * up for gate, up in parts])


def silu_and_mul_gradient(gate_up: Tensor, gradient: Tensor) -> Tensor:
    """The gradient of gate_up [R, 2 * f] from that of silu(gate) * up, [R, f]."""
    gate, up = gate_up.chunk(2, dim=-1)
    share = gate.sigmoid()
    slope = share * (1 + gate * (1 - share))
    return torch.cat((gradient * up * slope, gradient * gate * share), dim=-1)
