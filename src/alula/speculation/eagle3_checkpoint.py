"""EAGLE-3 drafters on disk: the public format, read, checked and written."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from alula.errors import MachineError, ModelError
from alula.models.safetensors_file import open_folder
from alula.speculation.eagle3_config import Eagle3Config, read_config, write_config

_FIX = "use the drafter as its maker published it, or train one with alula"
_WEIGHTS = "model.safetensors"
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_LEGACY = {
    "aux_norm_low.weight": "fc_norm.0.weight",
    "aux_norm_mid.weight": "fc_norm.1.weight",
    "aux_norm_high.weight": "fc_norm.2.weight",
}


@dataclass(frozen=True)
class Eagle3Checkpoint:
    """A drafter's configuration and its tensors on the CPU, under the public names."""

    config: Eagle3Config
    tensors: Mapping[str, Tensor]

    @property
    def target_ids(self) -> Tensor:
        """[Vd] int64, the target's id of each draft id."""
        ids = torch.arange(self.config.draft_vocab_size)
        return ids + self.tensors["d2t"].long() if "d2t" in self.tensors else ids

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return self.tensors["fc.weight"].dtype

    def fit(self, *, hidden_size: int, vocab_size: int, layers: int) -> None:
        """Raise ModelError where the drafter was not made for a target of these numbers."""
        config = self.config
        _same("hidden size", config.target_hidden_size, hidden_size)
        _same("vocabulary", config.vocab_size, vocab_size)
        for tap in config.taps(layers):
            if not 0 <= tap <= layers:  # that of the layer after the last is the final state
                raise _misfit(f"it taps the input of layer {tap}; the target has {layers} layers")
        if "embed_tokens.weight" not in self.tensors:
            _same("width (without an embedding of its own)", config.hidden_size, hidden_size)


def load(folder: Path) -> Eagle3Checkpoint:
    """Read a drafter's folder: `config.json` and its weights.

    Raises ModelError for a file that is missing or damaged, and by name for what alula does not
    run and for tensors that are missing, unknown or of another shape.
    """
    config = read_config(_read_json(folder / "config.json"))
    tensors: dict[str, Tensor] = {}
    for name, tensor in _read_tensors(folder).items():
        known = _public_name(name)
        if known in tensors:
            why = f"once as {name} in {folder}"
            raise ModelError(f"the drafter holds {known} twice", why, _FIX)
        tensors[known] = tensor
    checkpoint = Eagle3Checkpoint(config, tensors)
    _check(checkpoint, str(folder))
    return checkpoint


def save(checkpoint: Eagle3Checkpoint, folder: Path) -> None:
    """Write `config.json` and `model.safetensors`, each whole or not at all.

    Raises ModelError for tensors that do not make a drafter, MachineError where the folder
    cannot be written.
    """
    _check(checkpoint, "the drafter to be saved")
    dtype = str(checkpoint.dtype).removeprefix("torch.")
    config = json.dumps(write_config(checkpoint.config, dtype), indent=2) + "\n"
    tensors = {name: tensor.contiguous().clone() for name, tensor in checkpoint.tensors.items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _replace(folder / _WEIGHTS, lambda path: save_file(tensors, path, {"format": "pt"}))
        _replace(folder / "config.json", lambda path: path.write_text(config, encoding="utf-8"))
    except (OSError, SafetensorError) as error:
        raise MachineError(
            f"the drafter could not be saved to {folder}",
            str(error),
            "choose a folder that can be written and has room",
        ) from error


def random_checkpoint(
    *,
    hidden_size: int,
    vocab_size: int,
    layers: int,
    heads: int,
    kv_heads: int,
    draft_vocab_size: int | None = None,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    **settings: Any,
) -> Eagle3Checkpoint:
    """An untrained drafter for a target of these numbers; `settings` are further config fields.

    Weights are normal with variance 1 / inner size, norms near 1. A draft vocabulary smaller than
    the target's is drawn at random. Targets too shallow for the default layers get others.
    """
    config = Eagle3Config(
        hidden_size=hidden_size,
        intermediate_size=4 * hidden_size,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=hidden_size // heads,
        vocab_size=vocab_size,
        draft_vocab_size=draft_vocab_size or vocab_size,
        rms_eps=1e-5,
        max_positions=2048,
        target_hidden_size=hidden_size,
        aux_layers=None if layers >= 6 else (0, layers // 2, layers - 1),
    )
    config = replace(config, **settings)
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in _shapes(config).items():
        noise = torch.randn(shape, generator=generator)
        weight = 1 + 0.1 * noise if len(shape) == 1 else noise / shape[-1] ** 0.5
        tensors[name] = weight.to(dtype)
    if config.draft_vocab_size < vocab_size:
        chosen = torch.randperm(vocab_size, generator=generator)[: config.draft_vocab_size]
        tensors |= vocabulary_map(chosen, vocab_size)
    return Eagle3Checkpoint(config, tensors)


def vocabulary_map(target_ids: Tensor, vocab_size: int) -> dict[str, Tensor]:
    """`d2t` and `t2d` for a draft vocabulary of these target ids, in ascending order."""
    ids = target_ids.sort().values
    known = torch.zeros(vocab_size, dtype=torch.bool)
    known[ids] = True
    return {"d2t": ids - torch.arange(len(ids)), "t2d": known}


def _shapes(config: Eagle3Config) -> dict[str, tuple[int, ...]]:
    """The tensors that a drafter of this configuration must have."""
    h, f, wide = config.hidden_size, config.intermediate_size, config.target_hidden_size
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (h, config.features * wide),
        "midlayer.input_layernorm.weight": (h,),
        "midlayer.hidden_norm.weight": (h,),
        "midlayer.self_attn.q_proj.weight": (q, 2 * h),
        "midlayer.self_attn.k_proj.weight": (kv, 2 * h),
        "midlayer.self_attn.v_proj.weight": (kv, 2 * h),
        "midlayer.self_attn.o_proj.weight": (h, q),
        "midlayer.post_attention_layernorm.weight": (h,),
        "midlayer.mlp.gate_proj.weight": (f, h),
        "midlayer.mlp.up_proj.weight": (f, h),
        "midlayer.mlp.down_proj.weight": (h, f),
        "norm.weight": (h,),
        "lm_head.weight": (config.draft_vocab_size, h),
    }
    if config.norm_before_fc:
        shapes["input_norm.weight"] = (config.features * wide,)
    if config.fc_norm:
        shapes |= {f"fc_norm.{i}.weight": (wide,) for i in range(config.features)}
    return shapes


def _check(checkpoint: Eagle3Checkpoint, origin: str) -> None:
    config, tensors = checkpoint.config, checkpoint.tensors
    required = _shapes(config)
    optional: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (config.vocab_size, config.hidden_size),
        "d2t": (config.draft_vocab_size,),
        "t2d": (config.vocab_size,),
    }
    if config.draft_vocab_size != config.vocab_size:
        required["d2t"] = optional["d2t"]
    if unknown := sorted(tensors.keys() - required.keys() - optional.keys()):
        raise _refused("alula does not know what to do with", unknown, origin)
    if missing := sorted(required.keys() - tensors.keys()):
        raise _refused("the drafter lacks", missing, origin)
    for name, tensor in tensors.items():
        wanted = (optional | required)[name]
        if tuple(tensor.shape) != wanted:
            why = f"it has {list(tensor.shape)}; the config of {origin} asks for {list(wanted)}"
            raise ModelError(f"{name} has the wrong shape", why, _FIX)
        if name not in ("d2t", "t2d") and tensor.dtype not in _FLOATS:
            why = f"{origin} holds it as {tensor.dtype}; supported: float32, float16, bfloat16"
            raise ModelError(f"alula does not read {name}", why, _FIX)
    _check_vocabulary(checkpoint)


def _check_vocabulary(checkpoint: Eagle3Checkpoint) -> None:
    ids, size = checkpoint.target_ids, checkpoint.config.vocab_size
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= size:
        worst = low if low < 0 else high
        raise _misfit(f"d2t names the token {worst}; the target's vocabulary has {size}")
    known = checkpoint.tensors.get("t2d")
    if known is not None and len(ids) < size:
        expected = torch.zeros(size, dtype=torch.bool)
        expected[ids] = True
        if not torch.equal(expected, known.bool()):
            raise _misfit(f"t2d marks {int(known.sum())} tokens, not the {len(ids)} that d2t names")


def _same(what: str, drafter: int, target: int) -> None:
    if drafter != target:
        raise _misfit(f"its {what} is {drafter}, the target's {target}")


def _misfit(why: str) -> ModelError:
    return ModelError(
        "the drafter does not fit the target", why, "use the drafter that was made for this target"
    )


def _refused(what: str, names: list[str], origin: str) -> ModelError:
    shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    return ModelError(f"{what} {shown}", f"{origin} is read as an EAGLE-3 drafter", _FIX)


def _public_name(name: str) -> str:
    name = re.sub(r"^layers\.0\.", "midlayer.", name.removeprefix("model."))
    return _LEGACY.get(name, name)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        why = f"it has no {path.name}" if path.parent.exists() else "there is no such folder"
        raise ModelError(f"{path.parent} is no drafter", why, _FIX) from error
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read", str(error), _FIX) from error
    if not isinstance(content, dict):
        raise ModelError(f"{path} cannot be read", "it holds no JSON object", _FIX)
    return content


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    pickled = folder / "pytorch_model.bin"
    if pickled.exists() and not list(folder.glob("*.safetensors")):
        return _read_pickled(pickled)
    weights = open_folder(folder)
    return {name: weights.get(name) for name in weights.names()}


def _read_pickled(path: Path) -> dict[str, Tensor]:
    """Tensors from the EAGLE repository's older format, where it holds nothing else."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle may fail as anything
        raise ModelError(
            f"{path} is not safe to read",
            f"a pickle may run code, and this one holds more than tensors ({error})",
            f"convert it to {_WEIGHTS} where you trust it",
        ) from error
    if not isinstance(content, dict) or not all(map(torch.is_tensor, content.values())):
        raise ModelError(f"{path} cannot be read", "it holds no table of tensors", _FIX)
    return content


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file beside `path` and rename it, so that no reader sees half of it."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(draft)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
