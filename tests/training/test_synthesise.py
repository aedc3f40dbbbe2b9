import json
from dataclasses import replace

import pytest

from alula.errors import ModelError, UsageError
from alula.models.load import load
from alula.models.progress import silent
from alula.training.corpus import load_corpus
from alula.training.given import read_prompts
from alula.training.seeds import TASKS, TOPICS
from alula.training.synthesise import Synthesis, shard_paths, synthesise
from alula.training.turns import Turns

QUERY, ANSWER = "What is a wing made of?", "Feathers and bones."
SMALL = Synthesis(tokens=9000, together=60, max_length=600, held_out=0.3)


@pytest.fixture(scope="module")
def model(tiny_model):
    return load(str(tiny_model), dtype="float32")


class Scripted:
    """A model that says what it is told; a request ends as a model would end it."""

    def __init__(self, model, query, answer):
        self.tokenizer = model.tokenizer
        self.end = Turns(model).end_id
        self.query, self.answer = query, answer
        self.asks = []

    def __call__(self, asks, then, _progress):
        for number, ask in enumerate(asks):
            following = ask
            while following is not None:
                self.asks.append(following)
                following = then(number, self._say(len(self.asks), following))

    def _say(self, number, ask):
        is_query = bool(ask.stop_ids)
        text = (self.query if is_query else self.answer)(number, ask)
        return [*self.tokenizer.encode(text), self.end][: ask.max_tokens]


def _words(number, ask):
    """Other words for every seed."""
    return " ".join(str(ask.seed * (2 * i + 3) % 10**9) for i in range(4))


def _write(model, folder, settings=SMALL, query=_words, answer=_words, given=None):
    writer = Scripted(model, query, answer)
    manifest = synthesise(model, writer, folder, settings, silent, lambda _: None, given)
    return writer, manifest, load_corpus(shard_paths(folder))


def test_seeds_are_many_and_different():
    assert len(set(TOPICS)) >= 200
    assert len({task.request for task in TASKS}) >= 40
    assert all(("{topic}" in t.request) != ("{text}" in t.request) for t in TASKS)


def test_conversations_are_what_the_model_would_read_and_answers_bear_loss(model, tmp_path):
    _, _, corpus = _write(model, tmp_path)
    assert 0.1 < corpus.held_out.mean() < 0.6
    several = 0
    for number in range(len(corpus)):
        tokens, mask = corpus.of(number)
        text = model.tokenizer.decode(tokens.tolist(), skip_special=False)
        turns = text.split("<|im_start|>")[1:]
        roles = [turn.partition("\n")[0] for turn in turns]
        assert roles == ["user", "assistant"] * (len(turns) // 2)
        assert text.count("<|im_end|>") == len(turns) or not text.endswith("<|im_end|>")
        said = "".join(turn.partition("\n")[2].removesuffix("\n") for turn in turns[1::2])
        learnt = model.tokenizer.decode(tokens[mask].tolist(), skip_special=False)
        assert learnt == said
        several += len(turns) > 2
    assert several > 5


def test_every_request_has_a_seed_of_its_own(model, tmp_path):
    writer, _, _ = _write(model, tmp_path)
    seeds = [ask.seed for ask in writer.asks]
    assert len(set(seeds)) == len(seeds) > 100
    assert {ask.temperature for ask in writer.asks if not ask.stop_ids} == {0.0, 0.7, 1.0}


def test_what_is_no_proper_query_or_answer_is_dropped_by_cause(model, tmp_path):
    def query(number, ask):
        return ("Hm?", "word " * 200, QUERY, QUERY.upper(), _words(number, ask))[number % 5]

    def answer(number, ask):
        return "round and " * 40 if number % 4 == 0 else _words(number, ask)

    _, manifest, _ = _write(model, tmp_path, query=query, answer=answer)
    dropped = manifest["shards"][0]["dropped"]
    assert {"query too short", "query without an end", "same query"} <= dropped.keys()
    assert dropped["same query"] > 5


def test_near_duplicates_are_dropped(model, tmp_path):
    def query(number, ask):
        return f"Please tell me all there is to know about the wings of birds, part {number % 7}"

    def answer(number, ask):
        return "A wing is made of feathers and bones, and it is light for its size and strong."

    settings = Synthesis(tokens=200, together=40, max_length=600)
    _, manifest, _ = _write(model, tmp_path, settings, query, answer)
    assert manifest["shards"][0]["dropped"]["near duplicate"] >= 5


def test_an_interrupted_run_goes_on_to_the_same_data(model, tmp_path):
    _, whole, expected = _write(model, tmp_path / "whole")
    first = Synthesis(**{**SMALL.__dict__, "tokens": 1})
    _, begun, _ = _write(model, tmp_path / "parts", first)
    assert len(begun["shards"]) == 1 < len(whole["shards"])
    _, _, found = _write(model, tmp_path / "parts")
    assert len(found) == len(expected)
    for number in range(len(expected)):
        assert found.of(number)[0].tolist() == expected.of(number)[0].tolist()
    assert (found.held_out == expected.held_out).all()


def test_a_model_that_says_nothing_useful_is_given_up(model, tmp_path):
    settings = Synthesis(tokens=10**6, together=100, max_length=600)
    with pytest.raises(ModelError, match="no conversations") as caught:
        _write(model, tmp_path, settings, answer=lambda *_: "")
    assert "repetition" in caught.value.why


def test_given_prompts_are_answered_once_at_every_temperature(model, tmp_path):
    given = [[{"role": "user", "content": f"Question number {n}, please"}] for n in range(20)]
    _, manifest, corpus = _write(model, tmp_path, Synthesis(tokens=10**6, together=8), given=given)
    assert len(corpus) == 60
    assert sorted(set(corpus.temperature.round(1).tolist())) == [0.0, pytest.approx(0.7), 1.0]
    assert len(manifest["shards"]) == 9


def test_a_model_without_a_template_answers_plain_prompts_only(model, tmp_path):
    plain = replace(model, chat_template=None)
    with pytest.raises(UsageError, match="cannot write its own"):
        Turns(plain)
    writer = Scripted(model, _words, _words)
    given = [[{"role": "user", "content": f"Once there were {n} birds"}] for n in range(5)]
    synthesise(plain, writer, tmp_path, Synthesis(tokens=10**6), silent, lambda _: None, given)
    tokens, _ = load_corpus(shard_paths(tmp_path)).of(0)
    assert model.tokenizer.decode(tokens.tolist()).startswith("Once there were")


def test_bad_lines_are_listed_and_good_ones_kept(tmp_path):
    file = tmp_path / "prompts.jsonl"
    talk = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    good = [json.dumps({"prompt": "One", "extra": 1}), json.dumps({"messages": talk})]
    bad = [b"{", b"[]", b'{"prompt": ""}', b'{"messages": [{"role": "user"}]}', b"\xff"]
    file.write_bytes(b"\n".join([*(line.encode() for line in good), *bad]))
    given = read_prompts(file)
    assert [c[-1]["content"] for c in given.conversations] == ["One", "Hi"]
    assert [line.split(":")[0] for line in given.bad] == [f"line {n}" for n in range(3, 8)]
    assert "2 prompts, 5 left out" in given.report()
