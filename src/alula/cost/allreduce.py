"""How long an all-reduce takes: a flat figure, a measured table, or a link's arithmetic."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from alula.cost.interpolate import interpolate

# Entering and leaving a kernel inside a graph: assumed, about launch_us of data/constants.toml.
_KERNEL_S = 2e-6


class AllReduce(ABC):
    """Seconds by payload."""

    name: str
    source: str

    @abstractmethod
    def seconds(self, size_bytes: float) -> float:
        """One all-reduce of `size_bytes` on each rank."""

    def covers(self, size_bytes: float) -> bool:
        """Whether the figure for that size is not an extrapolation."""
        return size_bytes > 0


@dataclass(frozen=True)
class FlatAllReduce(AllReduce):
    """The same time whatever the size."""

    each_s: float
    name: str = "flat"
    source: str = "given"

    def seconds(self, size_bytes: float) -> float:
        """The given time; nothing for no payload."""
        return self.each_s if size_bytes > 0 else 0.0


@dataclass(frozen=True)
class TableAllReduce(AllReduce):
    """Measured points, straight lines between them.

    Below the first point its time holds (latency rules there); beyond the last one the last
    line goes on (bandwidth rules there).
    """

    points: tuple[tuple[float, float], ...]
    """Bytes and seconds, sizes rising."""
    name: str
    source: str

    def seconds(self, size_bytes: float) -> float:
        """Interpolated."""
        return interpolate(self.points, size_bytes)

    def covers(self, size_bytes: float) -> bool:
        """Whether a size lies within the table, give or take its first point."""
        return size_bytes <= self.points[-1][0]


@dataclass(frozen=True)
class LinkAllReduce(AllReduce):
    """The least a link allows, without contention: the best of one-shot, two-shot and ring.

    Kernel entry + exchanges × latency + bytes sent / bandwidth; a one-shot sends the payload to
    every peer at once, a two-shot scatters and gathers it, a ring does so in steps.
    """

    ranks: int
    latency_s: float
    bandwidth_bytes_s: float
    name: str
    source: str

    def seconds(self, size_bytes: float) -> float:
        """The fastest of the three."""
        peers = self.ranks - 1
        halves = 2 * peers / self.ranks * size_bytes
        ways = ((1, peers * size_bytes), (2, halves), (2 * peers, halves))
        return _KERNEL_S + min(
            exchanges * self.latency_s + sent / self.bandwidth_bytes_s for exchanges, sent in ways
        )
