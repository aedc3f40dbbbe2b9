"""Timings on a GPU: a decoder's step and the engine's throughput.

    python benchmarks/gpu_ops.py [--only step,engine] [--out FILE]

Linears and attention by themselves: `alula bench kernels`.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import torch

from alula.bench import results
from alula.bench.kernels import PAGE, paged
from alula.bench.random_engine import NoText
from alula.bench.random_weights import LLAMA_8B, SMOLLM2, random_decoder
from alula.bench.timing import read_limit
from alula.cache.pool import KVPool
from alula.engine.core import Engine
from alula.engine.settings import Settings
from alula.engine.speculator import Speculator
from alula.models.decoder import Decoder
from alula.ops.rows import Rows
from alula.sampling.params import SamplingParams

OUT = Path(__file__).parent / "results" / "gpu_ops.json"
DEVICE = torch.device("cuda")
BATCHES = (1, 8, 32, 256, 512)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="step,engine")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    parts = {"step": steps, "engine": engines}
    found: dict[str, Any] = {"read limit TB/s": read_limit(DEVICE)}
    print(f"read bandwidth {found['read limit TB/s']:.2f} TB/s", flush=True)
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
        launches = {f"batch {batch}": paged(batch, 512, DEVICE) for batch in BATCHES}
        launches["1 x 4 rows"] = paged(1, 512, DEVICE, 4)
        launches["1 x 33 rows of a tree"] = paged(1, 512, DEVICE, 33, tail=5)
        launches["prefill 2048"] = paged(1, 1, DEVICE, 2048)
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
        return decoder.logits(decoder.forward(ids, rows, pool).last.of(wanted))

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
