"""A condition is true, false or not known, and never guessed from what is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alula.diagnosis.changes import Change, applied
from alula.diagnosis.facts import Condition, Facts, all_hold
from alula.diagnosis.report import facts_of, gates_of, load_report

FACTS = Facts(
    {
        "flashinfer-python": ("0.6.4",),
        "torch": ("2.9.1+cu130",),
        "capability.major": ("9", "12"),
        "match.majors": ("9", "10"),
        "match.part": ("flashinfer-python",),
        "links": ("pcie",),
        "frames": ("a/torch_symm_mem.py:3\nb.py:4",),
        "empty": ("",),
        "forgotten": (),
    }
)


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("flashinfer-python < 0.6.17", True),
        ("flashinfer-python >= 0.6.17", False),
        ("torch == 2.9.1", True),  # the build says nothing of the version
        ("torch < 2.11.0.dev20260215", True),
        ("links in pcie nvlink", True),
        ("links outside pcie nvlink", False),
        ("links != nvlink", True),
        ("links > 3", None),  # no version
        ("capability.major == 12", None),  # the GPUs disagree
        ("capability.major >= 9", True),  # they agree
        ("match.majors has 10", True),
        ("frames has torch_symm_mem or comm", True),
        ("frames lacks comm", True),
        ("{match.part} == 0.6.4", True),
        ("flashinfer-python outside {match.majors}", True),
        ("nvcc < 12.9", None),
        ("nvcc unknown", True),
        ("empty unknown", True),
        ("links known", True),
        ("links == {nothing}", None),
        ("torch >= {forgotten}", None),
        ("forgotten >= 3", None),
    ],
)
def test_a_condition(text: str, holds: bool | None) -> None:
    assert Condition.parse(text).holds(FACTS) is holds


@pytest.mark.parametrize("text", ["", "nvcc", "nvcc <", "nvcc ~ 3", "nvcc unknown 3"])
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="name operator value"):
        Condition.parse(text)


@given(st.lists(st.sampled_from([True, False, None]), max_size=5))
def test_all_hold_is_the_logic_of_three_values(answers: list[bool | None]) -> None:
    texts = {True: "links == pcie", False: "links == nvlink", None: "nvcc < 12.9"}
    found = all_hold([Condition.parse(texts[answer]) for answer in answers], FACTS)
    assert found is (False if False in answers else None if None in answers else True)


@given(st.text(), st.text())
def test_facts_of_any_text_are_compared_without_error(known: str, wanted: str) -> None:
    for operator in ("==", "<", ">=", "in", "has", "lacks"):
        condition = Condition("x", operator, wanted or "1")
        assert condition.holds(Facts({"x": (known,)})) in (True, False, None)


def test_changes_lay_themselves_over_facts() -> None:
    changes = [Change.parse("CUDA == 13.0"), Change.parse("torch==2.11.0+cu130")]
    after = applied(changes, FACTS)
    assert (after.get("nvcc"), after.get("torch"), after.get("torch.cuda")) == (
        "13.0",
        "2.11.0+cu130",
        "13.0",
    )
    assert after.get("flashinfer-python") == "0.6.4"
    unlabelled = Change.parse("torch==2.12.0").apply(after)
    assert unlabelled.get("torch.cuda") == ""  # whatever its index takes for the default
    with pytest.raises(ValueError, match="component==version"):
        Change.parse("torch>=2.11")


REPORT = {
    "machine": {
        "gpus": [
            {"capability": "12.0", "visible": True},
            {"capability": "12.0", "visible": True},
            {"capability": "8.6", "visible": False},
        ],
        "links": [{"read": "ok", "write": "not supported"}],
        "driver": {"version": "590.48.01", "cuda": "13.1"},
        "interconnect": "pcie",
        "nvswitch": None,
    },
    "software": {
        "packages": {"torch": "2.10.0", "Flashinfer_Python": "0.6.3", "nvidia-nccl-cu12": "2.27.5"},
        "components": [
            {"name": "torch", "version": "2.10.0", "variant": "cu128", "missing": []},
            {
                "name": "sgl-kernel",
                "version": "0.3.21",
                "missing": [{"torch_symbols": ["_ZN3c10x"], "sonames": ["libnvrtc.so.12"]}],
            },
        ],
        "jits": [{"name": "FlashInfer", "toolkit": {"version": "12.8.93"}}],
        "loading": [
            {"component": "torch", "verdict": "runs"},
            {"component": "fa3", "verdict": "none"},
        ],
    },
    "gates": [{"layer": "linkage", "verdict": "closed", "component": "sgl-kernel 0.3.21"}],
    "features": {"eagle3": [{"layer": "allow-list", "verdict": "open"}, {"layer": "roof"}]},
}


def test_a_report_of_the_doctor_gives_facts() -> None:
    facts = facts_of(REPORT)
    expected = {
        "gpus": "2", "capability": "12.0", "capability.major": "12", "capability.target": "sm_120a",
        "links": "pcie", "driver": "590.48.01", "driver.cuda": "13.1", "driver.cuda.major": "13",
        "torch": "2.10.0", "torch.cuda": "12.8", "torch.cuda.major": "12", "nccl": "2.27.5",
        "flashinfer-python": "0.6.3", "sgl-kernel": "0.3.21", "nvcc": "12.8.93",
        "torch.lacks": "_ZN3c10x", "lacks": "libnvrtc.so.12", "loading": "none, runs",
        "imageless": "fa3",
    }  # fmt: skip
    assert {name: facts.get(name) for name in expected} == expected
    assert facts.get("p2p") == ""  # one way is refused, the other not
    assert [gate.layer for gate in gates_of(REPORT)] == ["linkage", "allow-list"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(list(REPORT)), JSON))
def test_a_report_of_another_form_gives_fewer_facts_and_no_error(report: dict[str, object]) -> None:
    assert isinstance(facts_of(report), Facts)
    gates_of(report)


@given(st.sampled_from(["machine", "software"]), JSON, st.data())
def test_a_field_of_another_form_is_passed_over(
    part: str, value: object, data: st.DataObject
) -> None:
    broken = json.loads(json.dumps(REPORT))
    broken[part][data.draw(st.sampled_from(list(broken[part])))] = value
    assert isinstance(facts_of(broken), Facts)


def test_a_saved_report_is_read(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(json.dumps(REPORT))
    assert load_report(path) == REPORT
