"""From what a user asks (`--speculation`, `--drafter`) to a drafter and how much it drafts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import torch

from alula.engine.lines import Lines
from alula.errors import UsageError
from alula.models.decoder import Decoder
from alula.speculation.shipped import called, shipped
from alula.speculation.tree import NO_DRAFT, TreeShape, parse_shape

if TYPE_CHECKING:
    from alula.engine.drafting import Drafting
    from alula.engine.events import LaunchRecord
    from alula.engine.rounds import Rounds
    from alula.engine.runner import Emitted
    from alula.engine.scheduler import Step
    from alula.speculation.drafter import Drafter
    from alula.speculation.eagle3_checkpoint import Eagle3Checkpoint

NGRAM_CHAIN = TreeShape(depth=8, width=1, nodes=8)
EAGLE_CHAIN = TreeShape(depth=5, width=1, nodes=5)
_NAMED: Mapping[str, TreeShape | None] = MappingProxyType(
    {"off": NO_DRAFT, "ngram": NGRAM_CHAIN, "auto": None}
)


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

    def abandon(self) -> None:
        """Launches under way have failed; nothing of them will be observed."""

    def measure(self, rounds: Rounds, most: int) -> None:
        """Rounds of up to `most` sequences are launched through `rounds` here."""


class Asked(NamedTuple):
    """What a user asks for, as far as it can be judged without a model."""

    shape: TreeShape | None
    """None: as deep as pays."""
    checkpoint: Eagle3Checkpoint | None
    """None: prompt lookup."""
    drafter: Path | None
    """Where the checkpoint is from."""


def drafter_for(option: str, model: str, given: Path | None) -> Path | None:
    """The drafter that is given, else the one that comes with `model` where `option` needs one."""
    return given or (shipped(model) if needs_drafter(option) else None)


def needs_drafter(option: str) -> bool:
    """Whether a drafter has a part in an option of `--speculation`."""
    return option != "ngram" and _shape(option) != NO_DRAFT


def _shape(option: str) -> TreeShape | None:
    return _NAMED[option] if option in _NAMED else parse_shape(option, _NAMED)


def asked(option: str, drafter: Path | None) -> Asked:
    """Read an option, off, ngram, auto, chain:K or tree:DEPTHxWIDTH:NODES, and a drafter's folder.

    Raises UsageError for an option that is not understood, lacks a drafter or has no use for one,
    and ModelError for a drafter that is missing or damaged.
    """
    shape = _shape(option)
    if drafter is None:
        if shape is not None and not shape.is_chain:
            raise UsageError(
                f"--speculation {option} needs a drafter",
                "prompt lookup finds one continuation, a chain; trees come from an EAGLE-3 drafter",
                "give --drafter PATH, or use chain:K, ngram or auto",
            )
        return Asked(shape, None, None)
    if not needs_drafter(option):
        raise UsageError(
            f"--speculation {option} has no use for a drafter",
            f"--drafter {drafter} would be ignored",
            "leave --drafter out, or use auto, chain:K or tree:DEPTHxWIDTH:NODES",
        )
    from alula.speculation.eagle3_checkpoint import load

    return Asked(shape, load(drafter), drafter)


def speculator(asked: Asked, decoder: Decoder) -> Speculator:
    """Build what is asked for. Raises ModelError for a drafter that does not fit the target."""
    if asked.shape == NO_DRAFT:
        return Speculator()
    if asked.checkpoint is None or asked.drafter is None:
        shape, what = asked.shape or NGRAM_CHAIN, "prompt lookup"
        drafter = _ngram(shape)
    else:
        shape, what = asked.shape or EAGLE_CHAIN, f"EAGLE-3, {called(asked.drafter)}"
        drafter = _eagle3(shape, asked.checkpoint, decoder)
    if asked.shape is not None:
        return Speculator(drafter, f"{what}, {shape}")
    from alula.engine.automatic import AutomaticSpeculator, measure_rows

    return AutomaticSpeculator(drafter, measure_rows(decoder), what)


def _ngram(shape: TreeShape) -> Drafter:
    from alula.speculation.ngram import NgramDrafter

    return NgramDrafter(shape)


def _eagle3(shape: TreeShape, checkpoint: Eagle3Checkpoint, decoder: Decoder) -> Drafter:
    from alula.speculation.eagle3 import Eagle3
    from alula.speculation.eagle3_drafter import Eagle3Drafter

    target = decoder.shape
    checkpoint.fit(
        hidden_size=target.hidden_size, vocab_size=target.vocab_size, layers=target.layers
    )
    network = Eagle3(
        checkpoint,
        embedding=decoder.embedding,
        device=decoder.device,
        dtype=decoder.dtype if checkpoint.dtype is torch.float16 else None,
    )
    return Eagle3Drafter(network, shape, taps=checkpoint.config.taps(target.layers))
