"""The comparison's arithmetic, and a verdict that says what was measured."""

from __future__ import annotations

import pytest

from alula.bench.compare import Run, compare, verdict


def run(
    kind: str, shape: str, seconds: float, repeat: int = 0, prompt: int = 0, rounds: int = 60
) -> Run:
    speculates = shape != "plain"
    return Run(
        kind=kind,
        prompt=prompt,
        repeat=repeat,
        shape=shape,
        token_ids=[1, 2, 3],
        seconds=seconds,
        rounds=rounds,
        emitted=60,
        drafted=(20, 10) if speculates else (),
        accepted=(10, 10) if speculates else (),
        drafting_seconds=(0.1, 0.3, 0.2) if speculates else (),
    )


def two_kinds() -> list[Run]:
    return [
        run("lists", "plain", 6.0),
        run("lists", "ngram", 3.0, rounds=30),
        run("story", "ngram", 6.6, prompt=1),
        run("story", "plain", 6.0, prompt=1),
        run("story", "plain", 12.0, repeat=1, prompt=1),
        run("story", "ngram", 12.0, repeat=1, prompt=1),
        run("lists", "ngram", 4.0, repeat=1, rounds=30),
        run("lists", "plain", 6.0, repeat=1),
    ]


def test_speeds_gains_and_break_even() -> None:
    comparison = compare(two_kinds())
    lists = comparison.of("lists", "ngram")
    assert lists.tokens_per_second.median == pytest.approx(17.5)
    assert (lists.tokens_per_second.low, lists.tokens_per_second.high) == pytest.approx((15, 20))
    assert lists.gain.median == pytest.approx(1.75)
    assert (lists.gain.low, lists.gain.high) == pytest.approx((1.5, 2.0))
    assert lists.tokens_per_round == 2
    assert lists.acceptance == [0.5, 1.0]
    assert lists.step_seconds == pytest.approx(0.1)
    assert lists.round_seconds == pytest.approx(3.5 / 30)
    assert lists.break_even == pytest.approx(3.5 / 3)
    assert lists.drafting_round_seconds == pytest.approx(0.2)
    assert comparison.of("story", "plain").acceptance == []


def test_gains_compare_runs_of_the_same_repeat() -> None:
    """Both slowed down by half in the second repeat; that is no gain and no loss."""
    gain = compare(two_kinds()).of("story", "ngram").gain
    assert (gain.low, gain.high) == pytest.approx((1 / 1.1, 1.0))


def test_the_verdict_ranks_the_kinds() -> None:
    assert verdict(compare(two_kinds())) == (
        "Prompt lookup pays on some kinds and costs on others: 1.75× on lists, 0.95× on story; "
        "tokens identical."
    )


@pytest.mark.parametrize(
    ("seconds", "said"), [(3.0, "pays: 2.00×"), (6.05, "makes no"), (7.0, "does not pay: 0.86×")]
)
def test_the_verdict_on_one_kind(seconds: float, said: str) -> None:
    runs = [run("code", "plain", 6.0), run("code", "eagle3 chain:4", seconds)]
    assert verdict(compare(runs)).startswith(f"EAGLE-3 chain:4 {said}")


def test_a_gain_that_repeats_disagree_about_is_none() -> None:
    seconds = (4.0, 5.5, 6.5)
    runs = [run("code", "plain", 6.0, repeat) for repeat in range(3)]
    runs += [run("code", "ngram", each, repeat) for repeat, each in enumerate(seconds)]
    assert verdict(compare(runs)).startswith(
        "Prompt lookup may pay or not, the repeats disagree: 1.09× on code"
    )


def test_other_tokens_are_found_and_said() -> None:
    runs = two_kinds()
    runs[-2] = runs[-2]._replace(token_ids=[1, 2, 4])
    comparison = compare(runs)
    assert not comparison.identical
    assert comparison.differing == {"ngram": [0]}
    assert verdict(comparison).endswith("TOKENS DIFFER from plain's: prompt lookup on 1 prompts.")


def test_plain_decoding_that_does_not_repeat_itself_is_found() -> None:
    runs = two_kinds()
    runs[-1] = runs[-1]._replace(token_ids=[1])
    assert compare(runs).differing == {"ngram": [0]}


def test_answers_of_one_token_leave_nothing_to_compare() -> None:
    runs = [run("code", shape, 0.0, rounds=0)._replace(emitted=0) for shape in ("plain", "ngram")]
    assert "nothing to compare" in verdict(compare(runs))


def test_plain_alone_is_nothing_to_compare() -> None:
    assert "nothing to compare" in verdict(compare([run("code", "plain", 1.0)]))
