"""What is read off one pass over greedy text equals what decoding it measures."""

import numpy as np
import pytest
import torch

import lessons
from alula.engine.core import Engine
from alula.engine.settings import Settings
from alula.engine.speculator import Speculator
from alula.models.load import load
from alula.sampling.params import SamplingParams
from alula.speculation.eagle3 import Eagle3
from alula.speculation.eagle3_drafter import Eagle3Drafter
from alula.speculation.tree import TreeShape
from alula.training.drafting import as_checkpoint
from alula.training.fit import Fit, Trainer
from alula.training.held_out import Judge, spans, walk
from alula.training.target import DenseTarget

DEPTH = 3


def test_tau_of_greedy_text_equals_that_of_decoding_it(tiny_model, tmp_path):
    model = load(str(tiny_model), dtype="float32")
    corpus = lessons.corpus(model, tmp_path, count=32)
    trainer = Trainer(
        model, corpus, Fit(draft_vocab=64, steps=DEPTH, epochs=30, batch_tokens=96, rate=3e-3)
    )
    for _ in range(len(trainer.plan)):
        trainer.learn(trainer.prepare(trainer.batch()))
    chosen = np.flatnonzero(~corpus.held_out & (corpus.temperature == 0))
    batches = [corpus.batch(chosen[:5].tolist()), corpus.batch(chosen[5:].tolist())]
    judge = Judge(DenseTarget(model.decoder), trainer.taps, trainer.draft_ids, DEPTH)
    found = judge.walk(trainer.network, batches)
    checkpoint = as_checkpoint(trainer.network, trainer.draft_ids, torch.float32)
    network = Eagle3(checkpoint, embedding=model.decoder.embedding, device=model.decoder.device)
    drafter = Eagle3Drafter(network, TreeShape(DEPTH, 1, DEPTH), taps=trainer.taps)
    engine = Engine(model, Settings(max_length=128, max_sequences=2), Speculator(drafter))
    requests = []
    for batch in batches:
        for line in range(len(batch.tokens)):
            ((start, end),) = spans(batch.mask[line].tolist())
            prompt = batch.tokens[line, :start].tolist()
            params = SamplingParams(temperature=0.0, max_tokens=end - start)
            requests.append(engine.add(prompt, params))
    while engine.has_work:
        engine.step()
    answers = [request.answers[0].output().speculation for request in requests]
    assert len(answers) == len(chosen) > 8
    assert (found.rounds, found.emitted) == (
        sum(a.rounds for a in answers),
        sum(a.emitted for a in answers),
    )
    assert found.tau > 1.3


def test_rounds_over_known_hits():
    hits = np.array([[1, 1, 1], [0, 0, 0], [1, 0, 1], [0, 1, 1], [1, 1, 0], [1, 1, 1]], bool)
    # Roots at 1 (accepts 3, emits 4) and at 5 (accepts 2, the text ends with 8).
    found = walk(hits, start=1, end=9)
    assert (found.rounds, found.emitted) == (2, 7)
    assert found.drafted.tolist() == [2, 2, 2]
    assert found.accepted.tolist() == [2, 2, 1]
    assert walk(hits, start=1, end=2).tau == 1.0


@pytest.mark.parametrize(
    ("mask", "expected"),
    [([0, 1, 1, 0, 1], [(1, 3), (4, 5)]), ([0, 0], []), ([1, 1], [(0, 2)])],
)
def test_answers_are_found_in_a_mask(mask, expected):
    assert spans([bool(m) for m in mask]) == expected
