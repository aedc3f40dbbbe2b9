"""From work to time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from alula.cost.allreduce import AllReduce
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
class Speed:
    """What one GPU of a machine does in a second, and what an exchange takes."""

    bandwidth_bytes_s: float
    flops_s: float
    constants: Constants
    allreduce: AllReduce
    link_bytes_s: float
    """What one transfer between two GPUs reaches."""

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

    @property
    def total_s(self) -> float:
        """All of it."""
        return self.memory_s + self.launch_s + self.exchange_s


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
    def total_s(self) -> float:
        """All of it."""
        return self.memory_s + self.launch_s + self.exchange_s + self.fixed_s


def step_time(shape: ModelShape, layout: Layout, load: Load, speed: Speed) -> Step:
    """The time of one launch of the target."""
    works = step_work(shape, layout, load)
    return Step(timed(works, speed), speed.constants.fixed_s)


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
