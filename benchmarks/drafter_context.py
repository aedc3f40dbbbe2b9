"""Accepted length of a drafter by length of the context.

    python benchmarks/drafter_context.py MODEL RUN [--drafter DIR] [--out FILE]

A greedy chain of five on held-out conversations of a training run, put one after another.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from alula.bench import results
from alula.engine.llm import device_named
from alula.models.load import load
from alula.models.progress import silent
from alula.speculation import eagle3_checkpoint
from alula.training.corpus import load_corpus
from alula.training.evaluate import Setting, at_length, contexts
from alula.training.synthesise import shard_paths

OUT = Path(__file__).parent / "results" / "drafter_context.json"
DRAFTER = Path(eagle3_checkpoint.__file__).parent / "drafters" / "smollm2"
LENGTHS = (512, 1024, 2048, 4096, 8192)
ANSWER = 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("run", type=Path, help="the --out of alula train")
    parser.add_argument("--drafter", type=Path, default=DRAFTER)
    parser.add_argument("--lengths", type=lambda text: [int(x) for x in text.split(",")])
    parser.add_argument("--each", type=int, default=8)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.set_defaults(lengths=LENGTHS)
    options = parser.parse_args()
    model = load(options.model, device_named(options.device), options.dtype, silent)
    checkpoint = eagle3_checkpoint.load(options.drafter)
    corpus = load_corpus(shard_paths(options.run / "data"))
    chain = Setting("chain:5", 0.0, shared=True)
    found = []
    longest = model.decoder.shape.max_positions - ANSWER
    for length, asked in contexts(corpus, options.lengths, options.each, longest):
        found += at_length(model, checkpoint, chain, length, asked, silent)
        print(found[-1], flush=True)
    settings = {"model": Path(options.model).name, "dtype": str(model.decoder.dtype)}
    made = results.record("drafter_context", settings, found, ("alula", "torch"))
    results.write(options.out, made)


if __name__ == "__main__":
    main()
