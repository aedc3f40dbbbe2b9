"""How much data buys how much acceptance: drafters fitted on parts of one run's data.

All parts are judged on the same held-out conversations and on the prompts of `bench`, greedily.
Every fit has the same passes over its data, more where they would be fewer than 1,000 steps.

    python benchmarks/training_data_sizes.py MODEL RUN [--shares 0.03,0.1,0.3] [--out FILE]
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from alula.bench import results
from alula.engine.llm import device_named
from alula.models.load import LoadedModel, load
from alula.models.progress import silent
from alula.training.corpus import Corpus, load_corpus
from alula.training.drafting import as_checkpoint
from alula.training.evaluate import ALL, Setting, answer, prompts, rows
from alula.training.fit import Fit, Trainer
from alula.training.synthesise import shard_paths

OUT = Path(__file__).parent / "results" / "training_data_sizes.json"
LEAST_STEPS = 1000
SHAPES = ("chain:5", "tree:5x4:16")
PACKAGES = ("alula", "torch", "triton")


def main() -> None:
    options = arguments()
    model = load(options.model, device_named(options.device), options.dtype, silent)
    corpus = load_corpus(shard_paths(options.run / "data"))
    settings = Fit(epochs=options.epochs, batch_tokens=options.batch_tokens)
    found = []
    for share in options.shares:
        found.append(fitted(model, part(corpus, share), settings))
        print(found[-1], flush=True)
    made = results.record("training_data_sizes", {"model": options.model}, found, PACKAGES)
    results.write(options.out, made)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("run", type=Path, help="the --out of alula train")
    parser.add_argument("--shares", type=lambda text: [float(x) for x in text.split(",")])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-tokens", type=int, default=8192)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.set_defaults(shares=[0.03, 0.1, 0.3, 1.0])
    return parser.parse_args()


def part(corpus: Corpus, share: float) -> Corpus:
    """All that is held out, and the first `share` of the rest."""
    held_out, rest = np.flatnonzero(corpus.held_out), np.flatnonzero(~corpus.held_out)
    return corpus.only(np.concatenate((rest[: max(1, int(share * len(rest)))], held_out)))


def fitted(model: LoadedModel, corpus: Corpus, settings: Fit) -> dict[str, Any]:
    """Fit on a corpus, and what the drafter reaches."""
    once = len(Trainer(model, corpus, replace(settings, epochs=1)).plan)
    epochs = max(settings.epochs, -(-LEAST_STEPS // once))
    trainer = Trainer(model, corpus, replace(settings, epochs=epochs, judged=1 << 30))
    started = time.perf_counter()
    while trainer.step < len(trainer.plan):
        trainer.learn(trainer.prepare(trainer.batch()))
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    learnt = corpus.answer_tokens(np.flatnonzero(~corpus.held_out))
    return {
        "answer_tokens": learnt,
        "epochs": epochs,
        "steps": trainer.step,
        "seconds": round(seconds, 1),
        "coverage": trainer.coverage(),
        "held_out": trainer.judge(trainer.judged_batches()),
        "hand_written": by_hand(model, trainer),
    }


def by_hand(model: LoadedModel, trainer: Trainer) -> dict[str, Any]:
    """Greedy chain and tree on the prompts of `bench`; looping answers left out."""
    checkpoint = as_checkpoint(trainer.network, trainer.draft_ids, torch.float16)
    found = {}
    for shape in SHAPES:
        way = Setting(shape, 0.0, shared=True)
        asked = prompts(model, None)
        done = answer(model, checkpoint, way, asked, max_tokens=128, sequences=64, progress=silent)
        found[shape] = next(row for row in rows(way, done) if row["kind"] == ALL)
    return found


if __name__ == "__main__":
    main()
