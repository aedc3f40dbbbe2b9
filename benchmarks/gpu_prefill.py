"""What exactness costs a prefill: alula's pass over a prompt against cuBLAS and torch's attention.

    python benchmarks/gpu_prefill.py [--tokens 4096] [--out FILE]

The shape is Llama-3.1-8B's, with random weights. The other side runs the same weights, with every
linear in cuBLAS and every attention in `scaled_dot_product_attention`; both write a cache. Taken in
turn, medians.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median

import torch

from alula.bench import results
from alula.bench.kernels import paged
from alula.bench.random_weights import LLAMA_8B, random_decoder
from alula.training.target import DenseTarget
from gpu_ops import pool_for, timed

OUT = Path(__file__).parent / "results" / "gpu_prefill.json"
DEVICE = torch.device("cuda")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    decoder = random_decoder(LLAMA_8B, DEVICE)
    rows = paged(1, 1, DEVICE, options.tokens)
    pool, target = pool_for(decoder, rows.page_table.numel()), DenseTarget(decoder)
    ids = torch.randint(decoder.shape.vocab_size, (options.tokens,), device=DEVICE)
    last = torch.tensor([options.tokens - 1], device=DEVICE)

    def exact() -> torch.Tensor:
        return decoder.logits(decoder.forward(ids, rows, pool).last.of(last))

    def fast() -> torch.Tensor:
        return target.logits(target.features(ids[None], ()).last[0, -1:])

    ours, theirs = [], []
    for _ in range(options.turns):
        ours.append(timed(exact, 5))
        theirs.append(timed(fast, 5))
    found = {
        "exact ms": round(median(ours), 2),
        "cuBLAS and SDPA ms": round(median(theirs), 2),
        "of its speed": round(median(theirs) / median(ours), 3),
    }
    print(found, flush=True)
    settings = {"model": "llama-8b", "tokens": options.tokens}
    made = results.record("gpu_prefill", settings, found, ("alula", "torch", "triton"))
    results.write(options.out, made)


if __name__ == "__main__":
    main()
