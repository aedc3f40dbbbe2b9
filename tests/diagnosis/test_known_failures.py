"""Each phrase of public bug reports gives one cause, of the right class and layer."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from alula.diagnosis.diagnose import Certainty, diagnose
from failing_logs import failing, write

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
