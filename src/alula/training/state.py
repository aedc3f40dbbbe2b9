"""Where a fit stands, kept so that it goes on to the bit after any interruption."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from alula.errors import ModelError
from alula.models.home import whole_file
from alula.training.optimiser import Optimiser

_KINDS = ("step", "exp_avg", "exp_avg_sq", "momentum_buffer")


def save_state(path: Path, network: nn.Module, optimiser: Optimiser, facts: dict[str, Any]) -> None:
    """Write weights, optimiser state and `facts` whole or not at all.

    Raises MachineError where the disk is full; the file before stays.
    """
    tensors = {f"weights.{name}": tensor for name, tensor in network.state_dict().items()}
    for name, parameter in network.named_parameters():
        tensors |= {f"{k}.{name}": v for k, v in optimiser.state(parameter).items()}
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    content = save(plain, {"facts": json.dumps(facts)})
    with whole_file(path, len(content), "keep a checkpoint") as file:
        file.write(content)


def load_state(path: Path, network: nn.Module, optimiser: Optimiser) -> dict[str, Any]:
    """Put back what `save_state` wrote; returns the facts. ModelError for a damaged file."""
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            facts: dict[str, Any] = json.loads(file.metadata()["facts"])
        network.load_state_dict(_below(tensors, "weights"))
        for name, parameter in network.named_parameters():
            optimiser.state(parameter).update(
                (kind, _placed(tensors[f"{kind}.{name}"], parameter, kind))
                for kind in _KINDS
                if f"{kind}.{name}" in tensors
            )
    except (OSError, SafetensorError, KeyError, TypeError, RuntimeError) as error:
        raise ModelError(
            f"the checkpoint {path} cannot be read",
            str(error).splitlines()[0],
            "delete it to begin the stage fit again",
        ) from error
    return facts


def _below(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    start = f"{prefix}."
    return {n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)}


def _placed(tensor: Tensor, parameter: Tensor, kind: str) -> Tensor:
    """On the parameter's device; counts of steps stay on the CPU unless the update is fused."""
    if kind == "step" and parameter.device.type == "cpu":
        return tensor.clone()
    return tensor.to(parameter.device, torch.float32)
