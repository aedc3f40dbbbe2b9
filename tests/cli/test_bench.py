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


def test_the_demo_for_a_program_is_one_object_and_a_result_file(
    alula: Alula, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("alula.cli.demo._MAX_TOKENS", 8)
    code, out, _ = alula("demo", tiny_model, "--json", "--out", tmp_path / "demo.json")
    assert code == 0
    record = json.loads(out)
    assert record == json.loads((tmp_path / "demo.json").read_text("utf-8"))
    assert record["results"]["identical"] is True
    assert len(record["results"]["answers"]) == 4
    assert all("tok/s" in answer["summary"] for answer in record["results"]["answers"])
    assert record["machine"] and record["versions"]["alula"]


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


SHAPE = {
    "model_type": "llama",
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}


@pytest.fixture
def bare(tmp_path: Path) -> tuple[str, ...]:
    """The options that measure a tiny shape."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(SHAPE))
    sizes = ("--context", "20", "--repeats", "1", "--dtype", "float32", "--device", "cpu")
    return ("bench", "decode", "--shape", str(path), *sizes, "--speculation", "chain:2")


def test_a_bare_shape_is_measured_by_rounds(alula: Alula, bare: tuple[str, ...]) -> None:
    code, out, _ = alula(*bare, "--random-weights", "--simulate-acceptance", "1,1", "--json")
    record = json.loads(out)
    assert code == 0
    plain, drafted = record["results"]["rounds"]
    assert (plain["shape"], drafted["shape"]) == ("off", "chain:2")
    assert drafted["tokens_per_round"] == 3.0
    assert "SIMULATED" in record["settings"]["note"]


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ((), "has no weights"),
        (("--random-weights", "--max-tokens", "3"), "--max-tokens has no effect with --shape"),
        (("--random-weights", "--profile"), "only be taken apart on a GPU"),
        (("--random-weights", "--simulate-acceptance", "2"), "--simulate-acceptance '2'"),
    ],
)
def test_what_a_bare_shape_does_not_take_is_refused(
    alula: Alula, bare: tuple[str, ...], more: tuple[str, ...], what: str
) -> None:
    code, _, err = alula(*bare, *more)
    assert code == 2
    assert what in " ".join(err.split())


@pytest.mark.parametrize("command", ["decode", "serve"])
def test_a_model_cannot_be_told_what_to_accept(alula: Alula, command: str) -> None:
    code, _, err = alula("bench", command, "--simulate-acceptance", "0.5")
    assert code == 2
    assert "--simulate-acceptance" in err
    for other in ("generate", "serve", "chat"):
        assert alula(other, "--simulate-acceptance", "0.5")[0] == 2


def test_kernels_need_a_gpu_and_numbers(alula: Alula) -> None:
    for rows in ("0", "x", "1,,2"):
        code, _, err = alula("bench", "kernels", "--rows", rows)
        assert (code, "is not understood" in " ".join(err.split())) == (2, True)
    assert alula("bench", "kernels", "--rows", "1", "--tune")[0] == 2
    assert alula("bench", "kernels", "--shape", "llama-9b")[0] == 2
