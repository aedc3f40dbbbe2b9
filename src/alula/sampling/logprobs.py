"""Log-probabilities of what was chosen and of its likeliest alternatives."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Logprobs(NamedTuple):
    """Natural logarithms of probabilities for R rows."""

    chosen: Tensor
    """[R] fp32."""
    ids: Tensor
    """[R, k] int64, the likeliest tokens from the top, equal ones by ascending id."""
    values: Tensor
    """[R, k] fp32."""


def top_logprobs(logits: Tensor, chosen: Tensor, k: int) -> Logprobs:
    """Log-probabilities under the unmodified logits [R, V] fp32, at temperature 1.

    `chosen` [R] int64; `k` alternatives, 0 for none.
    """
    values = logits.log_softmax(dim=-1)
    ids = _likeliest(logits, k)
    return Logprobs(values.gather(1, chosen[:, None])[:, 0], ids, values.gather(1, ids))


def _likeliest(logits: Tensor, k: int) -> Tensor:
    """[R, k] ids. `topk` leaves the order of equal values open; integers that end in the id have
    no equals, and the bits of a float sort as an integer once a negative one's are turned over."""
    bits = (logits + 0.0).view(torch.int32)  # + 0.0 turns -0.0 into its equal, 0.0
    rising = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    last = logits.shape[1] - 1
    from_the_end = last - torch.arange(last + 1, device=logits.device)
    return last - ((rising << 32) | from_the_end).topk(k, dim=-1).values & 0xFFFFFFFF
