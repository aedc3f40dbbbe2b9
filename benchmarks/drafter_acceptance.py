"""How well a drafter drafts: τ and acceptance by depth, per kind of text and by context length.

Greedily and at T 0.8, there with noise shared between target and drafter and with noise of its
own; chain and tree. The prompts are those of `bench`, and held-out ones where RUN is given.

    python benchmarks/drafter_acceptance.py MODEL [--drafter DIR] [--run RUN] [--out FILE]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from alula.bench import results
from alula.engine.llm import device_named
from alula.models.load import load
from alula.models.progress import silent
from alula.speculation.eagle3_checkpoint import load as load_drafter
from alula.speculation.shipped import shipped
from alula.training.corpus import load_corpus
from alula.training.evaluate import ALL, Setting, evaluate
from alula.training.synthesise import shard_paths

OUT = Path(__file__).parent / "results" / "drafter_acceptance.json"
PACKAGES = ("alula", "torch")


def main() -> None:
    options = arguments()
    if options.threads:
        torch.set_num_threads(options.threads)
    model = load(options.model, device_named(options.device), options.dtype, silent)
    drafter = options.drafter or shipped(options.model)
    corpus = load_corpus(shard_paths(options.run / "data")) if options.run else None
    found = evaluate(
        model, load_drafter(drafter), corpus, silent, sequences=options.sequences, held_out=24
    )
    for row in found["rows"]:
        if row["kind"] == ALL:
            way = Setting(row["shape"], row["temperature"], row["shared"])
            print(f"{way}: τ {row['tau']:.2f} ({row['low']:.2f} to {row['high']:.2f})")
    settings = {"model": options.model, "drafter": drafter.name, "dtype": options.dtype}
    results.write(options.out, results.record("drafter_acceptance", settings, found, PACKAGES))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--drafter", type=Path)
    parser.add_argument("--run", type=Path, help="the --out of alula train")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path, default=OUT)
    return parser.parse_args()


if __name__ == "__main__":
    main()
