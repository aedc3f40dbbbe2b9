"""What a decoder is made of, whatever file said so."""

from __future__ import annotations

from dataclasses import dataclass

from alula.errors import ModelError
from alula.shapes.rope import FrequencyDivisors, RopeShape

FAMILIES = ("llama", "qwen2", "qwen3")


@dataclass(frozen=True)
class DecoderShape:
    """The sizes and switches of a dense decoder of one of `FAMILIES`."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rms_eps: float
    rope: RopeShape
    max_positions: int
    tied_head: bool
    qkv_bias: bool
    qk_norm: bool
    eos_ids: frozenset[int]
    bos_id: int | None
    dtype: str
    """The checkpoint's own: "float32", "float16" or "bfloat16"."""

    def __post_init__(self) -> None:
        """Refuse sizes that contradict each other with a ModelError."""
        if self.heads % self.kv_heads:
            raise _contradiction(
                f"{self.heads} attention heads cannot share {self.kv_heads} key-value heads evenly"
            )
        if self.head_dim % 2:
            raise _contradiction(f"a head of {self.head_dim} elements has no two halves to rotate")
        scaling = self.rope.scaling
        if isinstance(scaling, FrequencyDivisors) and len(scaling.values) != self.head_dim // 2:
            raise _contradiction(
                f"rope_freqs.weight holds {len(scaling.values)} values, "
                f"a head of {self.head_dim} elements needs {self.head_dim // 2}"
            )


def _contradiction(why: str) -> ModelError:
    return ModelError(
        "the model's sizes contradict each other",
        why,
        "take the configuration and the weights from the same, unchanged model",
    )
