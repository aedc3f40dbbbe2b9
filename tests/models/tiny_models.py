"""Tiny random models of every family, made by transformers, and as GGUF files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from alula.cache.pool import KVPool
from alula.models.decoder import Decoder
from alula.ops.rows import Rows

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *ALPHABET, "he"]
VOCAB = len(TOKENS)
PAGE = 32
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
CLASSES = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
}
GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def make(family: str, **changes: Any) -> transformers.PreTrainedModel:
    """A random model; biases and norms too are random, so that each of them matters."""
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32 if family == "qwen3" else 16,
        "max_position_embeddings": 256,
        "initializer_range": 0.2,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if family == "mistral":
        sizes["sliding_window"] = None
    config_class, model_class = CLASSES[family]
    torch.manual_seed(0)
    model = model_class(config_class(**(sizes | changes))).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.copy_(torch.randn_like(parameter) * 0.3 + ("norm" in name))
    return model


def ids(count: int = 40, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCAB, (count,), generator=generator)


def pool_for(decoder: Decoder, pages: int = 8) -> KVPool:
    shape = decoder.shape
    return KVPool(
        layers=shape.layers,
        pages=pages,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        page_size=PAGE,
        dtype=decoder.cache_dtype,
        device=decoder.device,
    )


def chain(start: int, count: int, pages: int = 8) -> Rows:
    """Rows of one sequence at positions start … start + count, pages in falling order."""
    table = torch.arange(pages - 1, -1, -1)
    at = torch.arange(start, start + count)
    return Rows(
        positions=at,
        slots=table[at // PAGE] * PAGE + at % PAGE,
        sequences=torch.zeros(count, dtype=torch.int64),
        last=at,
        page_table=table[None],
        base=torch.tensor([start]),
    )


def logits(decoder: Decoder, tokens: torch.Tensor) -> torch.Tensor:
    hidden = decoder.forward(tokens, chain(0, len(tokens)), pool_for(decoder))
    return decoder.logits(hidden.last)


def save_tokenizer(folder: Path) -> None:
    vocabulary = {token: index for index, token in enumerate(TOKENS)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[("h", "e")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in TOKENS[:3]])
    backend.save(str(folder / "tokenizer.json"))


def interleaved(rows: int, heads: int) -> np.ndarray:
    """Row numbers in the order GGUF converters give Llama's query and key projections."""
    return np.arange(rows).reshape(heads, 2, -1).swapaxes(1, 2).reshape(-1)


def gguf_name(name: str) -> str:
    parts = name.split(".")
    if parts[1] == "layers":
        return f"blk.{parts[2]}.{GGUF_NAMES['.'.join(parts[3:-1])]}.{parts[-1]}"
    return f"{GGUF_NAMES['.'.join(parts[:-1])]}.{parts[-1]}"


def random_blocks(shape: tuple[int, ...], kind: gguf.GGMLQuantizationType) -> np.ndarray:
    """Valid random bytes [rows, bytes] of a K-quant whose scales give values around 0.1."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    generator = np.random.default_rng(sum(shape))
    blocks = generator.integers(0, 256, (shape[0], shape[1] // block, size), dtype=np.uint8)
    at, scale = {"Q4_K": (slice(0, 4), 3e-4), "Q5_K": (slice(0, 4), 1.5e-4)}.get(
        kind.name, (slice(208, 210), 4e-5)
    )
    halves = np.full((*blocks.shape[:2], (at.stop - at.start) // 2), scale, dtype=np.float16)
    blocks[..., at] = halves.view(np.uint8)
    return blocks.reshape(shape[0], -1)


def quantise(values: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    if kind.name.endswith("_K"):
        return random_blocks(values.shape, kind)
    return gguf.quants.quantize(values, kind)


def write_gguf(
    path: Path,
    model: transformers.PreTrainedModel,
    kind: str = "F32",
    *,
    rope_divisors: Iterable[float] = (),
    metadata: dict[str, Any] | None = None,
) -> None:
    """Write `model` as a converter would; its matrices become what the file's types make them."""
    config = model.config
    arch = config.model_type
    quantisation = gguf.GGMLQuantizationType[kind]
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(model.model.layers[0].self_attn.head_dim)
    writer.add_value_length(model.model.layers[0].self_attn.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3] + [1] * (VOCAB - 3))
    writer.add_token_merges(["h e"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for key, value in (metadata or {}).items():
        writer.add_string(key, value) if isinstance(value, str) else writer.add_uint32(key, value)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, parameter in model.named_parameters():
        values = parameter.detach().numpy()
        if values.ndim == 1:
            writer.add_tensor(gguf_name(name), values)
            continue
        stored = quantise(values, quantisation)
        with torch.no_grad():
            parameter.copy_(torch.from_numpy(gguf.quants.dequantize(stored, quantisation)))
        if arch == "llama" and name.split(".")[-2] in heads:
            stored = stored[interleaved(len(stored), heads[name.split(".")[-2]])]
        writer.add_tensor(gguf_name(name), stored, raw_dtype=quantisation)
    if divisors := list(rope_divisors):
        writer.add_tensor("rope_freqs.weight", np.array(divisors, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
