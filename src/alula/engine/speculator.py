"""From what a user asks (`--speculation`, `--drafter`) to a drafter and how much it drafts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from alula.engine.lines import Lines
from alula.errors import UsageError
from alula.models.decoder import Decoder
from alula.speculation.tree import NO_DRAFT, TreeShape, parse_shape

if TYPE_CHECKING:
    from alula.engine.core import LaunchRecord
    from alula.engine.drafting import Drafting
    from alula.engine.runner import Emitted
    from alula.engine.scheduler import Step
    from alula.speculation.drafter import Drafter

NGRAM_CHAIN = TreeShape(depth=8, width=1, nodes=8)
EAGLE_CHAIN = TreeShape(depth=4, width=1, nodes=4)


class Speculator:
    """A drafter with a depth for every launch. Without a drafter: plain decoding."""

    def __init__(self, drafter: Drafter | None = None, reason: str = "off as asked") -> None:
        self._drafter = drafter
        self.shape = drafter.shape if drafter else NO_DRAFT
        self.keeps_keys = bool(drafter and drafter.taps)
        self.reason = reason
        """Why it speculates as it does, in one line."""

    def begin(self, lines: Lines, pages: int, page_size: int) -> Drafting | None:
        """Allocate the drafter's keys beside the target's and tie it to the lines."""
        if self._drafter is None:
            return None
        from alula.engine.drafting import Drafting

        self._drafter.allocate(pages, page_size, lines.device)
        return Drafting(self._drafter, lines, pages, page_size)

    def depth(self, step: Step) -> int:
        """Levels to draft for the launch after `step`."""
        return self.shape.depth

    def observe(self, record: LaunchRecord, rounds: list[tuple[int, Emitted]]) -> None:
        """Learn from a launch: its cost, and by sequence id what was accepted."""

    def forget(self, sequence_id: int) -> None:
        """A sequence has ended."""


def speculator(
    option: str, drafter: Path | None, decoder: Decoder, max_sequences: int
) -> Speculator:
    """Build what `option` asks for: off, ngram, auto, chain:K or tree:DEPTHxWIDTH:NODES.

    Raises UsageError for an option that is not understood or does not fit the drafter.
    """
    if option == "off" or option == "chain:0":
        return Speculator()
    if option == "ngram":
        return _ngram(NGRAM_CHAIN)
    shape = None if option == "auto" else parse_shape(option)
    if drafter is not None:
        return _eagle3(shape or EAGLE_CHAIN, drafter, decoder, max_sequences)
    if shape is None:
        return _ngram(NGRAM_CHAIN)
    if not shape.is_chain:
        raise UsageError(
            f"--speculation {option} needs a drafter",
            "prompt lookup finds one continuation, a chain; trees come from an EAGLE-3 drafter",
            "give --drafter PATH, or use chain:K, ngram or auto",
        )
    return _ngram(shape)


def _ngram(shape: TreeShape) -> Speculator:
    from alula.speculation.ngram import NgramDrafter

    return Speculator(NgramDrafter(shape), f"prompt lookup, {shape}")


def _eagle3(shape: TreeShape, folder: Path, decoder: Decoder, max_sequences: int) -> Speculator:
    from alula.speculation.eagle3 import Eagle3
    from alula.speculation.eagle3_checkpoint import load
    from alula.speculation.eagle3_drafter import Eagle3Drafter

    checkpoint, target = load(folder), decoder.shape
    checkpoint.fit(
        hidden_size=target.hidden_size, vocab_size=target.vocab_size, layers=target.layers
    )
    network = Eagle3(
        checkpoint,
        embed=decoder.embed,
        device=decoder.device,
        dtype=decoder.dtype if checkpoint.dtype is torch.float16 else None,
    )
    drafter = Eagle3Drafter(
        network, shape, taps=checkpoint.config.taps(target.layers), max_sequences=max_sequences
    )
    return Speculator(drafter, f"EAGLE-3 from {folder}, {shape}")
