"""Each phrase of public bug reports gives one cause, of the right class and layer."""

from __future__ import annotations

import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alula.diagnosis.cause import Certainty
from alula.diagnosis.diagnose import diagnose
from alula.diagnosis.facts import Facts
from alula.diagnosis.signatures import Kind, knowledge
from failing_logs import failing, stamp, starting, write

Row = dict[str, str]
ROWS: list[Row] = tomllib.loads(
    Path(__file__).with_name("reported_phrases.toml").read_text(encoding="utf-8")
)["row"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["signature"])
def test_a_reported_phrase_gives_its_cause(row: Row, tmp_path: Path) -> None:
    text = failing(row["phrase"], row.get("frame", ""), row.get("phase", "distributed"))
    cause = diagnose([write(tmp_path, text)], exit_code=1).cause
    assert cause is not None
    found = cause.ruling.failure_class, cause.ruling.layer, cause.name
    assert found == (row["class"], row["layer"], row["signature"])
    assert cause.certainty is Certainty.LIKELY  # a phrase alone decides nothing
    assert cause.ruling.fix
    assert cause.ruling.refuted_by


@pytest.mark.parametrize(
    ("phrase", "failure_class", "asked"),
    [
        ("Overriding cudagraph_mode from FULL_AND_PIECEWISE to PIECEWISE", "degraded_mode", ""),
        ("setting cudagraph_mode=PIECEWISE", "degraded_mode", ""),
        ("FULL_AND_PIECEWISE is not supported with TritonMLABackend", "degraded_mode", ""),
        (
            "torch symmetric memory multicast operations are not supported.",
            "topology_gate",
            "--enable-torch-symm-mem",
        ),
        (
            "SymmMemCommunicator: Device capability 12.0 not supported, communicator is not "
            "available.",
            "arch_gate",
            "VLLM_ALLREDUCE_USE_SYMM_MEM=1",
        ),
        (
            "Custom allreduce is disabled because it's not supported on more than two PCIe-only "
            "GPUs.",
            "topology_gate",
            "SGLANG_CUSTOM_AR_ALLOW_PCIE=1",
        ),
    ],
)
def test_what_runs_but_not_as_asked_is_a_cause_where_it_was_asked_for(
    phrase: str, failure_class: str, asked: str, tmp_path: Path
) -> None:
    ready = "[2026-02-11 10:05:00] The server is fired up and ready to roll!"
    log = write(
        tmp_path, "\n".join([*starting(), f"WARNING 02-11 10:00:09 [x.py:1] {phrase}", ready])
    )
    cause = diagnose([log], Facts({"command": (f"serve {asked}",)})).cause
    assert cause is not None
    assert cause.ruling.failure_class == failure_class
    unasked = diagnose([log], Facts({"command": ("serve",)}))
    assert (unasked.cause is None) == bool(asked)


ROOT = {
    signature.name
    for signature in knowledge().signatures
    if signature.kind is Kind.FAILURE and signature.depth < 2
}
ROOTS = [row for row in ROWS if row["signature"] in ROOT and "frame" not in row]
NOISE = ("INFO still loading", "WARNING NVLink is absent", "DEBUG 3 of 64 shards")


@given(
    st.sampled_from(ROOTS),
    st.sampled_from(ROWS),
    st.permutations(range(4)),
    st.lists(st.sampled_from(NOISE), max_size=6),
)
@settings(deadline=None)
def test_the_earlier_of_two_failures_is_the_root_however_files_and_ranks_mix(
    first: Row, second: Row, ranks: list[int], noise: list[str]
) -> None:
    def block(row: Row, second: int, rank: int) -> list[str]:
        return [f"{stamp(second, rank)} {line}" for line in [*noise, *row["phrase"].split("\n")]]

    early, late = block(first, 20, ranks[0]), block(second, 80, ranks[1])
    with TemporaryDirectory() as folder:
        one = write(Path(folder), "\n".join([*starting(), *late]), "one.log")
        other = write(Path(folder), "\n".join([*starting(), *early]), "other.log")
        both = write(Path(folder), "\n".join([*starting(), *early, *late]), "both.log")
        for logs in ([one, other], [other, one], [both]):
            cause = diagnose(logs, exit_code=1).cause
            assert cause is not None
            assert cause.name == first["signature"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["signature"])
def test_without_prefixes_ranks_and_wrappers_the_cause_is_the_same(
    row: Row, tmp_path: Path
) -> None:
    frame, phase = row.get("frame", ""), row.get("phase", "distributed")
    bare = [line.partition("] ")[2] or line for line in failing("X", frame, phase, 1).split("\n")]
    text = "\n".join(bare[:-3]).replace("X", row["phrase"])
    cause = diagnose([write(tmp_path, text)], exit_code=1).cause
    assert cause is not None
    assert cause.name == row["signature"]
