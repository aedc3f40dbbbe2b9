"""What is quoted of a log names nobody, unless --full asks for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from alula.diagnosis.answer import as_json
from alula.diagnosis.diagnose import diagnose
from alula.diagnosis.private import without_private
from failing_logs import failing, write

PRIVATE = [
    ("/home/marlene/models: cannot be read by marlene", ["marlene"]),
    ("at C:\\Users\\Marlene\\models", ["Marlene"]),
    ("user=marlene may not read it, says marlene", ["marlene"]),
    ("process rank 1 on node gpuhost07 ended, ask gpuhost07", ["gpuhost07"]),
    ("connect to [gpu-a.example.local]:29500 timed out", ["gpu-a", "example.local"]),
    ("cannot reach tcp://gpu-b.rack7:29500", ["gpu-b", "rack7"]),
    ("master_addr='gpu-c7' is not reachable", ["gpu-c7"]),
    ("no route to 10.20.30.40:5000", ["10.20.30.40"]),
    ("no route to fe80::1ff:fe23:4567:890a", ["fe80"]),
    ("token hf_abcdefghijklmnopqrstuv is not valid", ["abcdefghij"]),
    ("{'api_key': 's3cr3tvalue', 'port': 30000}", ["s3cr3t"]),
    ("--api-key s3cr3tvalue is refused", ["s3cr3t"]),
    ("401 for https://marlene:s3cr3tvalue@example.org/x", ["s3cr3t", "marlene"]),
    ("Authorization: Bearer s3cr3tvalue123", ["s3cr3t"]),
    ("write to marlene@example.org", ["marlene"]),
]


@pytest.mark.parametrize(("words", "leaks"), PRIVATE)
@pytest.mark.parametrize("phrase", ["StrangeError: {}", "RuntimeError: CUDA out of memory ({})"])
def test_quoted_lines_name_nobody(
    tmp_path: Path, phrase: str, words: str, leaks: list[str]
) -> None:
    found = diagnose([write(tmp_path, failing(phrase.format(words)))])
    text = json.dumps(as_json(without_private(found)), ensure_ascii=False)
    kept = json.dumps(as_json(found), ensure_ascii=False).replace("\\\\", "\\")
    assert [leak for leak in leaks if leak in text] == []
    assert all(leak in kept for leak in leaks)
    assert phrase.partition(":")[0] in text


def test_the_path_of_a_log_and_of_a_traceback_lose_the_home_folder(tmp_path: Path) -> None:
    folder = tmp_path / "home" / "marlene"
    folder.mkdir(parents=True)
    text = failing("StrangeError: no idea", frame="flashinfer").replace("/opt/", "/home/marlene/")
    found = without_private(diagnose([write(folder, text)]))
    cause = as_json(found)["cause"]
    assert "marlene" not in json.dumps(cause)
    assert cause["file"].endswith("server.log")
    assert cause["raised_at"] == "~/flashinfer/jit/comm.py:60"


@pytest.mark.parametrize(
    "words",
    [
        "undefined symbol: _ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib",
        "No supported CUDA architectures found for major versions [9, 10].",
        "libcudart.so.12: cannot open shared object file: No such file or directory",
        "flashinfer-cubin version (0.6.13) does not match flashinfer version (0.6.14)",
    ],
)
def test_what_decides_stays(tmp_path: Path, words: str) -> None:
    found = without_private(diagnose([write(tmp_path, failing(f"ImportError: {words}"))]))
    assert as_json(found)["cause"]["text"] == f"ImportError: {words}"


def test_a_failure_that_a_rank_repeats_is_no_second_error(tmp_path: Path) -> None:
    phrase = "RuntimeError: CUDA out of memory"
    found = diagnose([write(tmp_path, failing(f"{phrase}\n{phrase}", ranks=1))])
    assert [event for event in found.cascade if event.signature is None] == []
