"""What one launch must do on each GPU: bytes, operations, kernels and collectives."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from alula.cost.experts import busiest, distinct
from alula.cost.layout import Layout, held
from alula.cost.shape import Component, LatentAttention, Matrix, ModelShape

ACTIVATION_BYTES = 2

# Kernels of an engine that fuses little, counted as SGLang and vLLM launch them.
_LATENT_KERNELS = 9  # qkv_a, two norms, q_b, absorbed q, rope, KV write, absorbed v, o
_GROUPED_KERNELS = 4  # qkv, rope, KV write, o
_KV_KERNELS = 2  # attention over splits of the context, and their combination
_DENSE_KERNELS = 3  # gate and up, activation, down
_ROUTER_KERNELS = 2  # logits, top-k
_EXPERT_KERNELS = 6  # align, sort, gate and up, activation, down, weighted sum
_SHARED_KERNELS = 4  # gate and up, activation, down, addition


@dataclass(frozen=True)
class Load:
    """What a launch holds: rows of each of `batch` sequences, with `context` tokens before them."""

    rows: int = 1
    batch: int = 1
    context: int = 1024

    @property
    def all_rows(self) -> int:
        """Rows of all sequences."""
        return self.rows * self.batch


@dataclass(frozen=True)
class Collective:
    """An exchange between all ranks, `count` times."""

    kind: str
    size_bytes: int
    count: int


class Work(NamedTuple):
    """What one component does on the GPU that has most of it to do."""

    component: Component
    read_bytes: float
    flops: float
    launches: float = 0.0
    collectives: tuple[Collective, ...] = ()


def step_work(shape: ModelShape, layout: Layout, load: Load) -> tuple[Work, ...]:
    """One launch of the target, component by component.

    The embedding, the head's launch, its gather and sampling are outside the layers: their bytes
    are here, their latency is the fixed part of a step.
    """
    parts = held(shape, layout)
    reads: dict[Component, float] = {}
    flops: dict[Component, float] = {}
    for matrix, copies, kept_bytes in parts:
        component = matrix.component
        share = _share_read(shape, layout, matrix, load)
        reads[component] = reads.get(component, 0.0) + kept_bytes * share
        met = 2.0 * load.all_rows * matrix.weights * copies / layout.ranks
        met *= _share_met(shape, layout, matrix, load)
        flops[component] = flops.get(component, 0.0) + met
    reads[Component.KV], flops[Component.KV] = _kv(shape, layout, load)
    launches = _launches(shape, layout)
    collectives = _collectives(shape, layout, load)
    return tuple(
        Work(
            component,
            reads[component],
            flops[component],
            launches.get(component, 0.0),
            collectives.get(component, ()),
        )
        for component in Component
        if component in reads
    )


def _share_read(shape: ModelShape, layout: Layout, matrix: Matrix, load: Load) -> float:
    """The part of what a rank keeps that the launch reads."""
    match matrix.component:
        case Component.EMBEDDING:
            return min(load.all_rows / shape.vocab, 1.0)
        case Component.EXPERTS:
            return _experts_read(shape, layout, load)
    return 1.0


def _experts_read(shape: ModelShape, layout: Layout, load: Load) -> float:
    experts = shape.experts
    assert experts is not None
    if layout.experts == "tensor" or layout.ranks == 1:
        return distinct(experts.count, experts.active, load.all_rows) / experts.count
    most = busiest(experts.count, experts.active, load.all_rows, layout.ranks)
    return most * layout.ranks / experts.count


def _share_met(shape: ModelShape, layout: Layout, matrix: Matrix, load: Load) -> float:
    """The part of a matrix that a row multiplies with."""
    if matrix.component is Component.EMBEDDING:
        return 0.0
    if matrix.component is not Component.EXPERTS or shape.experts is None:
        return 1.0
    active = shape.experts.active / shape.experts.count
    if layout.experts == "tensor" or layout.ranks == 1:
        return active
    read = _experts_read(shape, layout, load)
    even = distinct(shape.experts.count, shape.experts.active, load.all_rows) / shape.experts.count
    return active * read / even


def _kv(shape: ModelShape, layout: Layout, load: Load) -> tuple[float, float]:
    """Bytes and operations: each sequence's keys are read once, for all its rows."""
    share = layout.kv_copies(shape) / layout.ranks
    keys = load.batch * (load.context + load.rows)
    heads = 1.0 if layout.attention == "replicated" else 1.0 / layout.ranks
    met = shape.layers * shape.attention.flops_per_key() * heads
    return keys * shape.kv_bytes_per_token * share, keys * load.rows * met


def _launches(shape: ModelShape, layout: Layout) -> dict[Component, float]:
    norms = 2 * shape.layers
    if layout.fused_norm:
        norms -= sum(c.count for c in _exchanges(shape, layout, 0) if c.kind == "all-reduce")
    latent = isinstance(shape.attention, LatentAttention)
    qk_norm = getattr(shape.attention, "qk_norm", False)
    attention = _LATENT_KERNELS if latent else _GROUPED_KERNELS + qk_norm
    kernels = {
        Component.NORM: norms,
        Component.ATTENTION: attention * shape.layers,
        Component.KV: _KV_KERNELS * shape.layers,
        Component.DENSE: _DENSE_KERNELS * shape.dense_layers,
        Component.EXPERTS: _EXPERT_KERNELS * shape.expert_layers,
        Component.ROUTER: _ROUTER_KERNELS * shape.expert_layers,
    }
    if shape.experts is not None and shape.experts.shared:
        kernels[Component.SHARED] = _SHARED_KERNELS * shape.expert_layers
    return {component: number * layout.launch_share for component, number in kernels.items()}


def _collectives(
    shape: ModelShape, layout: Layout, load: Load
) -> dict[Component, tuple[Collective, ...]]:
    size = load.all_rows * shape.hidden * ACTIVATION_BYTES
    after_attention, after_dense, after_experts = _exchanges(shape, layout, size)
    found = {
        Component.ATTENTION: after_attention,
        Component.DENSE: after_dense,
        Component.EXPERTS: after_experts,
    }
    return {component: (each,) for component, each in found.items() if each.count}


def _exchanges(
    shape: ModelShape, layout: Layout, size_bytes: int
) -> tuple[Collective, Collective, Collective]:
    """After attention, after a dense MLP, around experts."""
    alone = layout.ranks == 1
    spread = layout.experts == "expert" and layout.combine == "all-to-all"
    around = Collective("all-to-all", size_bytes, 2) if spread else None
    experts = around or Collective("all-reduce", size_bytes, 1)
    whole = layout.attention == "replicated"
    return (
        Collective("all-reduce", size_bytes, 0 if alone or whole else shape.layers),
        Collective("all-reduce", size_bytes, 0 if alone else shape.dense_layers),
        replace(experts, count=0 if alone else experts.count * shape.expert_layers),
    )
