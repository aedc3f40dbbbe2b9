"""The gated activation of the feed-forward block."""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812
from torch import Tensor


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """SwiGLU's inner product: silu(gate) * up, from the fused projection [R, 2 * f] to [R, f].

    Shazeer, arXiv 2002.05202.
    """
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up
