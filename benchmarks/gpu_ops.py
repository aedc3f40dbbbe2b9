"""Timings on a GPU: linears against cuBLAS, attention, a decoder's step, the engine's throughput.

python benchmarks/gpu_ops.py [--only linear,attention,step,engine] [--out FILE]
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from alula.bench import results
from alula.bench.random_weights import LLAMA_8B, SMOLLM2, random_decoder
from alula.cache.pool import KVPool
from alula.engine.core import Engine
from alula.engine.settings import Settings
from alula.engine.speculator import Speculator
from alula.models.decoder import Decoder
from alula.ops.attention import Heads
from alula.ops.linear import DenseWeight, linear, row_invariant
from alula.ops.rows import Rows
from alula.ops.triton.attention import plan
from alula.ops.triton.linear import lay_out
from alula.ops.triton.tiles import choose
from alula.sampling.params import SamplingParams
from alula.shapes.decoder import DecoderShape

OUT = Path(__file__).parent / "results" / "gpu_ops.json"
DEVICE = torch.device("cuda")
PAGE = 32
PAST_CACHE_BYTES = 400e6
ROWS = (1, 4, 8, 16, 32, 64, 256, 2048)
BATCHES = (1, 8, 32, 256, 512)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="linear,attention,step,engine")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    parts = {"linear": linears, "attention": attentions, "step": steps, "engine": engines}
    found: dict[str, Any] = {"read limit TB/s": read_limit()}
    print(f"copy bandwidth {found['read limit TB/s']:.2f} TB/s", flush=True)
    for name in options.only.split(","):
        started = time.perf_counter()
        with torch.inference_mode():
            found[name] = parts[name]()
        print(f"-- {name}: {time.perf_counter() - started:.0f} s", flush=True)
        torch.cuda.empty_cache()
    packages = ("alula", "torch", "triton")
    results.write(options.out, results.record("gpu_ops", {}, found, packages))


def timed(launch: Callable[[], Any], repeats: int = 15) -> float:
    """Median milliseconds of a launch, by events, warm."""
    for _ in range(3):
        launch()
    taken = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        launch()
        end.record()
        torch.cuda.synchronize()
        taken.append(start.elapsed_time(end))
    return median(taken)


def graphed(launch: Callable[[], Any]) -> Callable[[], None]:
    """The launch as a CUDA graph, so that the host's time does not count."""
    launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    return graph.replay


def read_limit() -> float:
    source = torch.randn(1 << 29, device=DEVICE)
    target = torch.empty_like(source)
    return 2 * source.numel() * 4 / timed(lambda: target.copy_(source)) / 1e9


def linears() -> list[dict[str, Any]]:
    """Each weight many times over, past the cache."""
    found = []
    for model, shape in (("smollm2", SMOLLM2), ("8b", LLAMA_8B)):
        h, f = shape.hidden_size, shape.intermediate_size
        kv = shape.kv_heads * shape.head_dim
        sizes = {
            "qkv": (h + 2 * kv, h),
            "out": (h, h),
            "gate up": (2 * f, h),
            "down": (h, f),
            "head": (shape.vocab_size, h),
        }
        for name, (outputs, inner) in sizes.items():
            found += linear_times(f"{model} {name}", outputs, inner)
    return found


def linear_times(name: str, outputs: int, inner: int) -> list[dict[str, Any]]:
    copies = max(2, min(200, int(PAST_CACHE_BYTES / (2 * outputs * inner))))
    values = [
        torch.randn(outputs, inner, device=DEVICE, dtype=torch.bfloat16) / inner**0.5
        for _ in range(copies)
    ]
    tiled = [lay_out(DenseWeight(each)) for each in values]
    exact = row_invariant(tiled[0])
    found, shown = [], []
    for rows in ROWS:
        x = torch.randn(rows, inner, device=DEVICE, dtype=torch.bfloat16)

        def ours(x: torch.Tensor = x) -> None:
            for weight in tiled:
                linear(x, weight)

        def cublas(x: torch.Tensor = x) -> None:
            for weight in values:
                F.linear(x, weight)

        mine, theirs = (1e3 * timed(graphed(each), 7) / copies for each in (ours, cublas))
        tile = choose(tiled[0].tiles, rows, outputs, tiled[0].processors)
        bandwidth = 2 * outputs * inner / mine / 1e6
        tera = 2 * rows * outputs * inner / mine / 1e6
        found.append({"name": name, "rows": rows, "us": mine, "cublas us": theirs, "tile": tile})
        shown.append(
            f"{rows}: {mine:.1f}/{theirs:.1f}us {theirs / mine:.2f}x"
            + (f" {bandwidth:.2f}TB/s" if rows <= 32 else f" {tera:.0f}TF")
        )
    tiles = len(tiled[0].tiles)
    print(
        f"{name} {outputs}x{inner} exact={exact} tiles={tiles} | " + " | ".join(shown), flush=True
    )
    return found


def paged(batch: int, context: int, rows_each: int = 1, tail: int = 0) -> Rows:
    """`rows_each` rows at the end of each of `batch` contexts; with `tail`, as one path each."""
    pages = -(-(context + rows_each) // PAGE) + 1
    table = torch.randperm(batch * pages, device=DEVICE).view(batch, pages)
    sequences = torch.arange(batch, device=DEVICE).repeat_interleave(rows_each)
    offsets = torch.arange(rows_each, device=DEVICE).repeat(batch)
    at = context - 1 + offsets
    slots = table[sequences, at // PAGE] * PAGE + at % PAGE
    base = torch.full((batch,), context - 1, device=DEVICE)
    if not tail:
        return Rows(at, slots, sequences, at, table, base)
    depth = offsets.clamp_max(tail - 1)
    steps = torch.arange(tail, device=DEVICE)
    own = base[sequences][:, None] + steps
    own_slots = table[sequences[:, None], own // PAGE] * PAGE + own % PAGE
    way = torch.where(steps <= depth[:, None], own_slots, -1)
    return Rows(context - 1 + depth, slots, sequences, context - 1 + depth, table, base, tail=way)


def attentions() -> list[dict[str, Any]]:
    found = []
    for model, heads, d in (("smollm2", Heads(9, 3), 64), ("8b", Heads(32, 8), 128)):
        launches = {
            f"batch {batch} context {context}": paged(batch, context)
            for batch, context in itertools.product((1, 32, 256), (512, 4096))
        }
        launches["chain of 4, context 512"] = paged(1, 512, 4)
        launches["batch 32, chains of 4, context 512"] = paged(32, 512, 4)
        launches["tree of 33, depth 4, context 512"] = paged(1, 512, 33, tail=5)
        launches["tree of 33, depth 4, context 4096"] = paged(1, 4096, 33, tail=5)
        launches["prefill 2048"] = paged(1, 1, 2048)
        launches["prefill 256 at 4096"] = paged(1, 4096, 256)
        shown = []
        for name, rows in launches.items():
            pages = rows.page_table.numel()
            keys, values = (
                torch.randn(pages, heads.kv, PAGE, d, device=DEVICE, dtype=torch.bfloat16)
                for _ in range(2)
            )
            q = torch.randn(len(rows.slots), heads.query, d, device=DEVICE, dtype=torch.bfloat16)
            made = plan(rows, PAGE, heads)

            us = 1e2 * timed(graphed(partial(ten_times, made.attend, q, keys, values, d**-0.5)), 7)
            read = 4 * heads.kv * d * int((rows.base + 1).sum()) / us / 1e6
            found.append({"model": model, "name": name, "us": us, "key-value TB/s": read})
            shown.append(f"{name}: {us:.1f}us {read:.2f}TB/s")
        print(f"attention {model} | " + " | ".join(shown), flush=True)
    return found


def ten_times(launch: Callable[..., Any], *arguments: Any) -> None:
    for _ in range(10):
        launch(*arguments)


def pool_for(decoder: Decoder, pages: int) -> KVPool:
    shape = decoder.shape
    return KVPool(
        layers=shape.layers,
        pages=pages,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        page_size=PAGE,
        dtype=decoder.cache_dtype,
        device=DEVICE,
    )


def steps() -> list[dict[str, Any]]:
    """A plain step of a whole decoder, eager and as a graph, context 512."""
    found = []
    for model, shape in (("smollm2", SMOLLM2), ("8b", LLAMA_8B)):
        decoder = random_decoder(shape, DEVICE)
        launches = {f"batch {batch}": paged(batch, 512) for batch in BATCHES}
        launches["1 x 4 rows"] = paged(1, 512, 4)
        launches["1 x 33 rows of a tree"] = paged(1, 512, 33, tail=5)
        launches["prefill 2048"] = paged(1, 1, 2048)
        for name, rows in launches.items():
            found.append(step(decoder, f"{model} {name}", rows))
        del decoder
        torch.cuda.empty_cache()
    return found


def step(decoder: Decoder, name: str, rows: Rows) -> dict[str, Any]:
    pool = pool_for(decoder, rows.page_table.numel())
    ids = torch.randint(decoder.shape.vocab_size, rows.slots.shape, device=DEVICE)
    wanted = slice(None) if len(ids) <= 512 else slice(-1, None)

    def launch() -> torch.Tensor:
        return decoder.logits(decoder.forward(ids, rows, pool).last[wanted])

    launch()
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(5):
        launch()
    torch.cuda.synchronize()
    eager = 200 * (time.perf_counter() - started)
    graph = timed(graphed(launch), 7)
    rate = len(ids) / graph
    print(
        f"step {name}: eager {eager:.2f} ms, graph {graph:.3f} ms, {rate:.1f} rows/ms", flush=True
    )
    return {"name": name, "eager ms": eager, "graph ms": graph}


class NoText:
    """As much of a tokenizer as an engine needs."""

    def __init__(self, shape: DecoderShape) -> None:
        self.vocab_size = shape.vocab_size
        self.eos_ids: frozenset[int] = frozenset()

    def is_special(self, _token: int) -> bool:
        return False

    def token_bytes(self, _token: int) -> bytes:
        return b"a"


def engines() -> list[dict[str, Any]]:
    """Tokens per second of the whole engine, SmolLM2's shape, prompts of 32 tokens."""
    decoder = random_decoder(SMOLLM2, DEVICE)
    model: Any = SimpleNamespace(decoder=decoder, tokenizer=NoText(SMOLLM2))
    found = []
    for batch, temperature in itertools.product((1, 64, 256, 512), (0.0, 1.0)):
        settings = Settings(
            max_sequences=batch, max_length=512, cache_tokens=600 * batch, chunk_rows=4096
        )
        engine = Engine(model, settings, Speculator())
        tokens = 64 if batch == 1 else 128
        for number in range(batch):
            prompt = torch.randint(49152, (32,)).tolist()
            params = SamplingParams(
                max_tokens=tokens, temperature=temperature, seed=number, ignore_eos=True
            )
            engine.add(prompt, params)
        seconds: list[float] = []
        launches: list[float] = []
        engine.observers.append(lambda record, launches=launches: launches.append(record.seconds))
        while engine.has_work:
            started = time.perf_counter()
            engine.step()
            seconds.append(time.perf_counter() - started)
        rate, whole = batch / median(seconds[5:]), 1e3 * median(seconds[5:])
        print(
            f"engine batch {batch} temperature {temperature}: {rate:.0f} tok/s, a step "
            f"{whole:.2f} ms, of it the launch {1e3 * median(launches[5:]):.2f}",
            flush=True,
        )
        found.append({"batch": batch, "temperature": temperature, "tok/s": rate})
        del engine
        torch.cuda.empty_cache()
    return found


if __name__ == "__main__":
    main()
