import pytest
import torch

import lessons
from alula.bench.workloads import WORKLOADS
from alula.models.load import load
from alula.models.progress import silent
from alula.training.drafting import as_checkpoint
from alula.training.evaluate import (
    ALL,
    HELD_OUT,
    LOOPING,
    Answered,
    Setting,
    answer,
    contexts,
    prompts,
    rows,
    settings,
    summary,
)
from alula.training.fit import Fit, Trainer
from alula.training.held_out import spans

GREEDY = Setting("chain:3", 0.0, shared=True)


@pytest.fixture(scope="module")
def model(tiny_model):
    return load(str(tiny_model), dtype="float32")


@pytest.fixture(scope="module")
def corpus(model, tmp_path_factory):
    return lessons.corpus(model, tmp_path_factory.mktemp("data"), count=32)


@pytest.fixture(scope="module")
def checkpoint(model, corpus):
    trainer = Trainer(
        model, corpus, Fit(draft_vocab=259, steps=3, epochs=25, batch_tokens=96, rate=3e-3)
    )
    while trainer.step < len(trainer.plan):
        trainer.learn(trainer.prepare(trainer.batch()))
    return as_checkpoint(trainer.network, trainer.draft_ids, torch.float32)


def test_prompts_are_those_of_bench_and_held_out_ones(model, corpus):
    found = prompts(model, corpus, each=2)
    assert {p.kind for p in found} == {*WORKLOADS, HELD_OUT}
    assert len(found) == 2 * len(WORKLOADS) + int(corpus.held_out.sum())
    held = [p.ids for p in found if p.kind == HELD_OUT]
    number = int(corpus.held_out.nonzero()[0][0])
    tokens, mask = corpus.of(number)
    assert held[0] == tokens[: spans(mask.tolist())[0][0]].tolist()


def test_contexts_are_as_long_as_asked_and_end_with_a_question(corpus):
    made = contexts(corpus, (50, 120, 200, 999), each=3, longest=200)
    assert [length for length, _ in made] == [50, 120, 200]
    for length, group in made:
        for prompt in group:
            assert len(prompt.ids) == length
            assert prompt.kind == f"{length} tokens"


def test_shared_noise_agrees_more_often_than_independent_noise(model, corpus, checkpoint):
    asked = prompts(model, corpus, each=1, held_out=8)[len(WORKLOADS) :]
    taus = {}
    for way in (Setting("chain:3", 1.0, shared=True), Setting("chain:3", 1.0, shared=False)):
        done = answer(model, checkpoint, way, asked, max_tokens=32, sequences=4, progress=silent)
        taus[way.noise] = summary([a for a in done if a.rounds])["tau"]
    assert taus["shared"] > taus["independent"]


def test_each_shape_is_measured_greedily_and_with_both_kinds_of_noise():
    assert [str(way) for way in settings(("chain:5",))] == [
        "chain:5 at T 0.0",
        "chain:5 at T 0.8, shared noise",
        "chain:5 at T 0.8, independent noise",
    ]


def _answered(kind, emitted, looping=False):
    return Answered(kind, looping, 10, emitted, (10, 6), (6, 3))


def test_looping_and_held_out_answers_are_apart_from_the_whole():
    answers = [
        _answered("chat", 20),
        _answered("code", 30),
        _answered("code", 100, looping=True),
        _answered(HELD_OUT, 90),
    ]
    found = {row["kind"]: row for row in rows(GREEDY, answers)}
    assert found[ALL]["tau"] == 2.5 and found[ALL]["prompts"] == 2
    assert found["code"]["tau"] == 3.0
    assert found[LOOPING]["tau"] == 10.0
    assert found[HELD_OUT]["tau"] == 9.0
    assert found[ALL]["acceptance"] == [0.6, 0.5]


def test_the_interval_comes_from_differences_between_prompts():
    same = summary([_answered("chat", 25)] * 20)
    assert same["low"] == same["tau"] == same["high"] == 2.5
    mixed = summary([_answered("chat", emitted) for emitted in (10, 40) * 10])
    assert mixed["low"] < 2.2 < 2.5 < 2.8 < mixed["high"]
    more = summary([_answered("chat", emitted) for emitted in (10, 40) * 200])
    assert more["high"] - more["low"] < 0.4 * (mixed["high"] - mixed["low"])
