"""The linears of a shape against cuBLAS, and attention against what reading its keys must take."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from triton.runtime import driver
from triton.runtime.errors import TritonError

from alula.bench.shapes import Matrix
from alula.bench.timing import Clock, GraphClock, Launch, middle, race
from alula.ops.attention import Heads
from alula.ops.linear import DenseWeight
from alula.ops.rows import Rows
from alula.ops.triton.attention import plan
from alula.ops.triton.linear import TiledWeight, agreeing, machine
from alula.ops.triton.tiles import Shape, Tile, choose, table
from alula.shapes.decoder import DecoderShape

PAST_CACHE = 2.5
"""Times the size of the second-level cache that the copies of a weight take."""
MOST_COPIES = 400
PAGE = 32
CONTEXTS = (512, 4096)
BATCHES = (1, 32)
_ATTENTIONS_A_LAUNCH = 10


class LinearBench:
    """One weight on a GPU, many times over, past the cache. See `tune.Bench`."""

    def __init__(
        self,
        matrix: Matrix,
        dtype: torch.dtype,
        device: torch.device,
        clock: Callable[[Launch, int], Clock] | None = None,
    ) -> None:
        size = matrix.outputs * matrix.inner * dtype.itemsize
        copies = max(2, min(MOST_COPIES, int(PAST_CACHE * _cache_bytes(device) / size) + 1))
        self._measure = clock or GraphClock
        self.shape = Shape(matrix.outputs, matrix.inner, dtype.itemsize)
        self._out = torch.float32 if matrix.fp32 else dtype
        self._values = [
            torch.randn(matrix.outputs, matrix.inner, device=device, dtype=dtype)
            / matrix.inner**0.5
            for _ in range(copies)
        ]
        processors, capability = machine(device)
        known = table(matrix.outputs, matrix.inner, dtype, capability, processors)
        self.weights = [TiledWeight(DenseWeight(values), known) for values in self._values]

    def agreeing(self, tiles: Sequence[Tile]) -> set[Tile]:
        """See `tune.Bench.agreeing`."""
        return {tile for tile in tiles if self._agrees(tile)}

    def _agrees(self, tile: Tile) -> bool:
        try:
            return bool(agreeing(self.weights[0], [tile]))
        except TritonError:  # it does not fit the device
            return False

    def compile(self, plan: dict[int, list[Tile]]) -> None:
        """See `tune.Bench.compile`; on all cores, as the compiler lets other threads run."""
        weight = self.weights[0]
        wanted = {}
        for rows, tiles in plan.items():
            for tile in tiles:
                wanted[weight.variant(tile, rows), self._out] = (tile, rows)
                # What the sums are compared with.
                wanted[weight.variant(tile, tile.rows + 1), torch.float32] = (tile, tile.rows + 1)
        jobs = [partial(weight.compile, *of, out) for (_, out), of in wanted.items()]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for _ in pool.map(_attempt, jobs):
                pass

    def clock(self, tile: Tile, rows: int) -> Clock:
        """See `tune.Bench.clock`."""
        return self._clock(rows, lambda x, n: self.weights[n].multiply_in(tile, x, self._out))

    def own(self, rows: int) -> Clock:
        """A clock of one multiplication in the tile that is chosen at load."""
        return self._clock(rows, lambda x, n: self.weights[n].multiply(x, self._out))

    def cublas(self, rows: int) -> Clock:
        """See `tune.Bench.cublas`."""
        return self._clock(rows, lambda x, n: F.linear(x, self._values[n]))

    def _clock(self, rows: int, multiply: Callable[[Tensor, int], Tensor]) -> Clock:
        copies, values = len(self._values), self._values[0]
        x = torch.randn(rows, self.shape.inner, device=values.device, dtype=values.dtype)

        def launch() -> None:
            for number in range(copies):
                multiply(x, number)

        return self._measure(launch, copies)


def _cache_bytes(device: torch.device) -> int:
    """Of the second-level cache; on the CPU, where nothing is measured, none."""
    on_gpu = device.type == "cuda"
    return torch.cuda.get_device_properties(device).L2_cache_size if on_gpu else 0


def shared_bytes(device: torch.device) -> int:
    """Shared memory that the device has for one program."""
    return int(driver.active.utils.get_device_properties(device.index or 0)["max_shared_mem"])


class LinearTime(NamedTuple):
    """One weight at a number of rows."""

    name: str
    rows: int
    tile: Tile
    us: float
    cublas_us: float
    share: float
    """Of the memory limit: bytes of the weight by the time, against a sum."""


def linears(
    matrix: Matrix, rows: Sequence[int], dtype: torch.dtype, device: torch.device, bandwidth: float
) -> Iterator[LinearTime]:
    """A weight in its chosen tiles against cuBLAS; `bandwidth` in terabytes a second."""
    bench = LinearBench(matrix, dtype, device)
    size = bench.shape.outputs * bench.shape.inner * bench.shape.itemsize
    for count in rows:
        clocks = {"own": bench.own(count), "cublas": bench.cublas(count)}
        own, cublas = ([] for _ in range(2))  # type: tuple[list[float], list[float]]
        for _ in range(9):
            own.append(clocks["own"]())
            cublas.append(clocks["cublas"]())
        us = middle(own)
        tile = choose(bench.weights[0].table, count)
        share = size / us / 1e6 / bandwidth
        yield LinearTime(matrix.name, count, tile, us, middle(cublas), share)


class AttentionTime(NamedTuple):
    """One launch of attention."""

    name: str
    us: float
    share: float
    """Of the memory limit: bytes of keys and values by the time, against a sum."""


def attentions(
    shape: DecoderShape, dtype: torch.dtype, device: torch.device, bandwidth: float
) -> Iterator[AttentionTime]:
    """One layer's attention for plain steps, chains, trees and prompts."""
    heads, d = Heads(shape.heads, shape.kv_heads), shape.head_dim
    for name, rows in _launches(device).items():
        pages = rows.page_table.numel()
        keys, values = (
            torch.randn(pages, heads.kv, PAGE, d, device=device, dtype=dtype) for _ in range(2)
        )
        q = torch.randn(len(rows.slots), heads.query, d, device=device, dtype=dtype)
        attend = plan(rows, PAGE, heads).attend

        def launch(
            attend: Callable[..., Tensor] = attend,
            arguments: tuple[Any, ...] = (q, keys, values, d**-0.5),
        ) -> None:
            for _ in range(_ATTENTIONS_A_LAUNCH):
                attend(*arguments)

        us = race({name: GraphClock(launch, _ATTENTIONS_A_LAUNCH)})[name].median
        read = 2 * heads.kv * d * dtype.itemsize * int((rows.base + 1).sum())
        yield AttentionTime(name, us, read / us / 1e6 / bandwidth)


def _launches(device: torch.device) -> dict[str, Rows]:
    found = {
        f"batch {batch}, context {context}": paged(batch, context, device)
        for batch, context in itertools.product(BATCHES, CONTEXTS)
    }
    for context in CONTEXTS:
        found[f"chain of 4, context {context}"] = paged(1, context, device, 4)
        found[f"tree of 33, depth 4, context {context}"] = paged(1, context, device, 33, tail=5)
    found["batch 32, chains of 4, context 512"] = paged(32, 512, device, 4)
    found["prompt of 2048"] = paged(1, 1, device, 2048)
    found["256 rows at 4096"] = paged(1, 4096, device, 256)
    return found


def paged(
    batch: int, context: int, device: torch.device, rows_each: int = 1, tail: int = 0
) -> Rows:
    """`rows_each` rows at the end of each of `batch` contexts; with `tail`, as one path each."""
    pages = -(-(context + rows_each) // PAGE) + 1
    page_table = torch.randperm(batch * pages, device=device).view(batch, pages)
    sequences = torch.arange(batch, device=device).repeat_interleave(rows_each)
    offsets = torch.arange(rows_each, device=device).repeat(batch)
    at = context - 1 + offsets
    slots = page_table[sequences, at // PAGE] * PAGE + at % PAGE
    base = torch.full((batch,), context - 1, device=device)
    if not tail:
        return Rows(at, slots, sequences, at, page_table, base)
    depth = offsets.clamp_max(tail - 1)
    steps = torch.arange(tail, device=device)
    own = base[sequences][:, None] + steps
    own_slots = page_table[sequences[:, None], own // PAGE] * PAGE + own % PAGE
    way = torch.where(steps <= depth[:, None], own_slots, -1)
    last = context - 1 + depth
    return Rows(last, slots, sequences, last, page_table, base, tail=way)


def _attempt(job: Callable[[], None]) -> None:
    try:
        job()
    except TritonError:
        return  # what cannot be compiled is found again, and left out, where it is tried
