"""Grammars with speculation: valid, and the same tokens as without."""

from __future__ import annotations

import json
import random
from pathlib import Path

import jsonschema_rs
import pytest
import torch
from llguidance import LLMatcher

from alula.engine.constraint import Constraint
from alula.engine.core import Engine
from alula.engine.outputs import CompletionOutput
from alula.engine.speculator import Speculator
from alula.errors import UsageError
from alula.models.load import LoadedModel, load
from alula.sampling.grammar import Grammars
from alula.sampling.params import SamplingParams
from alula.speculation.drafter import DraftContext, Drafter
from alula.speculation.ngram import NgramDrafter
from alula.speculation.tree import DraftTree, TreeShape, parse_shape
from exactness import Oracle, engine
from random_schemas import random_schema

PROMPT = "Describe a bird: "
EOS = 2
"""The tiny model's end of sequence."""


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> LoadedModel:
    return load(str(tiny_model), "cpu", "float32")


@pytest.fixture
def whole_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny model's launch takes no longer than a mask, so that hardly a node would be left."""
    monkeypatch.setattr(Constraint, "trim", lambda *_: None)


def params(grammar: str, seed: int, model: LoadedModel, **fields: int) -> SamplingParams:
    """What is begun tends to end: a random model would write strings and numbers for ever."""
    closing = {model.tokenizer.encode(character)[0]: 4.0 for character in '"}],'}
    settings = {"max_tokens": 120, **fields}
    return SamplingParams(grammar=grammar, seed=seed, logit_bias=closing, **settings)  # type: ignore[arg-type]


def answer(engine: Engine, prompt: list[int], asked: SamplingParams) -> CompletionOutput:
    (*_, last) = engine.follow([engine.add(prompt, asked)])
    engine.scheduler.check()
    assert last.output is not None
    return last.output.outputs[0]


class Scripted(Drafter):
    """Drafts the true continuation with one wrong token at a place of the window."""

    def __init__(self, depth: int, truth: list[int], start: int, wrong_at: int, wrong: int) -> None:
        super().__init__(TreeShape(depth, 1, depth))
        self._truth, self._start = truth, start
        self._wrong_at, self._wrong = wrong_at, wrong

    def allocate(self, pages: int, page_size: int, sequences: int, device: torch.device) -> None:
        """It keeps no keys."""

    def propose(self, context: DraftContext, depth: int) -> DraftTree:
        """See `Drafter.propose`."""
        tokens = torch.full((len(context.history), self.shape.nodes), -1)
        for line in context.drafting.tolist():
            done = int(context.lengths[line]) - self._start
            window = self._truth[done : done + depth]
            if self._wrong_at < len(window):
                window = [*window[: self._wrong_at], self._wrong, *window[self._wrong_at + 1 :]]
            tokens[line, : len(window)] = torch.tensor(window, dtype=torch.int64)
        parents = torch.arange(self.shape.nodes).expand_as(tokens)
        return DraftTree(tokens, parents)


def prove(model: LoadedModel, seeds: range) -> None:
    prompt = model.tokenizer.encode(PROMPT)
    plain = engine(model)
    shared = engine(model, Speculator(NgramDrafter(parse_shape("chain:4"))))
    ended = 0
    for seed in seeds:
        schema = random_schema(random.Random(seed))
        grammar = LLMatcher.grammar_from_json_schema(schema)
        asked = params(grammar, seed, model)
        expected = answer(plain, prompt, asked)
        oracle = Oracle(parse_shape("tree:4x2:8"), [(prompt, expected.token_ids)], miss=3)
        assert answer(shared, prompt, asked).token_ids == expected.token_ids
        speculating = answer(engine(model, Speculator(oracle)), prompt, asked)
        assert speculating.token_ids == expected.token_ids
        assert speculating.finish_reason == expected.finish_reason
        if expected.finish_reason == "stop":
            ended += 1
            jsonschema_rs.validate(schema, json.loads(expected.text))
        else:
            matcher = plain.grammars.matcher(grammar, expected.token_ids)
            assert not matcher.failed
    assert ended > len(seeds) // 2


@pytest.mark.usefixtures("whole_drafts")
def test_random_schemas_are_kept_with_the_same_tokens(model: LoadedModel) -> None:
    prove(model, range(5))


@pytest.mark.slow
@pytest.mark.usefixtures("whole_drafts")
def test_two_hundred_random_schemas(model: LoadedModel) -> None:
    prove(model, range(200))


@pytest.mark.usefixtures("whole_drafts")
def test_a_wrong_token_anywhere_in_the_window_changes_nothing(model: LoadedModel) -> None:
    grammar = LLMatcher.grammar_from_json_schema(random_schema(random.Random(3)))
    prompt, asked = model.tokenizer.encode(PROMPT), params(grammar, 1, model, max_tokens=40)
    expected = answer(engine(model), prompt, asked)
    start = len(prompt)
    for wrong in (EOS, *model.tokenizer.encode('{"x')):
        for place in range(5):
            drafter = Scripted(5, expected.token_ids, start, place, wrong)
            found = answer(engine(model, Speculator(drafter)), prompt, asked)
            assert found.token_ids == expected.token_ids, (wrong, place)


@pytest.mark.usefixtures("whole_drafts")
def test_the_end_may_fall_anywhere_in_the_window(model: LoadedModel) -> None:
    prompt = model.tokenizer.encode(PROMPT)
    for length in range(1, 14):
        grammar = LLMatcher.grammar_from_regex(f"[ab]{{{length}}}")
        asked = params(grammar, length, model)
        expected = answer(engine(model), prompt, asked)
        assert expected.finish_reason == "stop"
        assert expected.token_ids[-1] == EOS
        truth = [*expected.token_ids, *model.tokenizer.encode("abababab")]
        drafter = Scripted(7, truth, len(prompt), 99, 0)
        found = answer(engine(model, Speculator(drafter)), prompt, asked)
        assert found.token_ids == expected.token_ids
        assert found.text == expected.text
        assert found.speculation.rounds <= 2, "the draft is the truth"


class Fragile:
    """A matcher that becomes too complex after a token, or at every node of a draft."""

    def __init__(self, inside: LLMatcher, fatal: int | None) -> None:
        self._inside, self._fatal = inside, fatal
        self._drafted = 0
        self._failed = False

    def deep_copy(self) -> Fragile:
        return Fragile(self._inside.deep_copy(), self._fatal)

    def is_error(self) -> bool:
        return self._failed or self._inside.is_error()

    def consume_tokens(self, tokens: list[int]) -> bool:
        return not self._failed and self._inside.consume_tokens(tokens)

    def try_consume_tokens(self, tokens: list[int]) -> int:
        if self._failed:
            return 0
        consumed = self._inside.try_consume_tokens(tokens)
        self._drafted += consumed
        self._failed = consumed > 0 and self._fatal in (None, *tokens)
        return consumed

    def rollback(self, count: int) -> None:
        assert not self.is_error(), "who has failed cannot go back"
        self._drafted -= count
        self._inside.rollback(count)

    def unsafe_compute_mask_ptr(self, pointer: int, size: int) -> None:
        self._inside.unsafe_compute_mask_ptr(pointer, size)


@pytest.mark.parametrize("fatal", [None, "x", "1"])
@pytest.mark.usefixtures("whole_drafts")
def test_a_node_that_is_too_complex_costs_speed_alone(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch, fatal: str | None
) -> None:
    """Wherever it lies: on the path that is taken in the end, or beside it."""
    prompt = model.tokenizer.encode(PROMPT)
    asked = params(LLMatcher.grammar_from_regex("[0-9x]{30}"), 3, model)
    expected = answer(engine(model), prompt, asked)
    compiled = Grammars.compile
    fatal_id = None if fatal is None else model.tokenizer.encode(fatal)[0]
    monkeypatch.setattr(Grammars, "compile", lambda *given: Fragile(compiled(*given), fatal_id))
    for shape in ("chain:4", "tree:4x2:8"):
        oracle = Oracle(parse_shape(shape), [(prompt, expected.token_ids)], miss=3)
        found = answer(engine(model, Speculator(oracle)), prompt, asked)
        assert found.token_ids == expected.token_ids
        assert found.finish_reason == expected.finish_reason == "stop"
        if fatal is None:
            assert found.speculation.rounds == len(found.token_ids) - 1, "no draft is taken"


def test_a_grammar_too_complex_at_the_root_ends_its_own_request_alone(model: LoadedModel) -> None:
    prompt = model.tokenizer.encode(PROMPT)
    complex_grammar = LLMatcher.grammar_from_regex("a{1000000000}")
    free = SamplingParams(seed=4, max_tokens=30, ignore_eos=True)
    held = params(LLMatcher.grammar_from_regex(r"[0-9]{20}"), 4, model)
    alone = [answer(engine(model), prompt, each).token_ids for each in (free, held)]
    together = engine(model, Speculator(NgramDrafter(parse_shape("chain:3"))))
    asked = (params(complex_grammar, 1, model, max_tokens=60), free, held)
    requests = [together.add(prompt, each) for each in asked]
    list(together.follow(requests))
    failed, *others = [request.answers[0].output() for request in requests]
    assert failed.finish_reason == "abort"
    assert [output.token_ids for output in others] == alone


@pytest.mark.usefixtures("whole_drafts")
def test_constrained_and_free_requests_share_launches(model: LoadedModel) -> None:
    prompt = model.tokenizer.encode(PROMPT)
    free = SamplingParams(seed=4, max_tokens=30, ignore_eos=True, logprobs=1)
    held = params(LLMatcher.grammar_from_regex(r"[0-9]{20}"), 4, model)
    together = engine(model, Speculator(NgramDrafter(parse_shape("chain:3"))))
    requests = [together.add(prompt, each) for each in (free, held, free, held)]
    list(together.follow(requests))
    found = [request.answers[0].output().token_ids for request in requests]
    alone = [answer(engine(model), prompt, each).token_ids for each in (free, held)]
    assert found == alone * 2
    assert model.tokenizer.decode(found[1]).isdigit()


def test_giving_way_for_lack_of_pages_keeps_the_grammar(model: LoadedModel) -> None:
    prompt = model.tokenizer.encode(PROMPT)
    grammar = LLMatcher.grammar_from_regex("[0-9]{70}")
    cases = [params(grammar, seed, model, max_tokens=90) for seed in range(4)]
    alone = [answer(engine(model), prompt, each).token_ids for each in cases]
    tight = engine(model, cache_tokens=256, max_length=128, page_size=16)
    requests = [tight.add(prompt, each) for each in cases]
    list(tight.follow(requests))
    outputs = [request.answers[0].output() for request in requests]
    assert sum(output.preemptions for output in outputs) > 0
    assert [output.token_ids for output in outputs] == alone


def test_logprobs_are_those_of_the_unmodified_logits(model: LoadedModel) -> None:
    prompt = model.tokenizer.encode(PROMPT)
    free = SamplingParams(temperature=0.0, max_tokens=1, logprobs=3)
    held = SamplingParams(
        temperature=0.0, max_tokens=1, logprobs=3, grammar=LLMatcher.grammar_from_regex("[xyz]+")
    )
    expected, found = (answer(engine(model), prompt, each) for each in (free, held))
    assert expected.logprobs is not None and found.logprobs is not None
    assert found.logprobs[0].top == expected.logprobs[0].top
    assert found.text in ("x", "y", "z")


def test_expensive_masks_are_asked_for_fewer_nodes(model: LoadedModel) -> None:
    made = engine(model, Speculator(NgramDrafter(parse_shape("chain:8"))))
    constraint = made._constraint
    constraint._launch_seconds, constraint._mask_seconds = 1.0, 1.0
    prompt = model.tokenizer.encode("1234567890" * 5)
    held = params(LLMatcher.grammar_from_regex(r"(1234567890)+"), 0, model, max_tokens=60)
    nodes: list[int] = []
    made.observers.append(lambda record: nodes.append(record.draft_nodes))

    def costly(*_: object) -> None:
        constraint._launch_seconds, constraint._mask_seconds = 1.0, 0.25

    made.observers.append(costly)
    answer(made, prompt, held)
    assert max(nodes[1:]) == 3, "four masks fit into a launch, the root's among them"


@pytest.mark.parametrize("grammar", [r"[^\s\S]", "start: a\na: b\nb: a"])
def test_a_grammar_that_nothing_matches_is_refused(model: LoadedModel, grammar: str) -> None:
    lark = grammar if "start" in grammar else LLMatcher.grammar_from_regex(grammar)
    with pytest.raises(UsageError, match="nothing matches"):
        engine(model).add([5], SamplingParams(grammar=lark))


def test_broken_grammars_are_refused(model: LoadedModel) -> None:
    with pytest.raises(UsageError, match="grammar"):
        engine(model).add([5], SamplingParams(grammar="start: ("))
    with pytest.raises(UsageError, match="ignore_eos"):
        SamplingParams(grammar="start: /a/", ignore_eos=True)
