"""What the sampler of a form is told. The reference is `sampling.sampler`, a floor above."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor


class LineSettings(NamedTuple):
    """The settings of S lines, on the device, [S] each unless said otherwise."""

    temperature: Tensor
    """fp32, 0 for the likeliest token."""
    top_k: Tensor
    """int64, the vocabulary's size where off."""
    top_p: Tensor
    """fp32, 1 where off."""
    log_min_p: Tensor
    """fp32, -inf where off."""
    key: Tensor
    """int64."""
    repetition: Tensor
    """fp32, 1 where off."""
    presence: Tensor
    """fp32, 0 where off."""
    frequency: Tensor
    """fp32, 0 where off."""
    prompt_seen: Tensor | None
    """[S, V] bool."""
    output_counts: Tensor | None
    """[S, V] int32; there if `prompt_seen` is."""
    bias: Tensor | None
    """[S, V] fp32."""


class Wants(NamedTuple):
    """What the rows of a launch ask for at most, as far as the host knows; more is never wrong."""

    noise: bool
    """Some row is above temperature 0."""
    filters: int
    """Filters, of top_k and top_p, that one row has on at a time."""
    adjustments: bool
    """Some row has penalties or a bias."""


EVERYTHING = Wants(noise=True, filters=2, adjustments=True)


class Found(NamedTuple):
    """What a form's sampler found in chunks of R rows, for its `advance` to put together."""

    temperature: Tensor | None = None
    """Of every line, as in `LineSettings`."""
    best_values: Tensor | None = None
    """[R, chunks] fp32, largest logits."""
    best_ids: Tensor | None = None
    """[R, chunks] int32, lowest ids that have them."""
    drawn_values: Tensor | None = None
    """[R, chunks] fp32, largest noisy scores; None where no row asks for noise."""
    drawn_ids: Tensor | None = None
    """[R, chunks] int32."""


class Sample(Protocol):
    """A form's sampler."""

    def __call__(
        self,
        logits: Tensor,
        lines: Tensor,
        positions: Tensor,
        path: Tensor,
        settings: LineSettings,
        wants: Wants,
    ) -> Tensor:
        """See `sampling.sampler.sample`."""


class Find(Protocol):
    """A form's sampler, but for its last launch."""

    def __call__(
        self,
        logits: Tensor,
        lines: Tensor,
        positions: Tensor,
        path: Tensor,
        settings: LineSettings,
        wants: Wants,
    ) -> Found:
        """See `sampling.sampler.sample`."""
