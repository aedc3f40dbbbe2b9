"""Captured rounds on a GPU: plain steps, chains and trees of which nothing is accepted.

    python benchmarks/gpu_rounds.py [--models smollm2,8b] [--batches 1,32] [--out FILE]

Weights are random, the context is 512 tokens. Of every round, while the engine runs freely: the
period, from end to end by events; the time of its graph, and from the last node of one round's
graph to the first of the next, by events that are these nodes; and the kernels it holds, by kind.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch

from alula.bench import results
from alula.bench.anatomy import dissect, watch
from alula.bench.random_engine import full_engine, random_network, speculator
from alula.bench.random_weights import random_decoder
from alula.bench.shapes import subject
from alula.bench.timing import read_limit
from alula.bench.watched import WatchedRounds
from alula.models.decoder import Decoder

OUT = Path(__file__).parent / "results" / "gpu_rounds.json"
DEVICE = torch.device("cuda")
MODELS = {"smollm2": subject("smollm2"), "8b": subject("llama-8b")}
SHAPES = ("off", "chain:3", "tree:4x4:32")
CONTEXT, WARM_ROUNDS, ROUNDS = 512, 20, 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="smollm2,8b")
    parser.add_argument("--batches", default="1,32")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    found: dict[str, Any] = {"read limit TB/s": read_limit(DEVICE), "rounds": []}
    for name in options.models.split(","):
        decoder = random_decoder(MODELS[name].shape, DEVICE)
        found[f"{name} limit ms"] = weight_bytes(decoder) / found["read limit TB/s"] / 1e9
        for batch in map(int, options.batches.split(",")):
            for words in options.shapes.split(","):
                timing = rounds(name, decoder, words, batch)
                found["rounds"].append(timing)
                print({k: v for k, v in timing.items() if k != "kernels"}, flush=True)
                print("   ", timing["kernels"], flush=True)
                packages = ("alula", "torch", "triton")
                record = results.record("gpu_rounds", {"context": CONTEXT}, found, packages)
                results.write(options.out, record)
        del decoder
        torch.cuda.empty_cache()


def weight_bytes(decoder: Decoder) -> int:
    return sum(w.shape[0] * w.shape[1] * w.dtype.itemsize for w in decoder.weights())


def rounds(name: str, decoder: Decoder, words: str, batch: int) -> dict[str, Any]:
    """One shape at one batch."""
    made = speculator(decoder, words, lambda: random_network(MODELS[name], decoder))
    engine = full_engine(decoder, made, batch, CONTEXT, 2 * CONTEXT)
    runner = engine._runner
    watched = runner.rounds = WatchedRounds(runner.lines, runner._round)
    tokens: list[int] = []
    engine.observers.append(lambda record: tokens.append(record.emitted))
    while len(watched.flights) < WARM_ROUNDS:
        engine.step()
    torch.cuda.synchronize()
    watched.forget()
    started = time.perf_counter()
    while len(watched.flights) < ROUNDS:
        engine.step()
    taken = time.perf_counter() - started
    torch.cuda.synchronize()
    ends = [flight.landed for flight in watched.flights if flight.landed is not None]
    periods = [a.elapsed_time(b) for a, b in itertools.pairwise(ends)]
    found = {
        "model": name,
        "batch": batch,
        "shape": words,
        "period ms": median(periods),
        "mean period ms": mean(periods),
        "graph ms": median(watched.graph_ms),
        "engine ms": 1e3 * taken / ROUNDS,
        "idle us": median(watched.idle_us),
        "mean idle us": mean(watched.idle_us),
        "most idle us": max(watched.idle_us),
        "tokens a round and sequence": sum(tokens[-ROUNDS:]) / ROUNDS / batch,
        "launches": dict(runner.launches),
        "kernels": kernels(watched.replay_deepest),
    }
    engine._ahead = None
    return found


def kernels(replay: Callable[[], object]) -> dict[str, Any]:
    """Microseconds and launches of one replay, by kind of kernel."""
    parts = dissect("", watch(replay), us=0.0, limit_us=0.0).parts
    return {part.kind: (round(part.us, 1), part.launches) for part in parts if part.launches}


if __name__ == "__main__":
    main()
