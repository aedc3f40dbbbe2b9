"""Captured rounds on a GPU: plain steps, chains and trees of which nothing is accepted.

    python benchmarks/gpu_rounds.py [--models smollm2,8b] [--batches 1,32] [--out FILE]

Weights are random, the context is 512 tokens. Of every round: the engine's time for one while it
runs freely; the same rounds, at the same lengths, as graphs launched back to back; the idle time
between two, from the event behind one to the event ahead of the next; and the kernels it holds, by
kind.
"""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path
from statistics import mean, median
from types import SimpleNamespace
from typing import Any

import torch

from alula.bench import results
from alula.bench.anatomy import dissect, watch
from alula.bench.random_weights import LLAMA_8B, SMOLLM2, random_decoder
from alula.bench.timing import read_limit
from alula.engine.core import Engine
from alula.engine.rounds import CapturedRounds, Flight
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
CONTEXT, ROUNDS = 512, 60


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
    captured = engine._runner.rounds
    assert isinstance(captured, CapturedRounds)
    flights: list[Flight] = []
    begun: list[torch.cuda.Event] = []
    launch = captured.launch

    def watched(*arguments: Any) -> Flight:
        begun.append(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
        begun[-1].record()
        flights.append(launch(*arguments))
        return flights[-1]

    captured.launch = watched  # type: ignore[method-assign]
    tokens: list[int] = []
    engine.observers.append(lambda record: tokens.append(record.emitted))
    while len(flights) < 20:
        engine.step()
    torch.cuda.synchronize()
    lengths = engine._runner.lines.lengths
    at_first = lengths.clone()
    first, started = len(flights), time.perf_counter()
    while len(flights) < first + ROUNDS:
        engine.step()
    taken = time.perf_counter() - started
    torch.cuda.synchronize()
    ends = [flight.landed for flight in flights[first:] if flight.landed is not None]
    periods = [a.elapsed_time(b) for a, b in itertools.pairwise(ends)]
    gaps = [a.elapsed_time(b) for a, b in zip(ends, begun[first + 1 :], strict=False)]
    graph = next(iter(captured._graphs.values()))

    back_to_back = median(replayed(graph, lengths, at_first) for _ in range(3)) / ROUNDS
    found = {
        "model": name,
        "batch": batch,
        "shape": words,
        "back to back ms": back_to_back,
        "period ms": median(periods),
        "mean period ms": mean(periods),
        "engine ms": 1e3 * taken / ROUNDS,
        "idle us": 1e3 * median(gaps),
        "most idle us": 1e3 * max(gaps),
        "tokens a round and sequence": sum(tokens[-ROUNDS:]) / ROUNDS / batch,
        "graphs": captured.count,
        "launches": dict(engine._runner.launches),
        "kernels": kernels(graph),
    }
    engine._ahead = None
    return found


@torch.inference_mode()
def replayed(graph: Any, lengths: torch.Tensor, at_first: torch.Tensor) -> float:
    """Milliseconds of the same rounds as one behind the other, without the host."""
    lengths.copy_(at_first)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(ROUNDS):
        graph.replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


def kernels(graph: Any) -> dict[str, Any]:
    """Microseconds and launches of one replay, by kind of kernel."""
    parts = dissect("", watch(graph.replay), us=0.0, limit_us=0.0).parts
    return {part.kind: (round(part.us, 1), part.launches) for part in parts if part.launches}


if __name__ == "__main__":
    main()
