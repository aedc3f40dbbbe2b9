"""A tiny random model in a folder, written without transformers: fast to load, any text is its."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SIZES = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
}


def write_tiny_model(folder: Path, seed: int = 0) -> Path:
    """A Llama of two layers whose vocabulary is the bytes and three special tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*SPECIAL, *alphabet])}
    _write_tokenizer(folder, vocabulary)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(vocabulary),
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "torch_dtype": "float32",
        **SIZES,
    }
    (folder / "config.json").write_text(json.dumps(config))
    save_file(_tensors(len(vocabulary), seed), folder / "model.safetensors")
    return folder


def _write_tokenizer(folder: Path, vocabulary: dict[str, int]) -> None:
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"chat_template": TEMPLATE, "bos_token": SPECIAL[1], "eos_token": SPECIAL[2]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def _tensors(vocabulary: int, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    h, f = SIZES["hidden_size"], SIZES["intermediate_size"]
    keys = SIZES["num_key_value_heads"] * SIZES["head_dim"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocabulary, h),
        "model.norm.weight": (h,),
    }
    for layer in range(SIZES["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        shapes |= {
            f"{prefix}.input_layernorm.weight": (h,),
            f"{prefix}.post_attention_layernorm.weight": (h,),
            f"{prefix}.self_attn.q_proj.weight": (h, h),
            f"{prefix}.self_attn.k_proj.weight": (keys, h),
            f"{prefix}.self_attn.v_proj.weight": (keys, h),
            f"{prefix}.self_attn.o_proj.weight": (h, h),
            f"{prefix}.mlp.gate_proj.weight": (f, h),
            f"{prefix}.mlp.up_proj.weight": (f, h),
            f"{prefix}.mlp.down_proj.weight": (h, f),
        }
    tensors = {}
    for name, shape in shapes.items():
        noise = torch.randn(shape, generator=generator)
        tensors[name] = 1 + 0.1 * noise if len(shape) == 1 else noise * 1.5 / shape[-1] ** 0.5
    return tensors
