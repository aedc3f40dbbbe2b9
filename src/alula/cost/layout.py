"""How a model is spread over ranks, and what each of them then holds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from alula.cost.shape import Component, GroupedAttention, Matrix, ModelShape
from alula.errors import UsageError


@dataclass(frozen=True)
class Layout:
    """Tensor parallelism over `ranks`, with what differs from it."""

    ranks: int = 1
    attention: Literal["sharded", "replicated"] = "sharded"
    experts: Literal["tensor", "expert"] = "tensor"
    combine: Literal["all-reduce", "all-to-all"] = "all-reduce"
    fused_norm: bool = False
    """Whether the all-reduce also adds the residual and normalises."""
    launch_share: float = 1.0
    """Kernels launched, as a share of those of the unfused engine."""

    def copies(self, matrix: Matrix) -> int:
        """Ranks that hold the same part of a matrix."""
        if matrix.component is Component.ATTENTION and self.attention == "replicated":
            return self.ranks
        shards = self.ranks if matrix.shards is None else min(matrix.shards, self.ranks)
        return self.ranks // shards

    def kv_copies(self, shape: ModelShape) -> int:
        """Ranks that hold the same keys: all of a latent, else those that share a head."""
        match shape.attention:
            case GroupedAttention(kv_heads=kv_heads) if self.attention == "sharded":
                return self.ranks // min(kv_heads, self.ranks)
            case _:
                return self.ranks


class Held(NamedTuple):
    """What one rank keeps of a matrix."""

    matrix: Matrix
    copies: int
    bytes_per_gpu: float


LAYOUTS = ("tp", "replicated-attention", "ep", "ep-all-to-all")


def layout_named(name: str, ranks: int) -> Layout:
    """One of `LAYOUTS` over `ranks`. Raises UsageError for another name."""
    match name:
        case "tp":
            return Layout(ranks)
        case "replicated-attention":
            return Layout(ranks, attention="replicated")
        case "ep":
            return Layout(ranks, experts="expert")
        case "ep-all-to-all":
            return Layout(ranks, experts="expert", combine="all-to-all")
    raise UsageError(
        f"unknown layout {name!r}", f"the layouts are {', '.join(LAYOUTS)}", "name one of these"
    )


def held(shape: ModelShape, layout: Layout) -> tuple[Held, ...]:
    """What each rank keeps; all keep equally much. Raises UsageError where they cannot."""
    check(shape, layout)
    parts = []
    for matrix in shape.matrices():
        copies = layout.copies(matrix)
        parts.append(Held(matrix, copies, matrix.stored_bytes * copies / layout.ranks))
    return tuple(parts)


def weights_per_gpu(shape: ModelShape, layout: Layout) -> float:
    """Bytes of weights on each rank."""
    return sum(part.bytes_per_gpu for part in held(shape, layout))


def kv_per_gpu(shape: ModelShape, layout: Layout, tokens: int) -> float:
    """Bytes of keys and values of so many tokens on each rank."""
    return tokens * shape.kv_bytes_per_token * layout.kv_copies(shape) / layout.ranks


def check(shape: ModelShape, layout: Layout, gpus: int = 16) -> None:
    """Refuse with a UsageError what cannot be divided, and say what can on so many GPUs."""
    if (problem := _problem(shape, layout)) is None:
        return
    possible = " or ".join(str(ranks) for ranks in possible_ranks(shape, layout, gpus))
    raise UsageError(
        f"{shape.name} cannot be spread over {layout.ranks} ranks in this layout",
        problem,
        f"take --tp {possible}" if possible else "take --layout tp",
    )


def possible_ranks(shape: ModelShape, layout: Layout, most: int = 16) -> list[int]:
    """Numbers of ranks, up to `most`, that this layout can use."""
    numbers = range(1, most + 1)
    return [n for n in numbers if _problem(shape, replace(layout, ranks=n)) is None]


def _problem(shape: ModelShape, layout: Layout) -> str | None:
    ranks = layout.ranks
    if shape.dense_layers and shape.dense_width % ranks:
        return f"an MLP {shape.dense_width} wide cannot be divided by {ranks}"
    if layout.attention == "sharded" and (problem := _heads_problem(shape, ranks)):
        return problem
    return _experts_problem(shape, layout)


def _heads_problem(shape: ModelShape, ranks: int) -> str | None:
    attention = shape.attention
    if attention.heads % ranks:
        return f"{attention.heads} attention heads cannot be divided by {ranks}"
    if isinstance(attention, GroupedAttention):
        few, many = sorted((attention.kv_heads, ranks))
        if many % few:
            return f"{attention.kv_heads} key-value heads cannot be shared by {ranks} ranks"
    return None


def _experts_problem(shape: ModelShape, layout: Layout) -> str | None:
    experts, ranks = shape.experts, layout.ranks
    if experts is None:
        return "it has no experts to spread" if layout.experts == "expert" else None
    if layout.experts == "tensor":
        divides = experts.width % ranks == 0
        return None if divides else f"experts {experts.width} wide cannot be divided by {ranks}"
    if experts.count < ranks:
        return f"{ranks} ranks are more than its {experts.count} experts"
    if experts.count % ranks:
        return f"{experts.count} experts cannot be divided by {ranks}"
    return None
