"""Which dtype a model's weights take on the CPU, by what this machine measures."""

from __future__ import annotations

import hashlib
import json
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from alula.errors import MachineError
from alula.models.families import FAMILIES
from alula.models.home import cache_folder, cache_home, whole_file
from alula.models.placement import Placement, Reader
from alula.models.weights import WeightSource
from alula.ops.linear import Weight, linear, row_invariant
from alula.shapes.decoder import DecoderShape

_NARROW, _WIDE = torch.bfloat16, torch.float32
_WORTH = 1.2
_ROWS = (1, 8)
_BEYOND_CACHE_BYTES = 96 << 20
_PASSES = 9
_BUDGET_SECONDS = 0.3
_QUIET_SHARE = 0.7
_WEIGHTS_PER_LAYER = 4


class _Pass(NamedTuple):
    seconds: float
    processor_share: float
    """Processor time over what all threads could have used."""


class Measured(NamedTuple):
    """Times of the same layers in both dtypes, and whether the narrow one keeps rows exact."""

    narrow_ms: float
    wide_ms: float
    layers: int
    narrow_invariant: bool
    quiet: bool
    """Whether the processors were ours while measuring."""

    @property
    def dtype(self) -> torch.dtype:
        """bfloat16 where it is surely faster and its rows are invariant, else float32."""
        fast = self.quiet and self.wide_ms >= _WORTH * self.narrow_ms
        return _NARROW if fast and self.narrow_invariant else _WIDE

    def explain(self) -> str:
        """One line: what was chosen, what lost, the numbers, how to override."""
        reason = (
            f"bfloat16 takes {self.narrow_ms:.1f} ms and float32 {self.wide_ms:.1f} ms for "
            f"{self.layers} layers at {' and '.join(map(str, _ROWS))} rows, measured "
            + ("once on this machine" if self.quiet else "while the machine was busy")
        )
        if not self.narrow_invariant:
            reason = "bfloat16 sums a row in another order beside other rows"
        won, lost = ("bfloat16", "float32") if self.dtype == _NARROW else ("float32", "bfloat16")
        return f"weights in {won}, not {lost}: {reason}; override with dtype= or --dtype"


def choose(shape: DecoderShape, source: WeightSource) -> Measured:
    """Measure on the model's own layers, once per machine and shape.

    The result is remembered in the cache: a close race must not give the same request other
    tokens at the next start.
    """
    path = cache_home() / "precision" / f"{_key(shape)}.json"
    if (measured := _remembered(path)) is None:
        measured = _measure(shape, source)
        if measured.quiet:
            _remember(path, measured)
    return measured


def _measure(shape: DecoderShape, source: WeightSource) -> Measured:
    """The best of several passes each, alternating, so that a disturbance hits both alike."""
    samples = {dtype: _sample(shape, source, dtype) for dtype in (_WIDE, _NARROW)}
    passes: dict[torch.dtype, list[_Pass]] = {_WIDE: [], _NARROW: []}
    end = time.perf_counter() + _BUDGET_SECONDS
    for count in range(_PASSES):
        for dtype, weights in samples.items():
            passes[dtype].append(_time(weights))
        if count >= 2 and time.perf_counter() > end:
            break
    wide, narrow = min(passes[_WIDE]), min(passes[_NARROW])
    return Measured(
        narrow_ms=1e3 * narrow.seconds,
        wide_ms=1e3 * wide.seconds,
        layers=len(samples[_WIDE]) // _WEIGHTS_PER_LAYER,
        narrow_invariant=all(map(row_invariant, samples[_NARROW][:_WEIGHTS_PER_LAYER])),
        quiet=min(wide.processor_share, narrow.processor_share) > _QUIET_SHARE,
    )


def _sample(shape: DecoderShape, source: WeightSource, dtype: torch.dtype) -> list[Weight]:
    """As many of the model's layers as exceed the cache in fp32."""
    reader = Reader(source, Placement(torch.device("cpu"), dtype))
    layer = FAMILIES[shape.family].layer
    weights: list[Weight] = []
    for index in range(shape.layers):
        weights += layer(reader.below(f"model.layers.{index}"), shape).weights()
        if 4 * sum(weight.shape[0] * weight.shape[1] for weight in weights) > _BEYOND_CACHE_BYTES:
            break
    return weights


@torch.inference_mode()
def _time(weights: list[Weight]) -> _Pass:
    inputs = [[torch.ones(rows, weight.shape[1]) for weight in weights] for rows in _ROWS]
    begin, used = time.perf_counter(), time.process_time()
    for xs in inputs:
        for x, weight in zip(xs, weights, strict=True):
            linear(x, weight)
    seconds, used = time.perf_counter() - begin, time.process_time() - used
    return _Pass(seconds, used / (seconds * torch.get_num_threads()))


def invariance_notes(weights: Iterator[Weight]) -> list[str]:
    """Probe one weight of each shape; a line for every one whose rows depend on their number."""
    probed: dict[tuple[int, int], Weight] = {}
    for weight in weights:
        probed.setdefault(weight.shape, weight)
    return [
        f"rows are not invariant for weights of {shape[0]} × {shape[1]} "
        f"({weight.layout}): on this machine token ids "
        "may depend on how many rows are computed together"
        for shape, weight in probed.items()
        if not row_invariant(weight)
    ]


def _key(shape: DecoderShape) -> str:
    sizes = (shape.hidden_size, shape.intermediate_size, shape.layers, shape.heads, shape.kv_heads)
    machine = (platform.node(), torch.backends.cpu.get_cpu_capability(), torch.get_num_threads())
    described = (*machine, torch.__version__, shape.family, *sizes, shape.head_dim)
    return hashlib.sha256(repr(described).encode()).hexdigest()[:32]


def _remembered(path: Path) -> Measured | None:
    try:
        return Measured(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _remember(path: Path, measured: Measured) -> None:
    content = json.dumps(measured._asdict()).encode()
    try:
        cache_folder(path.parent.name)
        with whole_file(path, len(content), "remember the dtype") as file:
            file.write(content)
    except MachineError:
        # Loading goes on; where the cache cannot be written a note says so already.
        return
