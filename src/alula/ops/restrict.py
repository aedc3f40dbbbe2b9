"""A law over a whole vocabulary, restricted to a part of it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Restricted(NamedTuple):
    """What R rows of logits say."""

    best: Tensor
    """[R] int64, the likeliest token of the whole vocabulary."""
    probabilities: Tensor
    """[R, T], of the part, renormalised on it."""


def restrict(logits: Tensor, ids: Tensor, dtype: torch.dtype) -> Restricted:
    """Restrict fp32 logits [R, V] to the tokens `ids` [T] int64; probabilities in `dtype`."""
    return Restricted(logits.argmax(-1), logits[:, ids].softmax(-1).to(dtype))
