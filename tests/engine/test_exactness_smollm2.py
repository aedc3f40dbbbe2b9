"""The same proofs on a real model: what SmolLM2 answers depends on the request alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from alula.bench.decode import chat_ids
from alula.bench.workloads import select
from alula.models.load import LoadedModel, load
from alula.sampling.params import SamplingParams
from exactness import Bench, Case, answers, answers_under_pressure, engine
from smollm2_reference import greedy, same_weights

pytestmark = pytest.mark.slow
SHAPES = ["ngram", "eagle chain:3", "eagle tree:3x3:9", "oracle tree:4x3:12"]
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


def sampled(seed: int) -> SamplingParams:
    return SamplingParams(
        temperature=0.8,
        top_p=0.95,
        repetition_penalty=1.1,
        presence_penalty=0.2,
        frequency_penalty=0.3,
        seed=seed,
        max_tokens=GREEDY.max_tokens,
        ignore_eos=True,
    )


def requests(model: LoadedModel, count: int) -> list[Case]:
    """Each prompt once greedy and once sampled, every kind of text among them."""
    prompts = [chat_ids(model, workload.prompt) for workload in select(prompts_per_kind=4)]
    return [
        (prompt, params)
        for seed, prompt in enumerate(prompts[:count])
        for params in (GREEDY, sampled(seed))
    ]


def made(dtype: str, count: int, folder: Path) -> Bench:
    model = load("smollm2", "cpu", dtype)
    assert not [note for note in model.notes if "not invariant" in note]
    return Bench(model, requests(model, count), folder)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return made("float32", 20, tmp_path_factory.mktemp("wide"))


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return made("bfloat16", 8, tmp_path_factory.mktemp("narrow"))


@pytest.mark.parametrize("words", SHAPES)
def test_smollm2_alone_answers_as_without_speculation(wide: Bench, words: str) -> None:
    some = slice(None) if words == "ngram" else slice(None, None, 3)
    found = answers(engine(wide.model, wide.speculator(words)), wide.cases[some], together=False)
    assert found == wide.plain[some]


@pytest.mark.parametrize("words", ["off", *SHAPES])
def test_smollm2_answers_alike_in_a_batch_with_a_cold_and_a_warm_cache(
    wide: Bench, words: str
) -> None:
    made = engine(wide.model, wide.speculator(words), cache_tokens=8192)
    assert answers(made, wide.cases, together=True) == wide.plain
    assert answers(made, wide.cases[::3], together=True) == wide.plain[::3]


@pytest.mark.parametrize("words", ["off", *SHAPES])
def test_smollm2_answers_alike_whatever_the_prefill_chunks(wide: Bench, words: str) -> None:
    made = engine(wide.model, wide.speculator(words), chunk_rows=13)
    assert answers(made, wide.cases[::7], together=True) == wide.plain[::7]


@pytest.mark.parametrize("words", ["off", *SHAPES])
def test_smollm2_answers_alike_after_preemption(wide: Bench, words: str) -> None:
    sizes = {"cache_tokens": 224, "max_length": 160, "page_size": 16}
    made = engine(wide.model, wide.speculator(words), **sizes)
    found, preemptions = answers_under_pressure(made, wide.cases[:16])
    assert preemptions > 0
    assert found == wide.plain[:16]


@pytest.mark.parametrize("words", ["ngram", "oracle tree:4x3:12"])
def test_smollm2_on_two_threads_answers_alike_with_speculation(wide: Bench, words: str) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        some = wide.cases[::5]
        plain = answers(engine(wide.model), some, together=True)
        assert answers(engine(wide.model, wide.speculator(words)), some, together=False) == plain
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("words", ["off", *SHAPES])
def test_smollm2_in_bfloat16_answers_alike_in_a_batch(narrow: Bench, words: str) -> None:
    made = engine(narrow.model, narrow.speculator(words))
    assert answers(made, narrow.cases, together=True) == narrow.plain


def test_smollm2_answers_as_transformers_does(wide: Bench) -> None:
    """Token for token over 64 tokens, greedily, in fp32."""
    prompts = [chat_ids(wide.model, w.prompt) for w in select(prompts_per_kind=3)][:16]
    params = SamplingParams(temperature=0.0, max_tokens=64)
    found = answers(engine(wide.model), [(prompt, params) for prompt in prompts], together=True)
    theirs, ends = same_weights(wide.model), sorted(wide.model.tokenizer.eos_ids)
    assert found == [greedy(theirs, prompt, ends, 64) for prompt in prompts]
    assert sum(map(len, found)) > 16 * 48
