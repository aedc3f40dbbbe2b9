"""`alula bench kernels` from options to file: in the interpreter, with a clock that lies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from alula.bench import kernels, kernels_command, timing
from alula.bench.kernels_command import Asked, main, run
from alula.bench.shapes import Matrix
from alula.bench.timing import Clock, Launch
from alula.ops.triton.tiles import ROWS, Shape, read

CONFIG = {
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 2,
}


@pytest.fixture
def shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A tiny shape on a machine that claims to have a GPU."""

    def clock(_launch: Launch, _parts: int = 1) -> Clock:
        return lambda: 4.0

    monkeypatch.setattr(kernels_command, "gpu", lambda: torch.device("cpu"))
    monkeypatch.setattr(timing, "read_limit", lambda _device: 4.0)
    monkeypatch.setattr(kernels, "GraphClock", clock)
    monkeypatch.setattr(kernels, "shared_bytes", lambda _device: 227 * 1024)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return str(path)


def test_linears_and_attention_are_told_and_written(shape: str, tmp_path: Path) -> None:
    said: list[str] = []
    out = tmp_path / "found.json"
    record = run(Asked([shape], rows=(1, 40), drafter=True, out=out), said.append)
    assert json.loads(out.read_text())["results"] == json.loads(json.dumps(record["results"]))
    found = record["results"]["config"]
    assert {(each["name"], each["rows"]) for each in found["linears"]} >= {
        (name, rows) for name in ("qkv", "gate up", "head", "drafter fc") for rows in (1, 40)
    }
    assert len(found["attention"]) == len([line for line in said if " context " in line]) + 2
    assert "clocks_mhz" in record["machine"]


def test_a_tuned_table_is_the_one_that_is_read(
    shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels_command, "matrices", lambda _shape: [Matrix("down", 32, 48)])
    out = tmp_path / "sm_90.json"
    said: list[str] = []
    run(Asked([shape], tune=True, out=out), said.append)
    known = read(out)
    assert known.classes["narrow"]
    buckets = known.measured[Shape(32, 48, 2)]
    assert tuple(bucket.rows for bucket in buckets) == ROWS
    assert json.loads(out.read_text())["measured_on"]["gpu"] == "a GPU"
    assert any("of the read limit" in line for line in said)


def test_the_module_takes_its_own_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--shape", "llama-9b"]) == 2
    assert "no shape 'llama-9b'" in capsys.readouterr().err
    assert main(["--rows", "0"]) == 2
