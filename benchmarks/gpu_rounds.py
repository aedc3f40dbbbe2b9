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
from types import SimpleNamespace
from typing import Any

import torch

from alula.bench import results
from alula.bench.anatomy import dissect, watch
from alula.bench.random_weights import LLAMA_8B, SMOLLM2, random_decoder
from alula.bench.timing import read_limit
from alula.bench.watched import WatchedRounds
from alula.engine.core import Engine
from alula.engine.settings import Settings
from alula.engine.speculator import Speculator
from alula.models.decoder import Decoder
from alula.sampling.params import SamplingParams
from alula.speculation.eagle3 import Eagle3
from alula.speculation.eagle3_checkpoint import random_checkpoint
from alula.speculation.eagle3_drafter import Eagle3Drafter
from alula.speculation.tree import NO_DRAFT, parse_shape
from gpu_ops import NoText

OUT = Path(__file__).parent / "results" / "gpu_rounds.json"
DEVICE = torch.device("cuda")
MODELS = {"smollm2": (SMOLLM2, 8192), "8b": (LLAMA_8B, 32000)}
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
        shape, vocabulary = MODELS[name]
        decoder = random_decoder(shape, DEVICE)
        found[f"{name} limit ms"] = weight_bytes(decoder) / found["read limit TB/s"] / 1e9
        for batch in map(int, options.batches.split(",")):
            for words in options.shapes.split(","):
                timing = rounds(name, decoder, vocabulary, words, batch)
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


def speculator(decoder: Decoder, words: str, vocabulary: int) -> Speculator:
    shape = NO_DRAFT if words == "off" else parse_shape(words)
    if shape == NO_DRAFT:
        return Speculator()
    target = decoder.shape
    checkpoint = random_checkpoint(
        hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        layers=target.layers,
        heads=target.heads,
        kv_heads=target.kv_heads,
        draft_vocab_size=vocabulary,
        dtype=torch.bfloat16,
        intermediate_size=target.intermediate_size,
    )
    network = Eagle3(checkpoint, embedding=decoder.embedding, device=DEVICE, dtype=torch.bfloat16)
    return Speculator(Eagle3Drafter(network, shape, taps=checkpoint.config.taps(target.layers)))


def rounds(name: str, decoder: Decoder, vocabulary: int, words: str, batch: int) -> dict[str, Any]:
    """One shape at one batch."""
    model: Any = SimpleNamespace(decoder=decoder, tokenizer=NoText(decoder.shape))
    settings = Settings(
        max_sequences=batch, max_length=1024, cache_tokens=1200 * batch, chunk_rows=4096
    )
    engine = Engine(model, settings, speculator(decoder, words, vocabulary))
    for number in range(batch):
        prompt = torch.randint(decoder.shape.vocab_size, (CONTEXT,)).tolist()
        params = SamplingParams(
            temperature=0.0, max_tokens=CONTEXT - 1, seed=number, ignore_eos=True
        )
        engine.add(prompt, params)
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
