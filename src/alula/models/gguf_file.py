"""Weights and metadata of a GGUF file, dequantised one tensor at a time, under HF names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from alula.errors import ModelError
from alula.shapes.gguf import ROPE_DIVISORS, TIED_HEAD

QUANT_TYPES = (
    *("F32", "F16", "BF16"),
    *("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"),
    *("Q4_K", "Q5_K", "Q6_K"),
)
_ROPE_FREQS = "rope_freqs.weight"
_TOP = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class GgufWeights:
    """A `WeightSource` over a memory-mapped GGUF file; every tensor is read as fp32."""

    def __init__(self, path: Path) -> None:
        """Open the file. Raises ModelError for a truncated or foreign one, and unknown types."""
        self._path = path
        reader = _read(path)
        self._tensors = {_hf_name(tensor.name): tensor for tensor in reader.tensors}
        self._refuse_unknown_types()
        self.metadata = {name: _value(path, field) for name, field in reader.fields.items()}
        self.metadata[TIED_HEAD] = "lm_head.weight" not in self._tensors
        if (divisors := self._tensors.pop(_ROPE_FREQS, None)) is not None:
            self.metadata[ROPE_DIVISORS] = divisors.data.astype(np.float32).tolist()
        self._interleaved = self._interleaved_heads()

    def names(self) -> frozenset[str]:
        """All tensors."""
        return frozenset(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of one; GGUF keeps it innermost first."""
        return tuple(int(size) for size in reversed(self._tensors[name].shape))

    def get(self, name: str) -> Tensor:
        """Dequantise one to fp32."""
        from gguf.quants import dequantize

        tensor = self._tensors[name]
        values = dequantize(tensor.data, tensor.tensor_type).reshape(self.shape(name))
        projection = name.split(".")[-2]
        if heads := self._interleaved.get(projection):
            values = _half_split(values, heads)
        if not values.flags.writeable:  # stored as fp32: still a view of the file
            values = values.copy()
        return torch.from_numpy(np.ascontiguousarray(values))

    def _interleaved_heads(self) -> dict[str, int]:
        """Projections whose rows are interleaved for GGUF's rotary order: Llama's only."""
        if self.metadata.get("general.architecture") != "llama":
            return {}
        heads = self.metadata.get("llama.attention.head_count", 0)
        return {
            "q_proj": heads,
            "k_proj": self.metadata.get("llama.attention.head_count_kv", heads),
        }

    def _refuse_unknown_types(self) -> None:
        for name, tensor in self._tensors.items():
            if tensor.tensor_type.name not in QUANT_TYPES:
                raise ModelError(
                    f"alula does not read GGUF tensors of type {tensor.tensor_type.name}",
                    f"{name} in {self._path} is one; supported: {', '.join(QUANT_TYPES)}",
                    "choose a file in one of these types, Q8_0 or Q4_K_M for example",
                )


def _read(path: Path) -> Any:
    from gguf import GGUFReader

    try:
        return GGUFReader(path)
    # The reader checks little: a file cut short shows as whatever numpy says at its end.
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, OSError) as error:
        size = path.stat().st_size if path.is_file() else 0
        raise ModelError(
            f"{path} is truncated or no GGUF file alula can read",
            f"its {size} bytes do not hold what its header announces ({error})",
            "download the file again",
        ) from error


def _value(path: Path, field: Any) -> Any:
    try:
        return field.contents()
    except (ValueError, IndexError) as error:
        raise ModelError(
            f"{path} is damaged", f"its entry {field.name}: {error}", "download the file again"
        ) from error


def _hf_name(name: str) -> str:
    """Hugging Face's name of a GGUF tensor; an unknown name stays as it is."""
    if match := re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name):
        index, part, kind = match.groups()
        return f"model.layers.{index}.{_BLOCK[part]}.{kind}" if part in _BLOCK else name
    stem, _, kind = name.rpartition(".")
    return f"{_TOP[stem]}.{kind}" if stem in _TOP else name


def _half_split(rows: np.ndarray, heads: int) -> np.ndarray:
    """Undo the interleaving of each head's two halves that GGUF converters apply to Llama."""
    pairs = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)
