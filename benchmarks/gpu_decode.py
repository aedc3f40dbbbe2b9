"""Tokens per second on a GPU, plain and with the drafter, chain and tree, by batch.

    python benchmarks/gpu_decode.py MODEL [--drafter DIR] [--batches 1,8,32] [--out FILE]

Greedy answers to the prompts of `bench`, as many side by side as the batch says. All shapes answer
in turn, their order turning around from one repeat to the next; medians.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from alula.bench import results
from alula.bench.decode import chat_ids
from alula.bench.workloads import select
from alula.engine.core import Engine
from alula.engine.settings import Settings
from alula.engine.speculator import asked, drafter_for, speculator
from alula.models.load import LoadedModel, load
from alula.models.progress import silent
from alula.sampling.params import SamplingParams

OUT = Path(__file__).parent / "results" / "gpu_decode.json"
SHAPES = ("off", "chain:3", "chain:5", "tree:5x4:16", "auto")
REPEATS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--drafter", type=Path)
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    model = load(options.model, "cuda", "bfloat16", silent)
    prompts = [chat_ids(model, workload.prompt) for workload in select(prompts_per_kind=6)]
    found = []
    for batch in map(int, options.batches.split(",")):
        some = prompts[:: max(1, len(prompts) // max(batch, 6))][: max(batch, 6)]
        found += compared(model, some, batch, options)
        settings = {"model": Path(options.model).name, "max_tokens": options.max_tokens}
        made = results.record("gpu_decode", settings, found, ("alula", "torch", "triton"))
        results.write(options.out, made)


def compared(
    model: LoadedModel, prompts: list[list[int]], batch: int, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """All shapes at one batch."""
    shapes = options.shapes.split(",")
    engines = {shape: engine(model, shape, batch, options.drafter) for shape in shapes}
    rates: dict[str, list[float]] = {shape: [] for shape in shapes}
    told: dict[str, list[list[int]]] = {}
    taus: dict[str, float] = {}
    for repeat in range(REPEATS + 1):
        for shape in shapes[:: 1 if repeat % 2 else -1]:
            answers, seconds, tau = answer(engines[shape], prompts, options.max_tokens)
            told[shape], taus[shape] = answers, tau
            if repeat:  # the first captures what is not captured yet
                rates[shape].append(sum(map(len, answers)) / seconds)
    plain = median(rates["off"])
    found = []
    for shape in shapes:
        same = sum(a == b for a, b in zip(told[shape], told["off"], strict=True))
        found.append(
            {
                "batch": batch,
                "shape": shape,
                "tok/s": round(median(rates[shape])),
                "of plain": round(median(rates[shape]) / plain, 3),
                "tau": round(taus[shape], 3),
                "same tokens": f"{same} of {len(prompts)}",
                "launches": dict(engines[shape]._runner.launches),
            }
        )
        print(found[-1], flush=True)
    return found


def engine(model: LoadedModel, shape: str, batch: int, drafter: Path | None) -> Engine:
    """An engine of its own over the shared model."""
    settings = Settings(
        max_sequences=batch,
        max_length=1024,
        cache_tokens=1200 * batch,
        chunk_rows=2048,
        prefix_cache=False,
    )
    wish = asked(shape, None if shape == "off" else drafter_for(shape, "smollm2", drafter))
    return Engine(model, settings, speculator(wish, model.decoder))


def answer(
    made: Engine, prompts: list[list[int]], max_tokens: int
) -> tuple[list[list[int]], float, float]:
    """The answers, the seconds they took, and the tokens a round."""
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    torch.cuda.synchronize()
    started = time.perf_counter()
    requests = [made.add(prompt, params) for prompt in prompts]
    for _ in made.follow(requests):
        pass
    seconds = time.perf_counter() - started
    sequences = [request.answers[0].sequence for request in requests]
    emitted = sum(len(s.output_ids) - 1 for s in sequences)
    return [s.output_ids for s in sequences], seconds, emitted / sum(s.rounds for s in sequences)


if __name__ == "__main__":
    main()
