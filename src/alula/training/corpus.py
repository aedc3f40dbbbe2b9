"""Conversations as token ids with a loss mask, in shards on disk and in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save
from torch import Tensor

from alula.errors import ModelError
from alula.models.home import whole_file
from alula.training.duplicates import SIGNATURE

SOURCES = ("free", "topic", "task", "prompts")
"""How the first query came about: the model's own, about a given topic, one of the tasks of
`seeds`, or a user's prompt."""
_MIXED = 64  # batches' worth of sequences that are sorted by length together


class Conversation(NamedTuple):
    """One conversation as the target reads it."""

    tokens: list[int]
    mask: list[bool]
    """Tokens that bear loss: the model's own answers."""
    held_out: bool
    temperature: float
    source: str
    signature: NDArray[np.uint32]
    """Of query and first answer, see `duplicates`."""


class Batch(NamedTuple):
    """Sequences padded on the right."""

    tokens: Tensor
    """[B, n] int64."""
    mask: Tensor
    """[B, n] bool, false on padding."""

    def to(self, device: torch.device) -> Batch:
        """The same on a device."""
        return Batch(self.tokens.to(device), self.mask.to(device))


@dataclass(frozen=True)
class Corpus:
    """S conversations of N tokens in all."""

    tokens: NDArray[np.int32]
    """[N]"""
    mask: NDArray[np.bool_]
    """[N]"""
    offsets: NDArray[np.int64]
    """[S + 1]"""
    held_out: NDArray[np.bool_]
    """[S]"""
    temperature: NDArray[np.float32]
    """[S]"""
    source: NDArray[np.uint8]
    """[S], index into SOURCES."""
    signatures: NDArray[np.uint32]
    """[S, P]"""

    def __len__(self) -> int:
        return len(self.held_out)

    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each conversation."""
        lengths: NDArray[np.int64] = np.diff(self.offsets)
        return lengths

    def answer_tokens(self, chosen: NDArray[np.int64]) -> int:
        """Tokens of these conversations that bear loss."""
        return sum(int(self.mask[self._span(i)].sum()) for i in chosen)

    def of(self, number: int) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Tokens and mask of one conversation."""
        span = self._span(number)
        return self.tokens[span], self.mask[span]

    def batch(self, chosen: Sequence[int]) -> Batch:
        """These conversations side by side."""
        parts = [self.of(number) for number in chosen]
        longest = max(len(tokens) for tokens, _ in parts)
        tokens = torch.zeros(len(parts), longest, dtype=torch.int64)
        mask = torch.zeros(len(parts), longest, dtype=torch.bool)
        for line, (ids, bears) in enumerate(parts):
            tokens[line, : len(ids)] = torch.from_numpy(ids.astype(np.int64))
            mask[line, : len(ids)] = torch.from_numpy(bears)
        return Batch(tokens, mask)

    def frequencies(self, vocab_size: int) -> Tensor:
        """How often each token bears loss outside of what is held out, [V] int64."""
        kept = self.mask & ~np.repeat(self.held_out, self.lengths())
        return torch.from_numpy(np.bincount(self.tokens[kept], minlength=vocab_size))

    def only(self, chosen: NDArray[np.int64]) -> Corpus:
        """The conversations `chosen` alone, in this order."""
        parts = [self.of(number) for number in chosen.tolist()]
        lengths = np.array([len(tokens) for tokens, _ in parts], np.int64)
        return Corpus(
            tokens=np.concatenate([tokens for tokens, _ in parts]),
            mask=np.concatenate([mask for _, mask in parts]),
            offsets=np.concatenate((np.zeros(1, np.int64), lengths.cumsum())),
            held_out=self.held_out[chosen],
            temperature=self.temperature[chosen],
            source=self.source[chosen],
            signatures=self.signatures[chosen],
        )

    def _span(self, number: int) -> slice:
        return slice(int(self.offsets[number]), int(self.offsets[number + 1]))


def batches(
    lengths: NDArray[np.int64], chosen: NDArray[np.int64], batch_tokens: int, seed: int
) -> list[list[int]]:
    """The conversations `chosen` in batches of at most `batch_tokens`, padding counted.

    Shuffled by `seed`; conversations of like length come together. A conversation longer than
    `batch_tokens` has a batch of its own.
    """
    dice = np.random.default_rng(seed)
    order = dice.permutation(chosen)
    mean = max(1, int(lengths[order].mean())) if len(order) else 1
    together = max(1, _MIXED * batch_tokens // mean)
    found: list[list[int]] = []
    for start in range(0, len(order), together):
        part = order[start : start + together]
        found += _fill(part[np.argsort(lengths[part], kind="stable")], lengths, batch_tokens)
    return [found[i] for i in dice.permutation(len(found))]


def _fill(
    ascending: NDArray[np.int64], lengths: NDArray[np.int64], batch_tokens: int
) -> Iterator[list[int]]:
    group: list[int] = []
    for number in ascending.tolist():
        if group and (len(group) + 1) * int(lengths[number]) > batch_tokens:
            yield group
            group = []
        group.append(number)
    if group:
        yield group


def in_memory(conversations: Sequence[Conversation]) -> Corpus:
    """A corpus of these conversations."""
    return _corpus([_arrays(conversations)])


def save_shard(path: Path, conversations: Sequence[Conversation]) -> None:
    """Write a shard whole or not at all. Raises MachineError where the disk is full."""
    arrays = _arrays(conversations)
    narrow = int(arrays["tokens"].max(initial=0)) < 2**16
    arrays["tokens"] = arrays["tokens"].astype(np.uint16 if narrow else np.int32)
    arrays["mask"] = np.packbits(arrays["mask"])
    content = save(arrays)
    with whole_file(path, len(content), "keep training data") as file:
        file.write(content)


def load_corpus(paths: Sequence[Path]) -> Corpus:
    """Read shards, of which there is at least one. Raises ModelError for one that is damaged."""
    return _corpus([_read(path) for path in paths])


def _arrays(conversations: Sequence[Conversation]) -> dict[str, NDArray[Any]]:
    flat = [token for each in conversations for token in each.tokens]
    mask = [bears for each in conversations for bears in each.mask]
    return {
        "tokens": np.array(flat, np.int32),
        "mask": np.array(mask, np.bool_),
        "lengths": np.array([len(each.tokens) for each in conversations], np.int32),
        "held_out": np.array([each.held_out for each in conversations], np.bool_),
        "temperature": np.array([each.temperature for each in conversations], np.float32),
        "source": np.array([SOURCES.index(each.source) for each in conversations], np.uint8),
        "signatures": _stacked([each.signature for each in conversations]),
    }


def _stacked(signatures: Sequence[NDArray[np.uint32]]) -> NDArray[np.uint32]:
    return np.array(signatures, np.uint32).reshape(len(signatures), SIGNATURE)


def _corpus(parts: Sequence[dict[str, NDArray[Any]]]) -> Corpus:
    def joined(name: str, dtype: type[np.generic]) -> NDArray[Any]:
        return np.concatenate([part[name].astype(dtype) for part in parts])

    return Corpus(
        tokens=joined("tokens", np.int32),
        mask=joined("mask", np.bool_),
        offsets=np.concatenate((np.zeros(1, np.int64), joined("lengths", np.int64).cumsum())),
        held_out=joined("held_out", np.bool_),
        temperature=joined("temperature", np.float32),
        source=joined("source", np.uint8),
        signatures=joined("signatures", np.uint32),
    )


def _read(path: Path) -> dict[str, NDArray[Any]]:
    try:
        arrays = dict(load_file(path))
        count = len(arrays["tokens"])
        arrays["mask"] = np.unpackbits(arrays["mask"], count=count)
    except (OSError, SafetensorError, KeyError) as error:
        raise ModelError(
            f"the training data in {path} cannot be read",
            str(error),
            "delete the folder and run the stage synthesise again",
        ) from error
    return arrays
