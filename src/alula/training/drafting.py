"""What a new drafter is made of: its shape, its vocabulary, its first weights."""

from __future__ import annotations

import torch
from torch import Tensor

from alula.errors import UsageError
from alula.models.decoder import Decoder
from alula.ops.norm import Normed
from alula.shapes.decoder import DecoderShape
from alula.speculation.eagle3_checkpoint import Eagle3Checkpoint, vocabulary_map
from alula.speculation.eagle3_config import Eagle3Config
from alula.text.tokenizer import Tokenizer
from alula.training.network import DraftNetwork

_LEAST_LAYERS = 7  # below, the default layers would coincide


def drafter_config(target: DecoderShape, draft_vocab: int, max_positions: int) -> Eagle3Config:
    """One layer as wide as the target's. `max_positions`: the longest it was trained on."""
    layers = target.layers
    shallow = (max(1, layers // 3), max(1, 2 * layers // 3), layers)
    return Eagle3Config(
        hidden_size=target.hidden_size,
        intermediate_size=target.intermediate_size,
        heads=target.heads,
        kv_heads=target.kv_heads,
        head_dim=target.head_dim,
        vocab_size=target.vocab_size,
        draft_vocab_size=min(draft_vocab, target.vocab_size),
        rms_eps=target.rms_eps,
        max_positions=max_positions,
        target_hidden_size=target.hidden_size,
        rope_theta=target.rope.base,
        aux_layers=None if layers >= _LEAST_LAYERS else shallow,
    )


def draft_vocabulary(frequencies: Tensor, size: int, tokenizer: Tokenizer) -> Tensor:
    """The `size` most frequent tokens, all special ones among them, by ascending id: [Vd].

    `frequencies` [V] counts tokens that bear loss. Raises UsageError where the special ones alone
    do not fit.
    """
    special = [i for i in range(tokenizer.vocab_size) if tokenizer.is_special(i)]
    forced = sorted({*special, *tokenizer.eos_ids})
    if size < len(forced):
        raise UsageError(
            f"a draft vocabulary of {size} is too small",
            f"the model has {len(forced)} special tokens, which must be in it",
            "give --draft-vocab a larger number; 4096 to 32768 are usual",
        )
    ranked = frequencies.clone()
    ranked[forced] = torch.iinfo(torch.int64).max
    return ranked.argsort(descending=True, stable=True)[:size].sort().values


def initialise(network: DraftNetwork, decoder: Decoder, draft_ids: Tensor, seed: int) -> None:
    """Uniform weights as torch's linear layers have; norm and head are the target's own."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.dim() == 2:
                bound = parameter.shape[1] ** -0.5
                drawn = torch.rand(parameter.shape, generator=generator)
                parameter.copy_((2 * drawn - 1) * bound)
        network.norm.weight.copy_(decoder.norm)
        network.lm_head.weight.copy_(head_rows(decoder, draft_ids))


def head_rows(decoder: Decoder, ids: Tensor) -> Tensor:
    """The rows [Vd, h] of the target's head, whatever its weight is stored as."""
    unit = torch.eye(decoder.shape.hidden_size, device=decoder.device)
    return decoder.logits(Normed(unit))[:, ids.to(decoder.device)].T.float()


def as_checkpoint(network: DraftNetwork, draft_ids: Tensor, dtype: torch.dtype) -> Eagle3Checkpoint:
    """The network's weights and vocabulary map under the public names, on the CPU."""
    state = network.state_dict().items()
    tensors = {name: tensor.detach().to("cpu", dtype) for name, tensor in state}
    if len(draft_ids) < network.config.vocab_size:
        tensors |= vocabulary_map(draft_ids.cpu(), network.config.vocab_size)
    return Eagle3Checkpoint(network.config, tensors)


def from_checkpoint(checkpoint: Eagle3Checkpoint) -> DraftNetwork:
    """A network with a checkpoint's weights in fp32."""
    network = DraftNetwork(checkpoint.config)
    left_out = ("d2t", "t2d", "embed_tokens.weight")
    floats = {n: t.float() for n, t in checkpoint.tensors.items() if n not in left_out}
    network.load_state_dict(floats)
    return network
