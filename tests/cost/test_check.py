"""The case: every figure of the reference's section 3.5, and what the readings imply."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from alula.cost.claims.case import Attempt, Case, Claims, read_case
from alula.cost.claims.check import Check, check_claims, unchecked
from alula.cost.claims.finding import Finding
from alula.cost.machine import known_drafter
from alula.errors import UsageError
from priced import setting

CASE = Path(__file__).parents[2] / "docs/examples/claims-pcie8.toml"


def _check(case: Case | None = None) -> Check:
    own = setting(host_s=0.004)
    return check_claims(case or read_case(CASE), own, known_drafter("kimi-k2.5", 3))


def _finding(name: str, found: Check | None = None) -> Finding:
    return next(f for f in (found or _check()).findings if name in f.name)


def test_plain_steps_exclude_allreduces_of_200_us() -> None:
    found = _finding("all-reduces in a plain step")
    assert found.outcome == "excluded"
    assert found.figures["step_ms"] == pytest.approx(11.17, abs=0.01)
    assert found.figures["allreduces_ms"] == pytest.approx(24.4)
    assert found.figures["times_the_step"] == pytest.approx(2.2, abs=0.05)
    assert found.figures["most_us_full_bandwidth"] == pytest.approx(64, abs=0.5)
    assert found.figures["most_us"] == pytest.approx(57, abs=0.5)


def test_share_and_allreduces_differ_by_16_percent() -> None:
    found = _finding("share of communication")
    assert found.outcome == "differs"
    assert found.figures["share_of_verify"] == pytest.approx(0.81, abs=0.005)
    assert found.figures["share_ms"] == pytest.approx(21)
    assert found.figures["each_us"] == pytest.approx(172, abs=0.5)
    assert found.figures["apart"] == pytest.approx(0.16, abs=0.005)


@pytest.mark.parametrize(
    ("name", "left_ms", "full", "achieved"),
    [("beside 122 all-reduces", 5.6, 3, 2), ("beside 70%", 9.0, 8, 5)],
)
def test_room_for_rows(name: str, left_ms: float, full: int, achieved: int) -> None:
    found = _finding(name)
    assert found.figures["left_ms"] == pytest.approx(left_ms)
    assert (found.figures["rows_full_bandwidth"], found.figures["rows"]) == (full, achieved)


def test_tokens_emitted_and_needed() -> None:
    emitted = _finding("tokens emitted").figures
    assert list(emitted.values()) == pytest.approx([1.62, 1.89, 2.16], abs=0.006)
    needed = _finding("break-even of this setting").figures
    assert list(needed.values()) == pytest.approx([2.69, 3.13, 3.58], abs=0.006)
    assert _finding("break-even of chain:3").figures["break_even"] == pytest.approx(1.79, abs=0.01)


def test_a_contended_link_cannot_explain_the_forced_allreduce() -> None:
    found = _finding("custom all-reduce")
    assert "would have to be" in found.says
    assert found.figures["more_us"] == pytest.approx(124, abs=0.5)
    assert found.figures["wire_us"] == pytest.approx(1.8, abs=0.05)
    assert found.figures["times"] == pytest.approx(70, rel=0.05)


def test_attempts_are_counted() -> None:
    found = _finding("what was tried")
    assert found.outcome == "differs"
    assert (found.figures["failed"], found.figures["slower"], found.figures["untested"]) == (
        4,
        1,
        1,
    )


def test_122_is_what_the_layout_needs() -> None:
    assert _finding("number of all-reduces").outcome == "compatible"


def test_sixteen_rows_explain_the_verification_too() -> None:
    assert _finding("rows that take 30 ms, all-reduces nccl").figures["rows"] == 16
    assert _finding("all-reduces 60 µs flat").figures["rows"] == pytest.approx(19, abs=1)
    needed = _finding("all-reduce that takes").figures
    assert list(needed.values()) == pytest.approx([157, 127, 73, 50], abs=1)


def test_both_bounds() -> None:
    heavy, believed = _finding("the weights dominate"), _finding("the claimed share is true")
    assert heavy.figures["tok_s"] == pytest.approx(74, abs=0.5)
    assert heavy.figures["tau"] == pytest.approx(1.95, abs=0.01)
    assert heavy.figures["plain_tok_s"] == pytest.approx(126.8, rel=0.005)
    assert believed.figures["tok_s"] == pytest.approx(180, abs=0.5)


def test_the_verdict_names_the_measurements_that_decide() -> None:
    said = _check().verdict()
    assert "exclude each other" in said
    assert "at most 64 µs" in said
    assert "1 row and with 16 rows" in said


def test_every_finding_has_its_arithmetic_and_its_reading() -> None:
    for found in _check().findings:
        assert found.reading
        assert any(letter.isdigit() for letter in found.arithmetic)
        assert found.says


def test_a_known_pass_leaves_one_reading() -> None:
    case = read_case(CASE)
    verify = replace(case, claims=replace(case.claims, measured_pass="verify"))
    assert not [f for f in _check(verify).findings if "plain step" in f.name]
    assert "No claim excludes another, but at most 3 rows fit" in _check(verify).verdict()
    plain = replace(case, claims=replace(case.claims, measured_pass="plain"))
    assert not [f for f in _check(plain).findings if "room for rows" in f.name]
    assert [story.name for story in _check(plain).stories] == ["the weights of many rows dominate"]


def _claimed(**claims: Any) -> Check:
    case = replace(read_case(CASE), claims=Claims(**claims), attempts=())
    return _check(case)


@pytest.mark.parametrize("verify_ms", [5.0, 5000.0])
def test_what_no_number_of_rows_takes_is_odd_but_excludes_nothing(verify_ms: float) -> None:
    """An ordinary engine is nobody's claim: another one may be faster, or slower."""
    found = _claimed(verify_ms=verify_ms)
    assert found.verdict().startswith("No claim excludes another, but no number of rows")
    assert not [f for f in found.findings if "weights dominate" in f.name]


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ({"plain_tok_s": 295.0}, "295 tok/s are 100% of the most"),
        ({"plain_tok_s": 500.0}, "500 tok/s are 170% of the most"),
        ({"verify_ms": 3.3}, "no launch takes less than 3.41 ms"),
    ],
)
def test_nothing_is_faster_than_reading_the_weights(claims: dict[str, float], said: str) -> None:
    assert said in _claimed(**claims).verdict()
    assert _claimed(**claims).verdict().startswith("A claim cannot hold")


def test_the_bound_of_plain_decoding_is_the_reading_of_its_bytes() -> None:
    found = _finding("plain decoding against", _claimed(plain_tok_s=89.5))
    assert found.outcome == "compatible"
    assert found.figures["most_tok_s"] == pytest.approx(1792e9 / 6.10e9, rel=1e-3)


def test_a_verification_shorter_than_a_plain_step_is_odd() -> None:
    found = _claimed(plain_tok_s=89.5, verify_ms=10.0)
    assert "1.2 ms shorter than a plain step" in found.verdict()
    assert not found.excluded


def test_a_round_emits_one_token_and_no_more_than_its_draft() -> None:
    least = _claimed(speculative_tok_s=54.1, verify_ms=10.0)
    beside = _finding("beside its verification", least).figures["beside_ms"]
    assert beside == pytest.approx(1e3 / 54.1 - 10)
    most = _claimed(speculative_tok_s=250.0, verify_ms=30.0)
    assert "7.5 tokens, and 5 draft steps give 6" in most.verdict()


def test_a_model_too_large_for_the_machine_is_said_to_be() -> None:
    case = replace(read_case(CASE), claims=Claims(plain_tok_s=89.5))
    found = check_claims(case, setting(), None, 32e9)
    assert "needs 76.25 GB on each GPU of 32.00 GB" in found.verdict()


def test_an_attempt_whose_speed_belies_its_outcome_is_told() -> None:
    attempts = (Attempt("it", "slower", 120.0),)
    case = replace(read_case(CASE), claims=Claims(plain_tok_s=89.5), attempts=attempts)
    assert _finding("it: slower", _check(case)).outcome == "differs"


def test_a_claim_that_wants_another_is_told() -> None:
    claims = Claims(speculative_tok_s=54.1, communication_share=0.7, attempts_failed=6)
    assert unchecked(claims, 0) == [
        "speculative_tok_s, without verify_ms",
        "communication_share, without verify_ms",
        "attempts_failed, without [[attempts]]",
    ]
    assert not unchecked(read_case(CASE).claims, 6)


def test_no_host_time_may_be_assumed(tmp_path: Path) -> None:
    path = tmp_path / "claims.toml"
    path.write_text(CASE.read_text().replace("[assumed]", "[assumed]\nhost_ms = 0"))
    assert read_case(path).assumed.host_ms == 0


def test_all_reduces_longer_than_the_verification_leave_no_row() -> None:
    claims = Claims(verify_ms=20, allreduces=122, allreduce_us=200)
    found = _check(replace(read_case(CASE), claims=claims))
    assert "not even one row" in found.verdict()


def test_claims_of_one_gpu_exchange_nothing() -> None:
    claims = Claims(plain_tok_s=104.9, verify_ms=12.0, allreduces=64, communication_share=0.3)
    case = replace(read_case(CASE), claims=claims, model="llama-2-7b")
    found = check_claims(case, setting("llama-2-7b", "1x-a100"), None)
    assert "one GPU exchanges nothing" in found.verdict()
    assert not [f for f in found.findings if "room" in f.name or "µs" in f.name]


def test_claims_that_fit_are_compatible() -> None:
    claims = Claims(plain_tok_s=89.5, allreduces=122, allreduce_us=27)
    found = _check(replace(read_case(CASE), claims=claims, attempts=()))
    assert not found.excluded
    assert found.verdict().startswith("No claim excludes another")
    assert _finding("all-reduces in a plain step", found).outcome == "compatible"


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("allreduce_us = 200", "allreduce_ms = 0.2", "allreduce_us"),
        ("verify_ms = 30 ", "verify_s = 0.03 ", "verify_ms"),
        ("communication_share = 0.70", "communication_share = 70", "between 0 and 1"),
        ("verify_ms = 30 ", 'verify_ms = "30 ms" ', "verify_ms"),
        ("plain_tok_s = 89.5", "plain_tok_s = -1", "plain_tok_s"),
        ("allreduces = 122", "allreduces = 1.5", "allreduces"),
        ('pass = "unknown"', 'pass = "both"', "plain, verify, unknown"),
        ('outcome = "slower"', 'outcome = "bad"', "outcome"),
        ('machine = "8x-rtx-pro-6000"', "machine = 8", "machine"),
        ("verify_ms = 30 ", "verify_ms = 1e300 ", "verify_ms"),
        ("verify_ms = 30 ", "verify_ms = nan ", "verify_ms"),
        ("allreduces = 122", "allreduces = 99999999999999999999", "allreduces"),
    ],
)
def test_wrong_units_and_values_are_refused(tmp_path: Path, old: str, new: str, named: str) -> None:
    text = CASE.read_text()
    assert old in text
    path = tmp_path / "claims.toml"
    path.write_text(text.replace(old, new))
    with pytest.raises(UsageError) as refusal:
        read_case(path)
    error = refusal.value
    assert named in f"{error.what} {error.why} {error.fix}"


def test_no_claims_are_nothing_to_check(tmp_path: Path) -> None:
    path = tmp_path / "claims.toml"
    path.write_text('[setting]\nmodel = "kimi-k2.5"\nmachine = "8x-rtx-pro-6000"\n')
    with pytest.raises(UsageError, match="nothing to check"):
        read_case(path)
