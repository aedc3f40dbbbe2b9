"""A fit in a process of its own, to be stopped: MODEL DATA OUT [resume] [rarely]."""

import sys
from dataclasses import replace
from pathlib import Path

import torch

from alula.models.load import load
from alula.models.progress import silent
from alula.training.corpus import load_corpus
from alula.training.fit import Fit, Trainer, fit

SETTINGS = Fit(
    draft_vocab=64, steps=3, epochs=4, batch_tokens=96, checkpoint_seconds=0.0, judgements=2
)


def main(model: str, data: str, out: str, *rest: str) -> None:
    torch.set_num_threads(1)
    seconds = 1e9 if "rarely" in rest else SETTINGS.checkpoint_seconds
    settings = replace(SETTINGS, checkpoint_seconds=seconds)
    trainer = Trainer(load(model, dtype="float32"), load_corpus([Path(data)]), settings)

    def say(line: str) -> None:
        print(line, flush=True)

    fit(trainer, Path(out), silent, say, resume="resume" in rest)


if __name__ == "__main__":
    main(*sys.argv[1:])
