"""How an answer ends and what it reports, the same with speculation and without.

The oracle drafts the true continuation, so that ends fall inside accepted paths.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from alula.cache.pool import KVPool
from alula.engine.answer import Answer
from alula.engine.core import Engine
from alula.engine.outputs import CompletionOutput, Delta
from alula.engine.request import Sequence
from alula.engine.runner import Emitted
from alula.engine.speculator import Speculator
from alula.models.load import LoadedModel, load
from alula.ops.rows import Rows
from alula.sampling.params import SamplingParams
from alula.speculation.tree import parse_shape
from exactness import Oracle, engine

PROMPT = "tell me something"
SHAPES = ["off", "chain:6", "tree:4x2:8"]


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> LoadedModel:
    return load(str(tiny_model), "cpu", "float32")


@pytest.fixture(scope="module")
def letters(model: LoadedModel) -> dict[int, float]:
    """A bias that leaves only letters, so that text and tokens can be compared one to one."""
    return {model.tokenizer.encode(chr(code))[0]: 60.0 for code in range(ord("a"), ord("z") + 1)}


class Writer:
    """Engines for one request whose unhindered answer is known."""

    def __init__(self, model: LoadedModel, params: SamplingParams) -> None:
        self.model, self.params = model, params
        self.prompt = model.tokenizer.encode(PROMPT)
        self.tokens: list[int] = []
        self.tokens = self.answer("off")[0].token_ids
        self.text = model.tokenizer.decode(self.tokens)

    def answer(self, words: str, **changes: Any) -> tuple[CompletionOutput, list[Delta]]:
        shape = parse_shape("chain:0" if words == "off" else words)
        oracle = Oracle(shape, [(self.prompt, self.tokens)], miss=99)
        made = engine(self.model, Speculator(oracle) if words != "off" else None)
        found = finish(made, self.prompt, replace(self.params, **changes))
        made.scheduler.check()
        assert not made.has_work
        return found


def finish(
    engine: Engine, prompt: list[int], params: SamplingParams
) -> tuple[CompletionOutput, list[Delta]]:
    events = list(engine.follow([engine.add(prompt, params)]))
    assert events[-1].output is not None
    return events[-1].output.outputs[0], [event.delta for event in events]


@pytest.fixture(scope="module")
def writer(model: LoadedModel, letters: dict[int, float]) -> Writer:
    params = SamplingParams(
        seed=5, temperature=2.0, max_tokens=30, ignore_eos=True, logit_bias=letters, logprobs=2
    )
    return Writer(model, params)


def test_the_oracle_is_accepted(writer: Writer) -> None:
    for words in SHAPES[1:]:
        answer, _ = writer.answer(words)
        assert answer.token_ids == writer.tokens
        assert answer.speculation.rounds < 12


@pytest.mark.parametrize("words", SHAPES)
def test_max_tokens_cuts_anywhere(writer: Writer, words: str) -> None:
    for count in range(1, 15):
        answer, deltas = writer.answer(words, max_tokens=count)
        assert answer.token_ids == writer.tokens[:count]
        assert (answer.finish_reason, answer.stop_reason) == ("length", None)
        assert answer.text == writer.text[:count]
        assert "".join(delta.text for delta in deltas) == answer.text
        assert answer.logprobs is not None
        assert len(answer.logprobs) == count


@pytest.mark.parametrize("words", SHAPES)
def test_a_stop_token_is_the_last_token_and_no_text(writer: Writer, words: str) -> None:
    for at in range(12):
        stop = writer.tokens[at]
        end = writer.tokens.index(stop)
        answer, deltas = writer.answer(words, stop_token_ids=[stop])
        assert answer.token_ids == writer.tokens[: end + 1]
        assert (answer.finish_reason, answer.stop_reason) == ("stop", stop)
        assert answer.text == writer.text[:end]
        assert "".join(delta.text for delta in deltas) == answer.text
        assert answer.logprobs is not None
        assert [part.token_id for part in answer.logprobs] == answer.token_ids


@pytest.mark.parametrize("words", SHAPES)
def test_a_stop_string_and_what_follows_is_left_out(writer: Writer, words: str) -> None:
    for at in range(12):
        stop = writer.text[at : at + 3]
        end = writer.text.index(stop)
        answer, deltas = writer.answer(words, stop=["nothing", stop])
        assert answer.text == writer.text[:end]
        assert "".join(delta.text for delta in deltas) == answer.text
        assert answer.token_ids == writer.tokens[:end]
        assert (answer.finish_reason, answer.stop_reason) == ("stop", stop)
        assert answer.logprobs is not None
        assert [part.token_id for part in answer.logprobs] == answer.token_ids


@pytest.mark.parametrize("words", SHAPES)
def test_a_stop_string_at_the_last_token_is_a_stop(writer: Writer, words: str) -> None:
    answer, _ = writer.answer(words, max_tokens=8, stop=writer.text[6:8])
    assert (answer.finish_reason, answer.text) == ("stop", writer.text[:6])


@pytest.mark.parametrize("words", SHAPES)
def test_the_beginning_of_a_stop_string_is_shown_where_the_answer_ends(
    writer: Writer, words: str
) -> None:
    answer, deltas = writer.answer(words, max_tokens=8, stop=writer.text[6:9])
    assert (answer.finish_reason, answer.text) == ("length", writer.text[:8])
    assert "".join(delta.text for delta in deltas) == answer.text


@pytest.mark.parametrize("words", SHAPES)
def test_end_of_sequence_ends_an_answer_unless_ignored(
    writer: Writer, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    eos = writer.tokens[7]
    end = writer.tokens.index(eos)
    monkeypatch.setattr(writer.model.tokenizer, "eos_ids", frozenset({eos}))
    answer, _ = writer.answer(words, ignore_eos=False)
    assert (answer.token_ids, answer.text) == (writer.tokens[: end + 1], writer.text[:end])
    assert (answer.finish_reason, answer.stop_reason) == ("stop", None)
    ignored, _ = writer.answer(words)
    assert (ignored.token_ids, ignored.finish_reason) == (writer.tokens, "length")
    named, _ = writer.answer(words, stop_token_ids=[eos])
    assert (named.token_ids, named.stop_reason) == (writer.tokens[: end + 1], eos)


@pytest.mark.parametrize("words", SHAPES)
def test_log_probabilities_are_those_of_the_unmodified_logits(writer: Writer, words: str) -> None:
    """Whatever temperature, bias and penalties made of them."""
    answer, _ = writer.answer(words)
    rows = logits(writer.model, writer.prompt + writer.tokens)[len(writer.prompt) - 1 : -1]
    wanted = rows.log_softmax(-1)
    likeliest = wanted.topk(2)
    assert answer.logprobs is not None
    for place, part in enumerate(answer.logprobs):
        assert part.token_id == writer.tokens[place]
        assert part.logprob == float(wanted[place, part.token_id])
        assert [token for token, _ in part.top] == likeliest.indices[place].tolist()
        assert [value for _, value in part.top] == likeliest.values[place].tolist()
    unasked, _ = writer.answer(words, logprobs=None)
    assert unasked.logprobs is None


def logits(model: LoadedModel, ids: list[int]) -> torch.Tensor:
    """Of all positions, in one launch over a pool of its own."""
    shape, at = model.decoder.shape, torch.arange(len(ids))
    pool = KVPool(
        layers=shape.layers,
        pages=8,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        page_size=32,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    table = torch.arange(8)[None]
    rows = Rows(at, at, torch.zeros_like(at), at, page_table=table, base=torch.tensor([0]))
    return model.decoder.logits(model.decoder.forward(torch.tensor(ids), rows, pool).last)


@pytest.mark.parametrize("words", SHAPES)
def test_counts_of_speculation_add_up(writer: Writer, words: str) -> None:
    answer, _ = writer.answer(words)
    counted = answer.speculation
    assert counted.emitted == len(answer.token_ids) - 1
    assert counted.tokens_per_round == counted.emitted / counted.rounds
    assert all(a <= d for a, d in zip(counted.accepted, counted.drafted, strict=True))
    assert all(0 <= rate <= 1 for rate in counted.acceptance)
    if words == "off":
        assert (counted.rounds, counted.drafted, counted.acceptance) == (29, (), [])
    else:
        assert counted.rounds + sum(counted.accepted) >= counted.emitted
        # A depth is tried where the one above it was accepted.
        assert all(d <= a for d, a in zip(counted.drafted[1:], counted.accepted, strict=False))


def test_before_the_first_round_there_is_no_rate(writer: Writer) -> None:
    answer, _ = writer.answer("chain:6", max_tokens=1)
    assert answer.speculation.rounds == 0
    assert answer.speculation.tokens_per_round is None


@pytest.mark.parametrize("words", SHAPES)
def test_deltas_bring_the_tokens_and_logprobs_of_their_text(writer: Writer, words: str) -> None:
    for stop in (None, writer.text[9:12], "never comes"):
        answer, deltas = writer.answer(words, stop=stop)
        assert [token for delta in deltas for token in delta.token_ids] == answer.token_ids
        assert [part for delta in deltas for part in delta.logprobs or []] == answer.logprobs
        text, tokens = "", list[int]()
        for delta in deltas:
            text, tokens = text + delta.text, tokens + delta.token_ids
            assert text.startswith(writer.model.tokenizer.decode(tokens))


@pytest.mark.parametrize("words", SHAPES)
def test_deltas_tell_drafted_tokens_from_others(writer: Writer, words: str) -> None:
    answer, deltas = writer.answer(words)
    drafted = [flag for delta in deltas for flag in delta.drafted]
    assert len(drafted) == len(answer.token_ids)
    # The last round is cut at max_tokens, and with it maybe an accepted token.
    assert sum(answer.speculation.accepted) - 6 <= sum(drafted) <= sum(answer.speculation.accepted)
    assert any(drafted) == (words != "off")


class Watched(list[int]):
    """Tokens that know how many of them were taken at once."""

    most = 0

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        if isinstance(at, slice):
            self.most = max(self.most, len(found))
        return found

    def __iter__(self) -> Any:
        raise AssertionError("all tokens are read again")


def test_a_delta_reads_no_token_of_those_before_it(model: LoadedModel) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=500)
    sequence = Sequence(id=0, prompt_ids=[65] * 40, params=params, key=0)
    answer = Answer(sequence, 0, model.tokenizer)
    sequence.token_ids = tokens = Watched(sequence.prompt_ids)
    for number in range(100):
        new = [66 + number % 3, 70]
        tokens.extend(new)
        emitted = Emitted(new, False, False, nodes=1, drafted=1, accepted=1, logprobs=None)
        delta, reason = answer.take(emitted)
        assert (delta.token_ids, reason) == (new, None)
    assert tokens.most == 2
