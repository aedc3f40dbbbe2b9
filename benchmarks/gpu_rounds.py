"""Captured rounds on a GPU: plain steps, chains and trees of which nothing is accepted.

    python benchmarks/gpu_rounds.py [--models smollm2,8b] [--batches 1,32] [--out FILE]

Weights are random, the context begins at 512 tokens. What `alula bench decode --shape` measures of
one shape and batch, for all of them; see `alula.bench.rounds`.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from alula.bench import results
from alula.bench.rounds import Measured, RoundPlan, measure
from alula.bench.rounds_command import DEFAULT_SHAPES, PACKAGES, told
from alula.bench.shapes import subject

OUT = Path(__file__).parent / "results" / "gpu_rounds.json"
MODELS = {"smollm2": "smollm2", "8b": "llama-8b"}
CONTEXT = 512


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="smollm2,8b")
    parser.add_argument("--batches", default="1,32")
    parser.add_argument("--shapes", default=",".join(DEFAULT_SHAPES))
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    found: dict[str, Any] = {"rounds": []}
    for model in options.models.split(","):
        for batch in map(int, options.batches.split(",")):
            plan = RoundPlan(
                subject(MODELS[model]),
                tuple(options.shapes.split(",")),
                batch=batch,
                context=CONTEXT,
                profile=True,
            )
            measured = measure(plan, torch.device("cuda"), torch.bfloat16)
            print(f"\n{model}, batch {batch}", *told(measured), sep="\n", flush=True)
            found["rounds"] += rounds(model, batch, measured)
            record = results.record("gpu_rounds", {"context": CONTEXT}, found, PACKAGES)
            results.write(options.out, record)
            torch.cuda.empty_cache()


def rounds(model: str, batch: int, measured: Measured) -> list[dict[str, Any]]:
    """A line for each contender."""
    return [
        {"model": model, "batch": batch, "limit ms": measured.limit_ms}
        | {"read limit TB/s": measured.bandwidth, **asdict(times)}
        | {"anatomy": anatomy.as_json()["parts"]}
        for times, anatomy in zip(measured.times, measured.anatomies, strict=True)
    ]


if __name__ == "__main__":
    main()
