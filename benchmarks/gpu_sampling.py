"""Timings on a GPU of what comes after the logits: sampling, walk, commit, by graph replays.

python benchmarks/gpu_sampling.py [--rows 1,4,33,256] [--chunks 1024,2048,4096] [--out FILE]

A graph holds one call many times, so that its launches follow each other as in a round.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

from alula.bench import results
from alula.bench.random_weights import LLAMA_8B, SMOLLM2
from alula.ops import triton as forms
from alula.ops.sample import EVERYTHING
from alula.ops.triton.sample import sample_in
from alula.sampling import sampler
from alula.sampling.params import SamplingParams
from alula.sampling.state import SamplingState

OUT = Path(__file__).parent / "results" / "gpu_sampling.json"
DEVICE = torch.device("cuda")
VOCABULARIES = (128256, 49152)
CALLS = 20
Rows = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
"""Logits, lines, positions and paths."""
KINDS = {
    "greedy": SamplingParams(temperature=0.0),
    "temperature": SamplingParams(temperature=0.8),
    "top_k": SamplingParams(temperature=0.8, top_k=50),
    "top_p": SamplingParams(temperature=0.8, top_p=0.95),
    "top_k and top_p": SamplingParams(temperature=0.8, top_k=50, top_p=0.95),
    "penalties and all": SamplingParams(
        temperature=0.8, top_k=50, top_p=0.95, min_p=0.01, frequency_penalty=0.3, logit_bias={5: 1}
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="1,4,33,256")
    parser.add_argument("--chunks", default="1024,2048,4096")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    rows, chunks = (
        [int(part) for part in text.split(",")] for text in (options.rows, options.chunks)
    )
    with torch.inference_mode():
        found = {
            "sampling": [
                timing
                for vocabulary in VOCABULARIES
                for count in rows
                for timing in samplings(vocabulary, count, chunks)
            ],
            "walk": walks(),
            "commit": commits(),
        }
    results.write(
        options.out, results.record("gpu_sampling", {}, found, ("alula", "torch", "triton"))
    )


def replayed(call: Callable[[], Any], repeats: int = 15) -> float:
    """Median microseconds of one call within a graph of many."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            call()
    taken = []
    for _ in range(repeats + 3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        taken.append(1e3 * start.elapsed_time(end) / CALLS)
    return median(taken[3:])


def eager(call: Callable[[], Any]) -> float:
    """Median microseconds of a call that need not fit into a graph."""
    taken = []
    for _ in range(6):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        taken.append(1e3 * start.elapsed_time(end))
    return median(taken[1:])


def samplings(vocabulary: int, rows: int, chunks: list[int]) -> list[dict[str, Any]]:
    """Each kind of settings, for logits of a language model's spread."""
    generator = torch.Generator(DEVICE).manual_seed(rows)
    logits = 2.5 * torch.randn(rows, vocabulary, device=DEVICE, generator=generator)
    path = torch.randint(vocabulary, (rows, 4), device=DEVICE, generator=generator)
    lines = torch.zeros(rows, dtype=torch.int64, device=DEVICE)
    asked = (logits, lines, torch.arange(rows, device=DEVICE), path)
    found = [sampling(asked, kind, params, chunks) for kind, params in KINDS.items()]
    state = SamplingState(1, vocabulary, DEVICE)
    reference = eager(lambda: sampler.choose_at_once(*asked[:3], state))
    print(f"V {vocabulary} rows {rows}: the reference takes {reference:.0f} us", flush=True)
    return [{"vocabulary": vocabulary, "rows": rows, "reference us": reference, **t} for t in found]


def sampling(asked: Rows, kind: str, params: SamplingParams, chunks: list[int]) -> dict[str, Any]:
    """One kind of settings: as chosen, in each chunk, and in the graph that can do everything."""
    rows, vocabulary = asked[0].shape
    state = SamplingState(1, vocabulary, DEVICE)
    state.admit(0, params, 5, [1, 2, 3], [4])
    wants, settings = state.wants([0]), state.settings()
    chosen = sampler.sample(*asked, state, wants)
    us = replayed(lambda: sampler.sample(*asked, state, wants))
    everything = replayed(lambda: sampler.sample(*asked, state, EVERYTHING))
    times = {
        chunk: replayed(lambda c=chunk: sample_in(c, *asked, settings, wants)) for chunk in chunks
    }
    same = all(torch.equal(sample_in(c, *asked, settings, wants), chosen) for c in chunks)
    print(
        f"V {vocabulary} rows {rows} {kind}: {us:.1f} us, in the graph of everything "
        f"{everything:.1f}, by chunk { {chunk: round(time, 1) for chunk, time in times.items()} }"
        f"{'' if same else ' DIFFERENT TOKENS'}",
        flush=True,
    )
    return {"kind": kind, "us": us, "us with everything": everything, "us by chunk": times}


def walks() -> list[dict[str, Any]]:
    found = []
    for sequences, nodes in ((1, 3), (1, 32), (32, 32)):
        tokens = torch.zeros(sequences, nodes, dtype=torch.int64, device=DEVICE)
        parents = torch.arange(nodes, device=DEVICE).clamp_max(4).repeat(sequences, 1)
        choice = torch.zeros(sequences, nodes + 1, dtype=torch.int64, device=DEVICE)
        us = replayed(lambda t=tokens, p=parents, c=choice: forms.walk(t, p, c))
        found.append({"sequences": sequences, "nodes": nodes, "us": us})
        print(f"walk of {sequences} x {nodes} nodes: {us:.1f} us", flush=True)
    return found


def commits() -> list[dict[str, Any]]:
    """All that can move, and nothing; trees of depth 4."""
    found = []
    for name, shape in (("8b", LLAMA_8B), ("smollm2", SMOLLM2)):
        for sequences in (1, 32):
            pages = 3 * sequences
            size = (shape.layers, 2, pages, shape.kv_heads, 32, shape.head_dim)
            store = torch.zeros(size, dtype=torch.bfloat16, device=DEVICE)
            table = torch.arange(pages, device=DEVICE).view(sequences, 3)
            last = torch.full((sequences,), 30, device=DEVICE)
            path = torch.tensor([[0, 3, 9, 17, 30]], device=DEVICE).repeat(sequences, 1)
            for kept in (5, 1):
                counts = torch.full((sequences,), kept, device=DEVICE)
                moved = (store, table, last, path, counts)
                us = replayed(lambda moved=moved: forms.commit(*moved))
                found.append({"model": name, "sequences": sequences, "kept": kept, "us": us})
                print(f"commit {name} x {sequences}, {kept} kept: {us:.1f} us", flush=True)
    return found


if __name__ == "__main__":
    main()
