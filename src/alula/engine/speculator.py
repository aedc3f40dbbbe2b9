"""From what a user asks (`--speculation`, `--drafter`) to a drafter and how much it drafts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from alula.engine.lines import Lines
from alula.errors import ModelError, UsageError
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
        self._drafting: Drafting | None = None
        self.reason = reason
        """Why it speculates as it does, in one line."""

    def begin(self, lines: Lines, pages: int, page_size: int) -> Drafting | None:
        """Allocate the drafter's keys beside the target's and tie it to the lines."""
        if self._drafter is None:
            return None
        from alula.engine.drafting import Drafting

        self._drafter.allocate(pages, page_size, lines.count, lines.device)
        self._drafting = Drafting(self._drafter, lines, pages, page_size)
        return self._drafting

    @property
    def draft_seconds(self) -> float:
        """What drafting one level takes, as measured so far."""
        return self._drafting.seconds_per_level if self._drafting else 0.0

    def depth(self, step: Step) -> int:  # noqa: ARG002
        """Levels to draft for the launch after `step`."""
        return self.shape.depth

    def observe(self, record: LaunchRecord, rounds: list[tuple[int, Emitted]]) -> None:
        """Learn from a launch: its cost, and by sequence id what was accepted."""

    def forget(self, sequence_id: int) -> None:
        """A sequence has ended."""


def asked_shape(option: str, drafter: Path | None) -> TreeShape:
    """The most that `option` (off, ngram, auto, chain:K, tree:DEPTHxWIDTH:NODES) drafts.

    No model is needed to tell. Raises UsageError for an option that is not understood or does not
    go with the drafter, ModelError where there is no drafter.
    """
    if drafter is not None:
        if option in ("off", "chain:0", "ngram"):
            raise UsageError(
                f"--speculation {option} has no use for a drafter",
                f"--drafter {drafter} would be ignored",
                "leave --drafter out, or use auto, chain:K or tree:DEPTHxWIDTH:NODES",
            )
        if not drafter.is_dir():
            raise ModelError(
                f"{drafter} is no drafter",
                "there is no such folder",
                "name the folder of an EAGLE-3 drafter",
            )
    if option == "off":
        return NO_DRAFT
    if option in ("ngram", "auto"):
        return NGRAM_CHAIN if drafter is None else EAGLE_CHAIN
    shape = parse_shape(option)
    if drafter is None and not shape.is_chain:
        raise UsageError(
            f"--speculation {option} needs a drafter",
            "prompt lookup finds one continuation, a chain; trees come from an EAGLE-3 drafter",
            "give --drafter PATH, or use chain:K, ngram or auto",
        )
    return shape


def speculator(option: str, drafter: Path | None, decoder: Decoder) -> Speculator:
    """Build what `option` asks for.

    Raises what `asked_shape` raises, and ModelError for a drafter that does not fit the target.
    """
    shape = asked_shape(option, drafter)
    if shape.depth == 0:
        return Speculator()
    if option == "auto":
        return _automatic(shape, drafter, decoder)
    if drafter is not None:
        return Speculator(_eagle3(shape, drafter, decoder), f"EAGLE-3 from {drafter}, {shape}")
    return Speculator(_ngram(shape), f"prompt lookup, {shape}")


def _automatic(shape: TreeShape, folder: Path | None, decoder: Decoder) -> Speculator:
    from alula.engine.automatic import AutomaticSpeculator, measure_rows

    cost = measure_rows(decoder)
    if folder is not None:
        drafter, what = _eagle3(shape, folder, decoder), f"EAGLE-3 from {folder}"
    else:
        drafter, what = _ngram(shape), "prompt lookup"
    return AutomaticSpeculator(drafter, cost, what)


def _ngram(shape: TreeShape) -> Drafter:
    from alula.speculation.ngram import NgramDrafter

    return NgramDrafter(shape)


def _eagle3(shape: TreeShape, folder: Path, decoder: Decoder) -> Drafter:
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
    return Eagle3Drafter(network, shape, taps=checkpoint.config.taps(target.layers))
