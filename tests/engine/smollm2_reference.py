"""transformers' greedy answers from the fp32 weights that alula keeps of SmolLM2."""

from __future__ import annotations

import torch
import transformers

from alula.models import dequantised
from alula.models.load import LoadedModel


def same_weights(model: LoadedModel) -> transformers.LlamaForCausalLM:
    shape, source = model.decoder.shape, model.source
    kept = dequantised.find(source.sha256 or dequantised.fingerprint(source.path), [])
    assert kept is not None
    config = transformers.LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        rms_norm_eps=shape.rms_eps,
        max_position_embeddings=shape.max_positions,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope.base},
        tie_word_embeddings=shape.tied_head,
    )
    theirs = transformers.LlamaForCausalLM(config).float().eval()
    weights = {name: kept.weights.get(name) for name in kept.weights.names()}
    missing, unexpected = theirs.load_state_dict(weights, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    return theirs


def greedy(
    theirs: transformers.LlamaForCausalLM, prompt: list[int], ends: list[int], tokens: int
) -> list[int]:
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        out = theirs.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=tokens,
            eos_token_id=ends,
            pad_token_id=ends[0],
        )
    return out[0, len(prompt) :].tolist()  # type: ignore[no-any-return]
