"""The forms an op comes in, and the one that a device gets."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, Protocol

import torch
from torch import Tensor

from alula.ops.advance import Advanced, Mailbox
from alula.ops.attention import Heads, Plan
from alula.ops.catch_up import Committed, Followed
from alula.ops.cross_entropy import Compared
from alula.ops.expand import Candidates, Drafts, Frontier, Growth, Roots
from alula.ops.layer import Store, Stream
from alula.ops.linear import DenseWeight, Weight
from alula.ops.lines import LineState
from alula.ops.norm import Norm, Normed
from alula.ops.pair import Pairs, PairWeights
from alula.ops.prepare import Prepared
from alula.ops.restrict import Restricted
from alula.ops.rope import Rotation
from alula.ops.rows import Rows
from alula.ops.sample import Find, Sample
from alula.ops.store import HeadNorms, Places
from alula.ops.walk import Path


class Kernels(Protocol):
    """One form of every op, a module; the reference's functions say what each computes."""

    @property
    def name(self) -> str:
        """What to call it in a message."""

    def lay_out(self, weight: DenseWeight) -> Weight:
        """The weight as this form's linear wants it; the original is not kept."""

    def prepare(
        self,
        at: Tensor,
        state: LineState,
        angles: Rotation,
        page_size: int,
        nodes: int,
        depth: int,
        *,
        has_tail: bool,
    ) -> Prepared:
        """See `prepare.prepare`."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See `norm.rms_norm`."""

    def add_rms_norm(
        self, x: Tensor, change: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """See `norm.add_rms_norm`."""

    def silu_and_mul(self, gate_up: Tensor) -> Tensor:
        """See `activation.silu_and_mul`."""

    def rotate(self, x: Tensor, rotation: Rotation) -> Tensor:
        """See `rope.rotate`."""

    def rotate_and_store(
        self,
        projected: Tensor,
        heads: Heads,
        rotation: Rotation,
        keys: Tensor,
        values: Tensor,
        at: Places,
        norms: HeadNorms | None = None,
    ) -> Tensor:
        """See `store.rotate_and_store`."""

    def embed(
        self, ids: Tensor, table: Tensor, dtype: torch.dtype, norm: Norm, changes: int
    ) -> Stream:
        """See `layer.embed`."""

    def add(self, stream: Stream, inner: Tensor, weight: Weight, norm: Norm) -> Stream:
        """See `layer.add`."""

    def project(self, normed: Normed, weight: Weight, dtype: torch.dtype) -> Tensor:
        """See `layer.project`."""

    def project_heads(
        self,
        normed: Normed,
        weight: Weight,
        heads: Heads,
        rotation: Rotation,
        store: Store,
        norms: HeadNorms | None = None,
    ) -> Tensor:
        """See `layer.project_heads`."""

    def gate(self, normed: Normed, gate_up: Weight) -> Tensor:
        """See `layer.gate`."""

    def plan(self, rows: Rows, page_size: int, heads: Heads, window: int | None = None) -> Plan:
        """See `attention.plan`."""

    @property
    def sample(self) -> Sample | None:
        """See `sampling.sampler`, which has the reference; None for a form without its own."""

    @property
    def find(self) -> Find | None:
        """The same but for the choice, which `advance` makes; None as `sample`."""

    def advance(
        self,
        at: Tensor,
        state: LineState,
        choice: Any,
        tokens: Tensor,
        parents: Tensor,
        drafted: Tensor,
        mailbox: Mailbox | None = None,
    ) -> Advanced:
        """See `advance.advance`; the choice may be what the form's own `find` gave."""

    def settle(
        self,
        at: Tensor,
        state: LineState,
        path: Path,
        drafted: Tensor,
        mailbox: Mailbox | None = None,
    ) -> Advanced:
        """See `advance.settle`."""

    def walk(self, tokens: Tensor, parents: Tensor, choice: Tensor) -> Path:
        """See `walk.walk`."""

    def commit(
        self, store: Tensor, page_table: Tensor, last: Tensor, path: Tensor, counts: Tensor
    ) -> None:
        """See `commit.commit`."""

    def catch_up(
        self,
        aux: tuple[Tensor, ...],
        committed: Committed,
        page_features: Tensor,
        page_size: int,
    ) -> Followed:
        """See `catch_up.catch_up`."""

    def pair(
        self,
        hidden: Tensor,
        sources: Tensor | None,
        tokens: Tensor,
        positions: Tensor,
        weights: PairWeights,
    ) -> Pairs:
        """See `pair.pair`."""

    def grow(
        self,
        logits: Tensor,
        roots: Roots,
        growth: Growth,
        found: Candidates,
        frontier: Frontier | None,
    ) -> Frontier:
        """See `expand.grow`."""

    def finish(
        self,
        logits: Tensor,
        roots: Roots,
        growth: Growth,
        found: Candidates,
        frontier: Frontier | None,
        nodes: int,
        drafts: Drafts,
    ) -> None:
        """See `expand.finish`."""

    def restrict(self, logits: Tensor, ids: Tensor, dtype: torch.dtype) -> Restricted:
        """See `restrict.restrict`."""

    def cross_entropy(self, logits: Tensor, wanted: Tensor, entries: Tensor) -> Compared:
        """See `cross_entropy.cross_entropy`."""

    def cross_entropy_gradient(
        self, logits: Tensor, wanted: Tensor, entries: Tensor, total: Tensor, factors: Tensor
    ) -> Tensor:
        """See `cross_entropy.cross_entropy_gradient`."""

    def silu_and_mul_gradient(self, gate_up: Tensor, gradient: Tensor) -> Tensor:
        """See `activation.silu_and_mul_gradient`."""

    def attend_own(
        self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float
    ) -> None:
        """See `own_key.attend_own`."""

    def attend_own_gradient(
        self,
        gradient: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        scale: float,
        q_gradient: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """See `own_key.attend_own_gradient`."""


def kernels_for(device: torch.device) -> Kernels:
    """Triton's form on a GPU where Triton is installed, else the reference."""
    if device.type == "cuda" and find_spec("triton"):
        import alula.ops.triton as forms

        return forms
    from alula.ops import reference

    return reference
