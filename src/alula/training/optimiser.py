"""What moves a drafter's weights: Muon for its matrices, AdamW for its head and norms.

Jordan et al., Muon, 2024; its steps are scaled so that one learning rate serves both (Liu et al.,
arXiv 2502.16982).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

_HEAD = "lm_head.weight"


class Optimiser:
    """The optimisers of one network's parameters."""

    def __init__(self, network: nn.Module, rate: float, *, muon: bool) -> None:
        """`muon`: whether matrices other than the head are Muon's."""
        named = dict(network.named_parameters())
        matrices = [p for n, p in named.items() if muon and p.dim() == 2 and n != _HEAD]
        taken = set(map(id, matrices))
        rest = [p for p in named.values() if id(p) not in taken]
        on_gpu = rest[0].device.type == "cuda"
        self._parts: list[Optimizer] = [
            torch.optim.AdamW(rest, lr=rate, betas=(0.9, 0.95), weight_decay=0.0, fused=on_gpu)
        ]
        if matrices:
            self._parts.append(
                torch.optim.Muon(
                    matrices, lr=rate, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"
                )
            )

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for part in self._parts:
            part.zero_grad(set_to_none=True)

    def step(self, rate: float) -> None:
        """Move all parameters at a learning rate."""
        for part in self._parts:
            for group in part.param_groups:
                group["lr"] = rate
            part.step()

    def state(self, parameter: Tensor) -> dict[str, Any]:
        """What is remembered of a parameter: to be read, and filled when going on."""
        found: dict[str, Any] = self._of(parameter).state[parameter]
        return found

    def _of(self, parameter: Tensor) -> Optimizer:
        for part in self._parts:
            if any(parameter is p for group in part.param_groups for p in group["params"]):
                return part
        raise KeyError("a parameter of another network")
