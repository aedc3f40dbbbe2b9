"""Six failures, one suspected cause, one planned upgrade: the answer, and what turns it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from alula.assess.answer import Answer, assess
from alula.assess.change import read_target
from alula.assess.situation import Inquiry
from alula.assess.verdict import Verdict
from alula.errors import ModelError, UsageError
from alula.machine.whatif import WhatIf
from six_attempts import CASE, ask, component, copied, first_line, version

ANSWER = "Not for these failures: CUDA 13.0 opens 0 of 6. First try 4 verify rows (free)."


def ranking(answer: Answer) -> list[str]:
    return [option.name for option in answer.ranked]


def opened(answer: Answer) -> list[tuple[str, str, str]]:
    gates = (each.gate for each in answer.opening.opened)
    return [(gate.feature, gate.component, str(gate.layer)) for gate in gates]


def table(answer: Answer, title: str) -> list[tuple[str, ...]]:
    section = next(each for each in answer.sections if each.title == title)
    return [row.cells for row in section.rows]


@pytest.mark.parametrize("claims", [False, True])
def test_the_upgrade_opens_none_of_the_six(claims: bool) -> None:
    answer = ask("cuda==13.0", claims=claims)
    assert first_line(answer) == ANSWER
    assert answer.verdict is Verdict.NOT_WORTH_IT
    assert not answer.opening.opened


@pytest.mark.parametrize("claims", [False, True])
def test_what_is_free_comes_before_the_upgrade(claims: bool) -> None:
    names = ranking(ask("cuda==13.0", claims=claims))
    upgrade = names.index("CUDA 13.0")
    free = ("4 verify rows", "NCCL settings", "driver P2P options", "staying as is")
    assert all(names.index(name) < upgrade for name in free)
    assert names[0] == "4 verify rows"
    others = ("FlashInfer pcie_ipc", "MSCCL++", "DeepEP", "more drafter data")
    assert {*others, "a newer FlashInfer on the present toolkit"} <= set(names)


def test_free_options_come_first_then_gain_times_probability_over_hours() -> None:
    ranked = ask("cuda==13.0").ranked
    assert [each.is_free for each in ranked] == sorted(each.is_free for each in ranked)[::-1]
    paid = [each.expected / each.hours for each in ranked if not each.is_free]
    assert paid == sorted(paid, reverse=True)


def test_the_counts_are_counted(tmp_path: Path) -> None:
    case = copied(tmp_path)
    text = (case / "attempts.toml").read_text()
    last = text.rindex("[[attempt]]")
    (case / "attempts.toml").write_text(text[:last])
    assert first_line(ask("cuda==13.0", case=case)).startswith(
        "Not for these failures: CUDA 13.0 opens 0 of 5."
    )


def test_the_rows_are_those_of_the_fastest_draft() -> None:
    assert "6 verify rows" in ranking(ask("cuda==13.0", model="llama-3.1-8b"))
    unknown = ask("cuda==13.0", attempts=False)
    assert "fewer verify rows" in ranking(unknown)


def test_a_plan_that_breaks_what_runs_says_so() -> None:
    answer = ask(plan=CASE / "plan.toml")
    assert first_line(answer) == (
        "Not for these failures: CUDA 13.0 opens 0 of 6. As it stands it breaks 3 requirements of "
        "sgl-kernel, sglang. First try 4 verify rows (free)."
    )
    assert answer.verdict is Verdict.NOT_WORTH_IT


# ── facts that turn the answer ───────────────────────────────────────────────────────────────


def with_newer_flashinfer(folder: Path) -> Path:
    """FlashInfer 0.6.17 where it was tried, whose list holds 12: the words name that list."""
    case = copied(folder, version("flashinfer-python", "0.6.17"))
    log = case / "logs/flashinfer-fusion.log"
    log.write_text(log.read_text().replace("[9, 10]", "[9, 10, 12]"))
    return case


def test_a_newer_flashinfer_makes_the_toolkit_a_gate(tmp_path: Path) -> None:
    """It asks for nvcc 12.9 on 12.x, so that the toolkit opens one gate of the chain."""
    answer = ask("cuda==13.0", case=with_newer_flashinfer(tmp_path))
    feature = "flashinfer-allreduce-fusion"
    mine = [each for each in opened(answer) if each[0] == feature]
    assert mine == [(feature, "flashinfer-python", "toolkit")]
    assert answer.verdict is Verdict.UNDECIDED
    assert first_line(answer) == (
        "Undecided: CUDA 13.0 opens 1 of 6 (FlashInfer fusion), and a measurement made elsewhere "
        "speaks against it. First try 4 verify rows (free)."
    )


def test_without_the_measurement_against_it_the_upgrade_is_worth_it(tmp_path: Path) -> None:
    """On two GPUs the published loss does not hold."""
    case = with_newer_flashinfer(tmp_path)
    text = (case / "attempts.toml").read_text().replace("--tp 8", "--tp 2")
    (case / "attempts.toml").write_text(text)
    answer = ask("cuda==13.0", case=case)
    assert answer.verdict is Verdict.WORTH_IT
    assert first_line(answer) == "Worth it: CUDA 13.0 opens 1 of 6 (FlashInfer fusion)."


def test_a_newer_flashinfer_in_the_target_makes_the_toolkit_a_gate() -> None:
    answer = ask("flashinfer-python==0.6.17", "cuda==13.0")
    by_toolkit = [
        each.gate.component
        for each in answer.opening.of("flashinfer-allreduce-fusion")
        if each.opened and [change.component for change in each.opener] == ["cuda"]
    ]
    assert by_toolkit == ["flashinfer-python"]
    assert answer.verdict is Verdict.UNDECIDED
    alone = ask("flashinfer-python==0.6.17")
    assert alone.verdict is Verdict.NOT_WORTH_IT
    assert any(each.gate.layer == "toolkit" for each in alone.opening.shut)


def test_the_toolkit_of_12_9_does_as_well(tmp_path: Path) -> None:
    case = with_newer_flashinfer(tmp_path)
    assert opened(ask("cuda==12.9", case=case)) == opened(ask("cuda==13.0", case=case))
    assert not opened(ask("cuda==12.8.1", case=case))


def test_a_smaller_toolkit_that_opens_the_same_is_offered_first(tmp_path: Path) -> None:
    names = ranking(ask("cuda==13.0", "flashinfer-python==0.6.17"))
    assert names.index("CUDA 12.9 instead") < names.index("CUDA 13.0 and FlashInfer 0.6.17")
    assert not any(name.endswith("instead") for name in ranking(ask("cuda==13.0")))
    assert "CUDA 12.9 instead" in ranking(ask("cuda==13.0", gpus=("12.1x8",)))


def test_a_measurement_against_it_halves_the_odds(tmp_path: Path) -> None:
    def odds(answer: Answer) -> float:
        return next(each.probability for each in answer.ranked if each.is_change)

    assert odds(ask("cuda==13.0")) == 0
    assert odds(ask("cuda==13.0", "flashinfer-python==0.6.17")) == 0.5
    assert odds(ask("cuda==13.0", gpus=("12.1x8",))) == 1


def test_the_baselines_report_is_the_machine_where_none_is_named() -> None:
    inquiry = Inquiry(WhatIf(), CASE / "attempts.toml")
    assert first_line(assess(read_target(["cuda==13.0"], None), inquiry)) == ANSWER


def test_gpus_that_the_toolkit_does_not_know_need_the_upgrade() -> None:
    answer = ask("cuda==13.0", gpus=("12.1x8",))
    assert answer.verdict is Verdict.WORTH_IT
    assert first_line(answer).startswith(
        "Worth it: CUDA 13.0 opens 1 gate before everything (cuda, toolkit)."
    )
    assert ("running", "cuda", "toolkit") in opened(answer)
    assert "sgl-kernel" in first_line(answer), "what stays closed beside it is said"


def test_a_torch_without_an_image_needs_the_upgrade(tmp_path: Path) -> None:
    def edit(report: dict[str, Any]) -> None:
        component(report, "torch")["variant"] = "cu126"

    answer = ask("cuda==13.0", case=copied(tmp_path, edit))
    assert answer.verdict is Verdict.WORTH_IT
    assert opened(answer) == [("running", "torch", "device code")]
    assert ask("cuda==12.6", case=copied(tmp_path / "b", edit)).verdict is not Verdict.WORTH_IT


def test_torch_stays_where_no_build_for_that_cuda_exists(tmp_path: Path) -> None:
    def edit(report: dict[str, Any]) -> None:
        version("torch", "2.8.0")(report)
        component(report, "torch")["variant"] = "cu126"

    assert ask("cuda==13.0", case=copied(tmp_path, edit)).verdict is Verdict.NOT_WORTH_IT


def test_what_would_change_the_answer_names_these_facts() -> None:
    told = {row[0] for row in table(ask("cuda==13.0"), "What would change the answer")}
    assert {"flashinfer-python >= 0.6.7", "torch.cuda < 12.8", "capability == 12.1"} <= told


def test_a_broken_requirement_outweighs_what_is_opened(tmp_path: Path) -> None:
    case = with_newer_flashinfer(tmp_path)
    answer = ask("cuda==13.0", "torch==2.11.0+cu130", case=case)
    assert answer.opening.unblocked
    assert answer.verdict is Verdict.NOT_WORTH_IT
    assert first_line(answer).startswith("Not as it stands:")
    assert "it breaks 1 requirement of sgl-kernel" in first_line(answer)


def test_a_requirement_that_one_part_brings_and_another_meets_is_no_gain() -> None:
    """SGLang 0.5.9 pins the FlashInfer that comes with it: nothing ran worse before."""
    answer = ask("sglang==0.5.9", "flashinfer-python==0.6.3", "cuda==13.0")
    assert answer.verdict is Verdict.NOT_WORTH_IT
    assert not [each for each in answer.opening.opened if each.gate.feature == "running"]


def test_what_is_there_already_changes_nothing() -> None:
    answer = ask("cuda==12.8")
    assert first_line(answer).startswith("No: CUDA 12.8 is there already.")
    assert answer.verdict is Verdict.NOT_WORTH_IT
    assert "already" not in first_line(ask("torch==2.9.1+cu130"))
    assert "already" in first_line(ask("torch==2.9.1+cu128", "driver==590.48.01"))


def test_a_component_that_no_gate_asks_about_is_said_to_be_one() -> None:
    told = {row[0]: row[3] for row in table(ask("pytorch==2.11", "cuda==13.0"), "The change")}
    assert told["pytorch"] == "no gate asks about it"
    assert told["cuda"] == "as the command line says"


# ── with less to go by ───────────────────────────────────────────────────────────────────────


def test_the_report_alone_is_answered_from() -> None:
    answer = ask("cuda==13.0", attempts=False)
    assert first_line(answer) == (
        "No: CUDA 13.0 opens 0 of 10 closed gates. First try fewer verify rows (free)."
    )
    assert answer.verdict is Verdict.NOT_WORTH_IT
    lacking = " ".join(cell for row in table(answer, "What is lacking") for cell in row)
    assert all(word in lacking for word in ("--attempts", "--claims", "--model", "speed"))


def test_without_gpus_nothing_is_decided(tmp_path: Path) -> None:
    case = copied(tmp_path, lambda report: report["machine"].update(gpus=[]))
    answer = ask("cuda==13.0", case=case, attempts=False)
    assert answer.verdict is Verdict.UNDECIDED
    assert first_line(answer).startswith("Undecided: nothing is known of the GPUs.")


def test_a_gate_that_only_the_doctor_knows_may_be_opened_by_another_release(
    tmp_path: Path,
) -> None:
    gate = {
        "component": "sgl-kernel 0.3.18",
        "feature": "flash_ops.abi3.so",
        "layer": "device code",
        "predicate": "an image that the driver loads on 12.0",
        "observed": "sm_90a in all 182",
        "verdict": "closed",
        "evidence": "image: flash_ops.abi3.so",
    }
    case = copied(tmp_path, lambda report: report["gates"].append(gate))
    touched = ask("sgl-kernel==0.3.21", case=case, attempts=False)
    assert touched.verdict is Verdict.UNDECIDED
    assert "1 gate" in first_line(touched)
    untouched = ask("cuda==13.0", case=case, attempts=False)
    assert "0 of 11 closed gates" in first_line(untouched)


@pytest.mark.parametrize(
    ("version_after", "is_open"), [("0.6.16", False), ("0.6.17", True), ("0.7.0.post1", True)]
)
def test_the_release_that_the_doctor_names_opens_its_gate(
    tmp_path: Path, version_after: str, is_open: bool
) -> None:
    gate = {
        "component": "flashinfer-python 0.5.3",
        "feature": "flashinfer-allreduce-fusion",
        "layer": "C++ check",
        "predicate": "the kernel has a body on 12.x",
        "observed": "compiled for 12.x it does nothing",
        "verdict": "closed",
        "evidence": "trtllm_allreduce.cuh:900",
        "opened_in": "flashinfer 0.6.17 (flashinfer#3903)",
    }
    case = copied(tmp_path, lambda report: report["features"].update({"any": [gate]}))
    answer = ask(f"flashinfer-python=={version_after}", case=case)
    found = next(
        each
        for each in answer.opening.standings
        if each.gate.layer == "C++ check" and each.gate.component.startswith("flashinfer")
    )
    assert found.opened is is_open


def test_both_bounds_are_given_where_claims_conflict() -> None:
    answer = ask("cuda==13.0", claims=True)
    bounds = {bound.name: round(bound.tok_s) for bound in answer.gains.bounds}
    assert bounds["the claims: the weights dominate"] == 74
    assert bounds["the claims: the claimed share is true"] == 180
    rows = [row[0] for row in table(answer, "The most it can gain")]
    assert "the claims conflict" in rows
    launch, exchange = table(answer, "The next two measurements")
    assert launch[0] == "a launch with 1 row and with 16 rows"
    assert exchange[1] == (
        "if all-reduces of 200 µs dominate: 200 and 200 µs; "
        "if the weights of many rows dominate: 27 and 76 µs"
    )


def test_a_model_that_does_not_fit_has_no_price(tmp_path: Path) -> None:
    answer = ask("cuda==13.0", gpus=("12.0",), model="kimi-k2.5", attempts=False)
    assert answer.gains.rows is None
    assert "memory" in answer.gains.why_not or "which GPU" in answer.gains.why_not


# ── price ────────────────────────────────────────────────────────────────────────────────────


def test_regressions_of_the_target_versions_carry_their_sources() -> None:
    told = " ".join(" ".join(row) for row in table(ask("cuda==13.0"), "Its price"))
    assert "sglang#28125" in told
    assert "sglang#14327" in told
    assert "sglang#28125" not in " ".join(
        " ".join(row) for row in table(ask("driver==590.48.01"), "Its price")
    )


def test_stated_hours_are_not_called_assumed() -> None:
    def hours(answer: Answer) -> str:
        return next(row[1] for row in table(answer, "Its price") if row[0] == "hours")

    assert hours(ask("cuda==13.0")).startswith("8 (assumed")
    assert hours(ask("cuda==13.0", hours=3)) == "3 (--hours)"


def test_a_lock_says_what_it_weighs(tmp_path: Path) -> None:
    wheel = {"name": "torch", "version": "2.9.1+cu130", "size": 1_500_000_000}
    lock = {
        "created": datetime.now(UTC).isoformat(),
        "toolkit": {"kind": "folder", "version": "13.0"},
        "packages": [wheel],
        "risks": ["a risk that the plan names"],
    }
    path = tmp_path / "lock.json"
    path.write_text(json.dumps(lock))
    answer = ask(plan=path)
    assert first_line(answer) == ANSWER
    assert answer.target.source == "lock.json"
    told = table(answer, "Its price")
    assert ("downloads", "1.5 GB") in told
    assert any("a risk that the plan names" in row[1] for row in told)


# ── evidence ─────────────────────────────────────────────────────────────────────────────────


CHANGES = (
    ("cuda==13.0",),
    ("flashinfer-python==0.6.18", "cuda==13.0"),
    ("torch==2.11.0+cu130", "cuda==13.0"),
    ("cuda==12.8",),
    ("pytorch==2.11",),
)


@pytest.mark.parametrize("changes", CHANGES)
@pytest.mark.parametrize("gpus", [(), ("12.1x8",), ("9.0x8",), ("12.0",)])
@pytest.mark.parametrize(("attempts", "claims"), [(False, False), (True, True)])
def test_every_sentence_and_row_stands_on_evidence(
    changes: tuple[str, ...], gpus: tuple[str, ...], attempts: bool, claims: bool
) -> None:
    answer = ask(*changes, attempts=attempts, claims=claims, gpus=gpus)
    held = answer.ledger.by_key()
    rows = [*answer.line.sentences, *(row for each in answer.sections for row in each.rows)]
    for row in rows:
        assert row.evidence, row
        for key in row.evidence:
            assert held[key].what
            assert held[key].source


def test_where_nothing_is_closed_nothing_can_be_opened(tmp_path: Path) -> None:
    def edit(report: dict[str, Any]) -> None:
        report["software"] = {}
        report["machine"].update(interconnect="nvlink", nvswitch=True)

    answer = ask("cuda==13.0", case=copied(tmp_path, edit), attempts=False, gpus=("9.0",))
    assert first_line(answer).startswith("No: nothing is closed that CUDA 13.0 could open.")
    assert all(row.evidence for row in answer.line.sentences)


# ── input that is refused ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("text", ["cuda", "cuda=13", "==13", "cuda==thirteen", ""])
def test_a_change_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        read_target([text], None)


def test_a_change_is_named_once(tmp_path: Path) -> None:
    for changes, plan in (
        ([], None),
        (["cuda==13.0"], CASE / "plan.toml"),
        (["cuda==1", "CUDA==2"], None),
    ):
        with pytest.raises(UsageError):
            read_target(changes, plan)
    for content in ("[]", "{", '{"packages": [1]}', '{"packages": [{"name": "torch"}]}'):
        (tmp_path / "lock.json").write_text(content)
        with pytest.raises(UsageError):
            read_target([], tmp_path / "lock.json")


def test_a_model_that_is_none_is_refused() -> None:
    with pytest.raises(ModelError):
        ask("cuda==13.0", model="no such model")
