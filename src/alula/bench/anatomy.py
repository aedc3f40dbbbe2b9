"""A round's anatomy: microseconds and launches by kind of work, and what is lost between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from alula.bench.kinds import GAPS, KINDS, kinds
from alula.errors import MachineError

_REPLAYS = 5
_ATTEMPTS = 3


class Kernel(NamedTuple):
    """One launch on the device, as the profiler saw it."""

    name: str
    start: float
    """Microseconds."""
    us: float


class Part(NamedTuple):
    """All of a round's kernels of one kind."""

    kind: str
    us: float
    launches: int
    kernels: dict[str, float]
    """Microseconds by name, the longest first."""


@dataclass(frozen=True)
class Anatomy:
    """Where one round's time goes."""

    name: str
    us: float
    """Of one round, unprofiled."""
    parts: list[Part]
    """In the order of `KINDS`; those that do not occur are left out."""
    limit_us: float
    """What reading a plain step's bytes takes at the bandwidth that a sum reaches."""

    @property
    def launches(self) -> int:
        """Kernels of one round."""
        return sum(part.launches for part in self.parts)

    @property
    def of_limit(self) -> float:
        """The fraction of the memory limit that the round reaches."""
        return self.limit_us / self.us

    def as_json(self) -> dict[str, Any]:
        """For a result file."""
        return {
            "name": self.name,
            "us": round(self.us, 1),
            "launches": self.launches,
            "memory_limit_us": round(self.limit_us, 1),
            "of_memory_limit": round(self.of_limit, 4),
            "parts": [
                {**part._asdict(), "us": round(part.us, 1)}
                | {"kernels": {name: round(us, 1) for name, us in part.kernels.items()}}
                for part in self.parts
            ],
        }


def dissect(name: str, rounds: Sequence[Sequence[Kernel]], us: float, limit_us: float) -> Anatomy:
    """Sum up the kernels of several like rounds: of each kernel its median time.

    `us`: what one round takes without the profiler, which slows the launching but not the kernels;
    what the kernels do not account for is lost between them.
    """
    names = [kernel.name for kernel in rounds[0]]
    times = [median(same) for same in zip(*[[k.us for k in one] for one in rounds], strict=True)]
    of_kind: dict[str, list[tuple[str, float]]] = {kind: [] for kind in KINDS}
    for kind, kernel, taken in zip(kinds(names), names, times, strict=True):
        of_kind[kind].append((kernel, taken))
    parts = [_part(kind, kernels) for kind, kernels in of_kind.items() if kernels]
    gaps = Part(GAPS, max(us - sum(times), 0.0), 0, {})
    return Anatomy(name, us, [*parts, gaps], limit_us)


def _part(kind: str, kernels: list[tuple[str, float]]) -> Part:
    by_name: dict[str, float] = {}
    for name, us in kernels:
        by_name[name] = by_name.get(name, 0.0) + us
    longest = dict(sorted(by_name.items(), key=lambda item: -item[1]))
    return Part(kind, sum(by_name.values()), len(kernels), longest)


def watch(replay: Callable[[], object], replays: int = _REPLAYS) -> list[list[Kernel]]:
    """Replay a round under the profiler; the kernels of each replay, in order, with the time that
    each takes behind those before it.

    Raises MachineError where the profiler does not see the same kernels in all of them.
    """
    replay()
    torch.cuda.synchronize()
    for _ in range(_ATTEMPTS - 1):
        with suppress(MachineError):  # the profiler may miss what runs while it begins
            return parted(_seen(replay, replays), replays)
    return parted(_seen(replay, replays), replays)


def _seen(replay: Callable[[], object], replays: int) -> list[Kernel]:
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as watched:
        for _ in range(replays):
            replay()
        torch.cuda.synchronize()
    return [
        Kernel(event.name, event.time_range.start, event.time_range.elapsed_us())
        for event in watched.events()
        if event.device_type.name == "CUDA"
    ]


def parted(seen: Sequence[Kernel], replays: int) -> list[list[Kernel]]:
    """The kernels of each of several like replays, and their own times.

    Raises MachineError where they are not alike.
    """
    kernels = sorted(seen, key=lambda kernel: kernel.start)
    size = len(kernels) // replays
    rounds = [kernels[n * size : (n + 1) * size] for n in range(replays)]
    names = [[kernel.name for kernel in one] for one in rounds]
    if not size or size * replays != len(kernels) or any(one != names[0] for one in names):
        raise MachineError(
            "the round cannot be taken apart",
            f"the profiler saw {len(kernels)} kernels in {replays} replays of the same graph",
            "see whether another profiler holds the GPU, or leave --profile out",
        )
    return [_own(one) for one in rounds]


def _own(kernels: Sequence[Kernel]) -> list[Kernel]:
    """The kernels with the time that none before them still ran in: one that has begun early waits
    for what is before it.
    """
    found, free = [], -math.inf
    for kernel in kernels:
        end = kernel.start + kernel.us
        found.append(kernel._replace(us=max(end - max(free, kernel.start), 0.0)))
        free = max(free, end)
    return found
