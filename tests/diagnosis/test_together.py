"""Six failures with one suspected cause: what they share, and what the planned upgrade unblocks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from alula.diagnosis.answer import together_exit_code, together_json
from alula.diagnosis.cause import Certainty
from alula.diagnosis.together import Judged, Together, together, verdict
from alula.errors import UsageError

CASE = Path(__file__).parents[2] / "docs/examples/six-attempts"
ANSWER = (
    "CUDA 13.0 as planned unblocks 0 of 6; a toolkit ≥ 12.9 is a precondition of one fix and the "
    "fix of none."
)
Edit = Callable[[dict[str, Any]], object]


@pytest.fixture
def case(tmp_path: Path) -> Path:
    return Path(shutil.copytree(CASE, tmp_path / "case"))


def run(case: Path) -> Together:
    return together(case / "attempts.toml", case / "plan.toml")


def change_report(case: Path, edit: Edit) -> None:
    path = case / "report.json"
    report = json.loads(path.read_text())
    edit(report)
    path.write_text(json.dumps(report))


def replace(case: Path, file: str, old: str, new: str) -> None:
    text = (case / file).read_text(encoding="utf-8")
    assert old in text
    (case / file).write_text(text.replace(old, new), encoding="utf-8")


def install(**versions: str) -> Edit:
    packages = {name.replace("_", "-"): version for name, version in versions.items()}

    def edit(report: dict[str, Any]) -> None:
        report["software"]["packages"] |= packages
        report["software"]["components"] = [
            component
            for component in report["software"]["components"]
            if component["name"] not in packages
        ]

    return edit


def of(found: Together, name: str) -> Judged:
    return next(each for each in found.judged if each.attempt.name == name)


def told(found: Together) -> dict[str, tuple[str, str, str]]:
    return {
        each.attempt.name: (cause.ruling.failure_class, cause.ruling.layer, str(cause.certainty))
        for each in found.judged
        if (cause := each.diagnosis.cause)
    }


def layers_behind(judged: Judged) -> list[tuple[str, str]]:
    return [(met.gate.layer, met.when) for met in judged.behind]


def test_the_six_failures_have_six_causes(case: Path) -> None:
    assert told(run(case)) == {
        "NCCL Tree": ("nccl_error", "setting", "likely"),
        "FlashInfer fusion": ("arch_gate", "allow-list", "certain"),
        "custom all-reduce": ("p2p_platform", "topology", "likely"),
        "torch symmetric memory": ("arch_gate", "allow-list", "certain"),
        "expert parallelism": ("assertion", "setting", "likely"),
        "fewer channels": ("inconclusive", "setting", "certain"),
    }


def test_the_planned_upgrade_unblocks_none_of_them(case: Path) -> None:
    assert verdict(run(case)) == ANSWER


def test_the_two_lists_have_two_owners(case: Path) -> None:
    found = run(case)
    names = ("FlashInfer fusion", "torch symmetric memory")
    owners = [cause.ruling.owner for name in names if (cause := of(found, name).diagnosis.cause)]
    assert owners == ["flashinfer-python", "sglang"]
    pair = next(pair for pair in found.pairs if (pair.first, pair.second) == names)
    assert (pair.same_cause, pair.kind) == (False, "arch_gate")
    assert not any(pair.same_cause for pair in found.pairs)


def test_every_likely_cause_has_a_test_that_would_refute_it(case: Path) -> None:
    for each in run(case).judged:
        cause = each.diagnosis.cause
        assert cause is not None
        if cause.certainty is Certainty.LIKELY:
            assert len(cause.ruling.refuted_by) > 20


def test_the_gates_behind_each_list_are_named(case: Path) -> None:
    found = run(case)
    assert layers_behind(of(found, "FlashInfer fusion")) == [
        ("measured", "now"),
        ("toolkit", "after flashinfer-python 0.6.17"),
        ("allow-list", "from sglang 0.5.9 on"),
    ]
    assert layers_behind(of(found, "torch symmetric memory")) == [("topology", "now")]


def test_an_assertion_and_a_lack_of_memory_are_two_starts_of_one_attempt(case: Path) -> None:
    diagnosis = of(run(case), "expert parallelism").diagnosis
    later = {event.signature.name for event in diagnosis.cascade if event.signature}
    assert "cuda-oom" in later


def test_words_in_common_are_called_words(case: Path) -> None:
    found = run(case)
    names = ("FlashInfer fusion", "expert parallelism")
    pair = next(pair for pair in found.pairs if (pair.first, pair.second) == names)
    assert (pair.same_cause, pair.kind) == (False, "")
    assert "supported" in pair.words


def test_a_newer_flashinfer_here_takes_its_list_out_of_the_blame(case: Path) -> None:
    change_report(case, install(flashinfer_python="0.6.17"))
    found = run(case)
    assert told(found)["FlashInfer fusion"] == ("arch_gate", "allow-list", "likely")
    assert verdict(found) != ANSWER


def test_with_a_list_that_holds_twelve_the_toolkit_is_the_cause_and_the_plan_helps(
    case: Path,
) -> None:
    change_report(case, install(flashinfer_python="0.6.17"))
    replace(case, "logs/flashinfer-fusion.log", "[9, 10]", "[9, 10, 12]")
    replace(case, "plan.toml", "flashinfer-python==0.6.4", "flashinfer-python==0.6.17")
    found = run(case)
    assert told(found)["FlashInfer fusion"] == ("toolkit", "toolkit", "certain")
    assert found.unblocked == ("FlashInfer fusion",)
    assert verdict(found) == (
        "CUDA 13.0 as planned unblocks 1 of 6; a toolkit ≥ 12.9 is a precondition of no fix and "
        "the fix of one."
    )
    assert ("cuda 12.9", ("FlashInfer fusion",)) in [(str(c), names) for c, names in found.openers]


def test_a_toolkit_that_is_new_enough_already_is_no_precondition(case: Path) -> None:
    change_report(
        case, lambda report: report["software"]["jits"][0]["toolkit"].update(version="13.0.88")
    )
    found = run(case)
    assert verdict(found) == "CUDA 13.0 as planned unblocks 0 of 6."
    assert told(found)["FlashInfer fusion"] == ("arch_gate", "allow-list", "certain")


def test_a_flashinfer_that_wants_the_newer_toolkit_meets_that_gate_now(case: Path) -> None:
    change_report(case, install(flashinfer_python="0.6.7"))
    behind = layers_behind(of(run(case), "FlashInfer fusion"))
    assert ("toolkit", "now") in behind


def test_nvswitch_opens_the_topology_but_not_the_table(case: Path) -> None:
    def edit(report: dict[str, Any]) -> None:
        report["machine"] |= {"interconnect": "nvlink", "nvswitch": True}

    change_report(case, edit)
    found = run(case)
    assert layers_behind(of(found, "torch symmetric memory")) == []
    assert told(found)["torch symmetric memory"][2] == "certain"
    assert told(found)["custom all-reduce"] == ("slower", "measured", "likely")


def test_another_gpu_is_not_excluded_by_the_lists(case: Path) -> None:
    def edit(report: dict[str, Any]) -> None:
        for gpu in report["machine"]["gpus"]:
            gpu["capability"] = "9.0"

    change_report(case, edit)
    found = run(case)
    assert told(found)["torch symmetric memory"][2] == "likely"
    assert told(found)["FlashInfer fusion"][:2] == ("toolkit", "toolkit")


def test_two_logs_swapped_swap_the_causes(case: Path) -> None:
    first, second = (case / f"logs/{name}.log" for name in ("nccl-tree", "torch-symm-mem"))
    texts = first.read_text(), second.read_text()
    first.write_text(texts[1])
    second.write_text(texts[0])
    found = told(run(case))
    assert found["NCCL Tree"][0] == "arch_gate"
    assert found["torch symmetric memory"][0] == "nccl_error"


def test_two_attempts_with_one_log_share_their_cause(case: Path) -> None:
    shutil.copy(case / "logs/flashinfer-fusion.log", case / "logs/torch-symm-mem.log")
    pairs = [pair for pair in run(case).pairs if pair.same_cause]
    assert [(pair.first, pair.second) for pair in pairs] == [
        ("FlashInfer fusion", "torch symmetric memory")
    ]


def test_a_healthy_log_in_place_of_a_failed_one_has_no_cause(case: Path) -> None:
    shutil.copy(case / "logs/fewer-channels.log", case / "logs/nccl-tree.log")
    replace(case, "attempts.toml", 'log = "logs/nccl-tree.log"\nexit_code = 137',
            'log = "logs/nccl-tree.log"\nexit_code = 0')  # fmt: skip
    found = run(case)
    assert of(found, "NCCL Tree").diagnosis.cause is None
    assert verdict(found) == ANSWER


def test_the_same_fraction_makes_the_measurement_valid(case: Path) -> None:
    replace(case, "attempts.toml", "--mem-fraction-static 0.85", "--mem-fraction-static 0.92")
    assert told(run(case))["fewer channels"] == ("slower", "measured", "likely")
    replace(case, "attempts.toml", "tokens_per_second = 84.7", "tokens_per_second = 89.1")
    assert "fewer channels" not in told(run(case))


def test_a_fraction_that_is_all_that_changed_is_what_was_tried(case: Path) -> None:
    replace(case, "attempts.toml", "NCCL_MIN_NCHANNELS=4 NCCL_MAX_NCHANNELS=4 ", "")
    assert told(run(case))["fewer channels"] == ("slower", "measured", "likely")


def test_naming_the_function_frees_the_setting_from_blame(case: Path) -> None:
    replace(case, "attempts.toml", "NCCL_ALGO=Tree ", "'NCCL_ALGO=ring;allreduce:tree' ")
    cause = of(run(case), "NCCL Tree").diagnosis.cause
    assert cause is not None
    assert cause.ruling.owner == "NCCL"


def test_what_nccl_warned_of_makes_its_cause_certain(case: Path) -> None:
    line = "RuntimeError: NCCL error: invalid usage"
    warning = "node1:7:9 [5] NCCL WARN No algorithm/protocol available for function AllGather\n"
    replace(case, "logs/nccl-tree.log", line, warning + line)
    assert told(run(case))["NCCL Tree"] == ("nccl_error", "setting", "certain")


def test_an_old_driver_in_place_of_a_list_is_what_the_plan_unblocks(case: Path) -> None:
    log = "logs/torch-symm-mem.log"
    replace(case, log, "KeyError: 12", "RuntimeError: CUDA driver version is insufficient for CUDA "
            "runtime version")  # fmt: skip
    change_report(
        case, lambda report: report["machine"]["driver"].update(version="570.26", cuda="12.8")
    )
    found = run(case)
    assert found.unblocked == ("torch symmetric memory",)
    assert "driver 580" in {str(change) for change, names in found.openers if names}
    assert "unblocks 1 of 6" in verdict(found)


def test_a_plan_without_the_toolkit_changes_nothing_but_the_name(case: Path) -> None:
    (case / "plan.toml").write_text('name = "Only SGLang"\nchanges = ["sglang==0.5.9"]\n')
    assert verdict(run(case)).startswith("Only SGLang as planned unblocks 0 of 6; a toolkit ≥ 12.9")
    assert layers_behind(of(run(case), "FlashInfer fusion"))[2][1] == "from sglang 0.5.9 on"


def test_without_facts_nothing_is_certain_but_the_settings(case: Path) -> None:
    (case / "report.json").write_text("{}")
    certain = {name for name, (*_, sure) in told(run(case)).items() if sure == "certain"}
    assert certain == {"fewer channels"}


def test_without_a_plan_the_answer_is_what_they_share(case: Path) -> None:
    found = together(case / "attempts.toml")
    assert verdict(found) == "Of 6 attempts no two share a root cause."
    assert together_json(found)["plan"] is None
    assert together_exit_code(found) == 3


def test_the_doctors_lines_stand_in_the_gates(case: Path) -> None:
    gate = {
        "component": "sglang 0.5.9", "feature": "flashinfer-allreduce-fusion",
        "layer": "allow-list", "predicate": "SGLang's own test", "observed": "9, 10",
        "verdict": "closed", "evidence": "sglang/srt/layers/communicator.py:91", "opened_in": "",
    }  # fmt: skip
    change_report(case, install(sglang="0.5.9"))
    change_report(case, lambda r: r["features"].update({"flashinfer-allreduce-fusion": [gate]}))
    behind = of(run(case), "FlashInfer fusion").behind
    assert "sglang/srt/layers/communicator.py:91" in {met.gate.evidence for met in behind}


@pytest.mark.parametrize(
    ("file", "old", "new", "why"),
    [
        ("attempts.toml", 'name = "NCCL Tree"', 'title = "NCCL Tree"', "title"),
        ("attempts.toml", "exit_code = 0", 'exit_code = "none"', "wrong type"),
        ("attempts.toml", '"NCCL Tree"', '"fewer channels"', "same name"),
        ("attempts.toml", "NCCL_ALGO=Tree python", "NCCL_ALGO='Tree python", "shell command"),
        ("attempts.toml", "[baseline]", "[base line]", "attempts.toml"),
        ("plan.toml", "cuda==13.0", "cuda 13.0", "component==version"),
        ("plan.toml", "changes", "change", "change"),
        ("report.json", "{", "", "report"),
    ],
)
def test_a_file_of_another_form_is_refused(
    case: Path, file: str, old: str, new: str, why: str
) -> None:
    text = (case / file).read_text(encoding="utf-8")
    (case / file).write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(UsageError) as refused:
        run(case)
    assert why in f"{refused.value.what} {refused.value.why}"
