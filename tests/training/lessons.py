"""A small corpus that the tiny model wrote, for tests of fitting."""

from __future__ import annotations

from pathlib import Path

import torch

from alula.models.load import LoadedModel
from alula.models.progress import silent
from alula.training.corpus import Conversation, Corpus, load_corpus, save_shard
from alula.training.duplicates import signature
from alula.training.writer import Ask, EngineWriter, answers


def corpus(model: LoadedModel, folder: Path, count: int = 24, tokens: int = 24) -> Corpus:
    """Answers to random prompts, every fourth held out, half of them greedy."""
    save_shard(folder / "shard-0000.safetensors", conversations(model, count, tokens))
    return load_corpus([folder / "shard-0000.safetensors"])


def conversations(model: LoadedModel, count: int, tokens: int) -> list[Conversation]:
    dice = torch.Generator().manual_seed(5)
    asks = [
        Ask(
            prompt=torch.randint(3, 259, (int(length),), generator=dice).tolist(),
            temperature=0.0 if number % 8 < 4 else 0.8,
            seed=number,
            max_tokens=tokens,
        )
        for number, length in enumerate(torch.randint(2, 12, (count,), generator=dice))
    ]
    written = answers(EngineWriter(model, 4, 128), asks, silent)
    return [
        Conversation(
            tokens=ask.prompt + answer,
            mask=[False] * len(ask.prompt) + [True] * len(answer),
            held_out=number % 4 == 0,
            temperature=ask.temperature,
            source="free",
            signature=signature(answer),
        )
        for number, (ask, answer) in enumerate(zip(asks, written, strict=True))
    ]
