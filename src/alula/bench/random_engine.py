"""Engines over random weights: only the time they take means something."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from alula.bench.shapes import Subject
from alula.engine.core import Engine
from alula.engine.settings import Settings
from alula.engine.speculator import NGRAM_CHAIN, Speculator
from alula.errors import UsageError
from alula.models.decoder import Decoder
from alula.sampling.params import SamplingParams
from alula.shapes.decoder import DecoderShape
from alula.speculation.eagle3 import Eagle3
from alula.speculation.eagle3_checkpoint import random_checkpoint
from alula.speculation.eagle3_drafter import Eagle3Drafter
from alula.speculation.ngram import NgramDrafter
from alula.speculation.tree import NO_DRAFT, TreeShape, parse_shape

OFF = "off"


class NoText:
    """As much of a tokenizer as an engine needs."""

    def __init__(self, shape: DecoderShape) -> None:
        self.vocab_size = shape.vocab_size
        self.eos_ids: frozenset[int] = frozenset()

    def is_special(self, _token: int) -> bool:
        """No token is."""
        return False

    def token_bytes(self, _token: int) -> bytes:
        """One letter for all."""
        return b"a"


def full_engine(
    decoder: Decoder, speculator: Speculator, batch: int, context: int, longest: int
) -> Engine:
    """An engine with a whole batch of random prompts of `context` tokens waiting, whose answers
    end when a sequence has come to `longest` tokens.
    """
    spare = 2 * (1 + speculator.shape.nodes) + 64
    settings = Settings(
        max_sequences=batch,
        max_length=longest,
        cache_tokens=batch * (longest + spare) + spare,
        chunk_rows=4096,
        prefix_cache=False,
    )
    model: Any = SimpleNamespace(decoder=decoder, tokenizer=NoText(decoder.shape))
    engine = Engine(model, settings, speculator)
    generator = torch.Generator().manual_seed(0)
    for number in range(batch):
        prompt = torch.randint(decoder.shape.vocab_size, (context,), generator=generator)
        room = longest - context
        params = SamplingParams(temperature=0.0, max_tokens=room, seed=number, ignore_eos=True)
        engine.add(prompt.tolist(), params)
    return engine


def speculator(decoder: Decoder, words: str, network: Callable[[], Eagle3]) -> Speculator:
    """Prompt lookup, or EAGLE-3 by a network that all such contenders share."""
    shape = tree_shape(words)
    if shape == NO_DRAFT:
        return Speculator()
    if words == "ngram":
        return Speculator(NgramDrafter(shape), "as asked")
    shared = network()
    taps = shared.config.taps(decoder.shape.layers)
    return Speculator(Eagle3Drafter(shared, shape, taps=taps), "as asked")


def random_network(subject: Subject, decoder: Decoder) -> Eagle3:
    """A drafter of random weights in a body of the target's size."""
    target = decoder.shape
    checkpoint = random_checkpoint(
        hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        layers=target.layers,
        heads=target.heads,
        kv_heads=target.kv_heads,
        draft_vocab_size=subject.draft_vocabulary,
        dtype=decoder.dtype,
        intermediate_size=target.intermediate_size,
        head_dim=target.head_dim,
        max_positions=target.max_positions,
    )
    return Eagle3(
        checkpoint, embedding=decoder.embedding, device=decoder.device, dtype=decoder.dtype
    )


def tree_shape(words: str) -> TreeShape:
    """What is drafted at most. Raises UsageError where that cannot be measured."""
    if words == "auto":
        raise UsageError(
            "--speculation auto cannot be measured with random weights",
            "it follows acceptance, which means nothing there",
            "name a shape: chain:K or tree:DEPTHxWIDTH:NODES",
        )
    named = {OFF: NO_DRAFT, "ngram": NGRAM_CHAIN}
    return named[words] if words in named else parse_shape(words, named)
