"""`alula bench decode` and `alula demo` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from alula.speculation.eagle3_checkpoint import random_checkpoint, save
from running import Alula

SMALL = ("--prompts-per-kind", "1", "--kinds", "chat,lists", "--max-tokens", "12")
DECODE = ("--repeats", "2", "--threads", "1", "--dtype", "float32", *SMALL)


def test_the_verdict_comes_first_then_the_table(alula: Alula, tiny_model: Path) -> None:
    code, out, _ = alula("bench", "decode", tiny_model, *DECODE)
    assert code == 0
    first, _, *table = out.splitlines()
    assert first.startswith("Prompt lookup ") and first.endswith("tokens identical.")
    assert "tok/s" in table[0]
    kinds = [line.strip() for line in table if line and not line.startswith(" ")]
    assert kinds == ["lists", "chat"] or kinds == ["chat", "lists"]


def test_json_and_the_result_file_say_the_same(
    alula: Alula, tiny_model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "result.json"
    code, out, _ = alula("bench", "decode", tiny_model, *DECODE, "--json", "--out", path)
    record = json.loads(out)
    assert code == 0
    assert record == json.loads(path.read_text("utf-8"))
    assert record["settings"]["speculation"] == ["off", "ngram"]
    assert record["results"]["identical"] is True
    measured = record["results"]["measured"]
    assert {(entry["kind"], entry["shape"]) for entry in measured} == {
        (kind, shape) for kind in ("chat", "lists") for shape in ("plain", "ngram")
    }
    assert set(measured[0]["tokens_per_second"]) == {"median", "low", "high"}


def test_different_tokens_exit_1(
    alula: Alula, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from alula.bench import decode

    honest = decode.measure

    def dishonest(*arguments: object) -> object:
        runs = honest(*arguments)  # type: ignore[arg-type]
        return [r._replace(token_ids=[0]) if r.shape == "ngram" else r for r in runs]

    monkeypatch.setattr(decode, "measure", dishonest)
    code, out, _ = alula("bench", "decode", tiny_model, *DECODE)
    assert code == 1
    assert "TOKENS DIFFER" in out.splitlines()[0]


def test_the_demo_answers_and_compares(
    alula: Alula, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("alula.cli.demo._MAX_TOKENS", 8)
    code, out, err = alula("demo", tiny_model)
    assert code == 0
    assert out.count("› ") == 4
    assert "tokens identical." in out and "break-even" in out
    assert "tok/s" in err


def test_a_drafter_is_measured_beside_prompt_lookup(
    alula: Alula, tiny_model: Path, tmp_path: Path
) -> None:
    config = json.loads((tiny_model / "config.json").read_text("utf-8"))
    checkpoint = random_checkpoint(
        hidden_size=config["hidden_size"],
        vocab_size=config["vocab_size"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
    )
    save(checkpoint, tmp_path / "drafter")
    asked = ("bench", "decode", tiny_model, *DECODE, "--drafter", tmp_path / "drafter", "--json")
    results = json.loads(alula(*asked).out)["results"]
    assert results["shapes"] == ["plain", "ngram", "eagle3 chain:4", "auto"]
    assert results["identical"] is True
    tree = json.loads(alula(*asked, "--speculation", "tree:2x2:4").out)["results"]
    assert tree["shapes"] == ["plain", "eagle3 tree:2x2:4"]
    assert tree["identical"] is True
