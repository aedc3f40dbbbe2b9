"""The data files hold what the engine relies on, and their patterns cost linear time."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from alula.diagnosis.chains import chains
from alula.diagnosis.facts import Condition
from alula.diagnosis.signatures import CLASSES, Kind, Signature, knowledge, parse

NAMED = """
capability capability.major capability.target gpus links p2p driver driver.cuda driver.cuda.major
nvcc nccl torch.cuda torch.cuda.major torch.lacks loading imageless tp command phase frames line log
exit torch triton sglang sgl-kernel flashinfer-python vllm
"""
FACTS = frozenset(NAMED.split())
SIGNATURES = knowledge().signatures
SHORT, LONG = 4_000, 64_000


def every_condition() -> Iterator[Condition]:
    for signature in SIGNATURES:
        yield from signature.requires
        for ruling in signature.rulings:
            yield from (*ruling.when, *(ruling.certain or ()), *(ruling.cleared_when or ()))
    for known in chains().gates:
        yield from known.closed_when
    for suspect in chains().suspects:
        yield from suspect.ruling.when


def test_conditions_name_facts_that_exist() -> None:
    names = {condition.name for condition in every_condition()}
    named = {name for name in names if not name.startswith(("match.", "setting.", "{match."))}
    assert named <= FACTS
    values = {c.value.strip("{}") for c in every_condition() if c.value.startswith("{")}
    assert {value for value in values if not value.startswith("match.")} <= FACTS


def test_conditions_on_seen_signatures_name_some() -> None:
    names = {signature.name for signature in SIGNATURES}
    asked = {condition.value for condition in every_condition() if condition.name == "log"}
    assert asked <= names


@pytest.mark.parametrize("signature", SIGNATURES, ids=lambda signature: signature.name)
def test_a_signature_names_its_sources_and_its_parts(signature: Signature) -> None:
    assert signature.sources
    assert all(len(phrase) >= 4 for phrase in signature.phrases)
    groups = set(signature.pattern.groupindex) if signature.pattern else set()
    text = " ".join(
        f"{c.name} {c.value}"
        for ruling in signature.rulings
        for c in (*ruling.when, *(ruling.certain or ()), *(ruling.cleared_when or ()))
    )
    used = {word.strip("{}").removeprefix("match.") for word in text.split() if "match." in word}
    assert used <= groups


def test_names_are_unique_and_every_class_is_a_known_one() -> None:
    assert len({signature.name for signature in SIGNATURES}) == len(SIGNATURES)
    found = {
        ruling.failure_class
        for signature in SIGNATURES
        for ruling in signature.rulings
        if signature.kind in (Kind.FAILURE, Kind.DEGRADED)
    }
    assert found <= CLASSES


def test_each_phrase_is_found_by_some_needle() -> None:
    needles = knowledge().needles()
    for phrase in knowledge().phrases:
        assert any(needle in phrase.encode() for needle in needles)


def hostile(signature: Signature, size: int) -> Iterator[str]:
    """Lines that make a pattern with nested or adjacent repetitions crawl."""
    fillers = ("a", "1", " ", "9, ", "_ZN", "lib", "404", ".whl", "Killed", "cicc", "c10", "[")
    for phrase in signature.phrases:
        yield phrase * (size // len(phrase))
        for filler in fillers:
            yield phrase + filler * (size // len(filler))
            yield f"{phrase}{filler}" * (size // (len(phrase) + len(filler)))


def seconds(signature: Signature, text: str) -> float:
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        signature.parts(text)
        best = min(best, time.process_time() - start)
    return best


@pytest.mark.parametrize(
    "signature", [s for s in SIGNATURES if s.pattern], ids=lambda signature: signature.name
)
def test_patterns_cost_linear_time_on_hostile_lines(signature: Signature) -> None:
    pairs = zip(hostile(signature, SHORT), hostile(signature, LONG), strict=True)
    for short, long in pairs:
        # 16 times the text: a quadratic pattern would take 256 times as long.
        assert seconds(signature, long) < 80 * seconds(signature, short) + 2e-3


def test_a_signature_without_a_fix_or_of_an_unknown_class_is_refused() -> None:
    entry = """
    triggers = []\nalive = []\narguments = []\nquoting = []\nphase = []\nexit = []
    [[signature]]
    id = "x"\nphrases = ["x"]\nsources = ["y"]\nlayer = "setting"\nmeaning = "m"
    refuted_by = "r"\nclass = "{}"\nfix = "{}"
    """
    assert parse(entry.format("port", "f")).signatures[0].name == "x"
    for failure_class, fix in (("unheard_of", "f"), ("port", "")):
        with pytest.raises(ValueError, match="x: class"):
            parse(entry.format(failure_class, fix))
