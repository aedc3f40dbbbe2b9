"""The words of a failure in source code, help texts, requests and warnings are no failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from alula.diagnosis.answer import exit_code
from alula.diagnosis.cause import Certainty
from alula.diagnosis.diagnose import diagnose
from failing_logs import failing, starting, write

OOM = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"
READY = "[2026-02-11 10:05:00] The server is fired up and ready to roll!"
QUOTED = [
    f"INFO 02-11 10:06:01 [logger.py:42] Received request c-1: prompt: 'Explain: {OOM}'",
    f"[2026-02-11 10:06:01] Receive: obj=GenerateReqInput(rid='a', text='Scheduler hit an {OOM}')",
    "[2026-02-11 10:06:02] Finish: obj=GenerateReqInput(rid='a'), out={'text': 'KeyError: 12'}",
    f"DEBUG 02-11 10:06:01 [x.py:2] the last answer began with {OOM}",
    '    raise RuntimeError("No supported CUDA architectures found for major versions [9, 10].")',
    "        # CUDA error: no kernel image is available for execution on the device",
    '    logger.error("Could not load any common_ops library!")',
    '    if "CUDA out of memory" in str(error):',
    '    "Ninja build failed",',
    "  --mem-fraction-static F  Lower it where you see CUDA out of memory.",
    "                        Lower it where you see torch.OutOfMemoryError.",
]


@pytest.mark.parametrize("line", QUOTED)
def test_a_quoted_phrase_is_no_failure(tmp_path: Path, line: str) -> None:
    log = write(tmp_path, "\n".join([*starting(), READY, line, ""]))
    found = diagnose([log])
    assert found.cause is None
    assert exit_code(found) == 0


@pytest.mark.parametrize("line", QUOTED)
def test_a_quoted_phrase_does_not_hide_the_failure(tmp_path: Path, line: str) -> None:
    known = "KeyError: 'model.layers.0.mlp.gate_up_proj.weight'"
    found = diagnose([write(tmp_path, f"{line}\n{failing(known)}")])
    assert found.cause is not None
    assert found.cause.name == "weight-name"


def test_a_source_line_of_a_traceback_is_no_failure(tmp_path: Path) -> None:
    text = failing("KeyError: 'model.layers.0.w'", frame="flashinfer")
    text = text.replace("return make(majors)", "self.fail('CUDA out of memory') or make(majors)")
    found = diagnose([write(tmp_path, text)])
    assert found.cause is not None
    assert found.cause.name == "weight-name"


WARNED = (
    "WARNING 02-11 10:00:01 [x.py:2] expert parallelism is off: libnvshmem_host.so.3: cannot open "
    "shared object file: No such file or directory\n"
)


def test_what_a_server_only_warned_of_gives_way_to_what_ended_it(tmp_path: Path) -> None:
    found = diagnose([write(tmp_path, WARNED + failing(OOM, phase="weights"))])
    assert found.cause is not None
    assert found.cause.ruling.failure_class == "oom_load"


def test_a_warning_does_not_explain_an_error_that_nobody_knows(tmp_path: Path) -> None:
    found = diagnose([write(tmp_path, WARNED + failing("StrangeError: no idea"))])
    assert found.cause is not None
    assert found.cause.certainty is Certainty.UNKNOWN
    assert any("library" in note.text for note in found.notes)


def test_a_warning_explains_an_end_without_words(tmp_path: Path) -> None:
    log = write(tmp_path, "\n".join([WARNED.strip(), *starting(), ""]))
    found = diagnose([log], exit_code=1)
    assert found.cause is not None
    assert found.cause.name == "missing-library"


@pytest.mark.parametrize(
    ("phase", "failure_class"),
    [("distributed", "oom_load"), ("weights", "oom_load"), ("kv", "oom_kv")],
)
def test_memory_that_runs_out_is_told_by_its_phase(
    tmp_path: Path, phase: str, failure_class: str
) -> None:
    found = diagnose([write(tmp_path, failing(OOM, phase=phase))])
    assert found.cause is not None
    assert found.cause.ruling.failure_class == failure_class
    assert "serving" not in found.cause.ruling.meaning


def test_of_an_unknown_failure_the_compilers_line_is_quoted(tmp_path: Path) -> None:
    words = "PTXASError: internal code generation error\nptxas fatal   : Value 'sm_1"
    found = diagnose([write(tmp_path, failing(words))])
    assert found.cause is not None
    assert found.cause.event is not None
    assert found.cause.event.text.startswith("ptxas fatal")


@pytest.mark.parametrize("end", ["Killed", "Aborted (core dumped)", "Segmentation fault"])
def test_how_a_process_ends_does_not_hide_what_it_told(tmp_path: Path, end: str) -> None:
    found = diagnose([write(tmp_path, failing(f"StrangeError: no idea\n{end}"))])
    assert found.cause is not None
    assert found.cause.event is not None
    assert found.cause.event.text == "StrangeError: no idea"
