"""From work to time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from alula.cost.allreduce import AllReduce
from alula.cost.interpolate import interpolate
from alula.cost.layout import Layout
from alula.cost.shape import Component, ModelShape
from alula.cost.work import Load, Work, step_work


@dataclass(frozen=True)
class Constants:
    """What the model does not derive. `data/constants.toml` says where the values come from."""

    bandwidth_share: float
    """Of the nominal memory bandwidth, what kernels reach."""
    compute_share: float
    launch_s: float
    """From the end of one kernel to the useful work of the next, inside a CUDA graph."""
    fixed_s: float
    """Outside the layers: embedding, the head's launch, gather, sampling."""


@dataclass(frozen=True)
class KernelTable:
    """The measured time of one component's kernels, by rows, in seconds for each layer."""

    component: Component
    points: tuple[tuple[float, float], ...]

    def seconds(self, rows: int) -> float:
        """Of one layer, interpolated."""
        return interpolate(self.points, rows)


@dataclass(frozen=True)
class Speed:
    """What one GPU of a machine does in a second, and what an exchange takes."""

    bandwidth_bytes_s: float
    flops_s: float
    constants: Constants
    allreduce: AllReduce
    link_bytes_s: float
    """What one transfer between two GPUs reaches."""
    kernels: tuple[KernelTable, ...] = ()
    """Measured kernels, which are used as they are."""

    def memory_s(self, read_bytes: float) -> float:
        """Seconds to read that much."""
        return read_bytes / (self.constants.bandwidth_share * self.bandwidth_bytes_s)

    def compute_s(self, flops: float) -> float:
        """Seconds to compute that much."""
        return flops / (self.constants.compute_share * self.flops_s)


class Part(NamedTuple):
    """The time of one component, in seconds."""

    component: Component
    memory_s: float
    """Reading, or computing where that takes longer."""
    launch_s: float
    exchange_s: float
    measured_s: float = 0.0
    """Of kernels that were measured, in place of reading and latency."""

    @property
    def total_s(self) -> float:
        """All of it."""
        return self.memory_s + self.launch_s + self.exchange_s + self.measured_s


@dataclass(frozen=True)
class Step:
    """The time of one launch of the target."""

    parts: tuple[Part, ...]
    fixed_s: float

    @property
    def memory_s(self) -> float:
        """Reading weights and keys."""
        return sum(part.memory_s for part in self.parts)

    @property
    def launch_s(self) -> float:
        """Latency of kernels."""
        return sum(part.launch_s for part in self.parts)

    @property
    def exchange_s(self) -> float:
        """All-reduces and other exchanges."""
        return sum(part.exchange_s for part in self.parts)

    @property
    def measured_s(self) -> float:
        """Kernels that were measured."""
        return sum(part.measured_s for part in self.parts)

    @property
    def total_s(self) -> float:
        """All of it."""
        return sum(part.total_s for part in self.parts) + self.fixed_s


def step_time(shape: ModelShape, layout: Layout, load: Load, speed: Speed) -> Step:
    """The time of one launch of the target."""
    parts = timed(step_work(shape, layout, load), speed)
    tables = {table.component: table for table in speed.kernels}
    return Step(
        tuple(
            _as_measured(part, tables[part.component], shape, load)
            if part.component in tables
            else part
            for part in parts
        ),
        speed.constants.fixed_s,
    )


def _as_measured(part: Part, table: KernelTable, shape: ModelShape, load: Load) -> Part:
    """What was measured in place of reading and latency; exchanges are measured by themselves."""
    match part.component:
        case Component.DENSE:
            layers = shape.dense_layers
        case Component.EXPERTS | Component.ROUTER | Component.SHARED:
            layers = shape.expert_layers
        case Component.HEAD | Component.EMBEDDING:
            layers = 1
        case _:
            layers = shape.layers
    whole_s = layers * table.seconds(load.all_rows)
    return part._replace(memory_s=0.0, launch_s=0.0, measured_s=whole_s)


def timed(works: Iterable[Work], speed: Speed) -> tuple[Part, ...]:
    """Each component's time: the longer of reading and computing, plus latency and exchanges."""
    return tuple(
        Part(
            work.component,
            max(speed.memory_s(work.read_bytes), speed.compute_s(work.flops)),
            work.launches * speed.constants.launch_s,
            sum(each.count * speed.allreduce.seconds(each.size_bytes) for each in work.collectives),
        )
        for work in works
    )
