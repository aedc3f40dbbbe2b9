"""Every stage on the tiny model, through the module's own command line."""

import json
import math
from functools import partial
from pathlib import Path

import pytest
import torch

from alula.errors import UsageError
from alula.speculation.eagle3_checkpoint import load
from alula.training.__main__ import main
from alula.training.corpus import load_corpus
from alula.training.evaluate import evaluate
from alula.training.run import Recipe, claim

STAGES = [f"--stage={name}" for name in ("synthesise", "fit", "evaluate", "export")]
SMALL = "--tokens 900 --together 24 --max-length 128 --draft-vocab 64 --steps 2 --epochs 2"


QUICK = {"each": 1, "held_out": 4, "max_tokens": 8, "lengths": (64,), "contexts_each": 2}


@pytest.fixture(scope="module")
def run(tiny_model, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("run") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("alula.training.run.evaluate", partial(evaluate, **QUICK))
        return _run(tiny_model, out)


def _run(tiny_model: Path, out: Path) -> Path:
    assert main([str(tiny_model), "--out", str(out), *SMALL.split(), *STAGES]) == 0
    return out


def test_all_stages_leave_their_results(run):
    recorded = json.loads((run / "run.json").read_text())
    assert set(recorded["stages"]) == {"synthesise", "fit", "evaluate", "export"}
    assert recorded["recipe"]["tokens"] == 900
    evaluation = json.loads((run / "evaluation.json").read_text())
    ways = {(row["shape"], row["temperature"], row["noise"]) for row in evaluation["rows"]}
    assert len(ways) == 6
    for row in evaluation["rows"]:
        assert row["low"] <= row["tau"] <= row["high"]
        assert all(0 <= share <= 1 for share in row["acceptance"])
    assert (run / "fit" / "curve.svg").is_file()


def test_what_was_written_is_on_record(run):
    manifest = json.loads((run / "data" / "manifest.json").read_text())
    corpus = load_corpus(sorted((run / "data").glob("*.safetensors")))
    assert sum(s["answer_tokens"] for s in manifest["shards"]) == corpus.mask.sum() >= 900
    assert sum(s["conversations"] for s in manifest["shards"]) == len(corpus)
    assert manifest["settings"]["seed"] == 0


def test_the_drafter_is_exported_with_a_card(run):
    checkpoint = load(run / "drafter")
    assert checkpoint.dtype == torch.float16
    assert checkpoint.config.draft_vocab_size == 64
    text = (run / "drafter" / "README.md").read_text()
    for said in ("apache-2.0", "--draft-vocab 64", "answer_tokens", "| fit | ", "chain:5"):
        assert said in text


def test_a_stage_runs_alone_and_again(run, tiny_model):
    before = (run / "drafter" / "model.safetensors").read_bytes()
    arguments = [str(tiny_model), "--out", str(run), *SMALL.split(), "--stage", "export"]
    assert main([*arguments, "--resume"]) == 0
    assert (run / "drafter" / "model.safetensors").read_bytes() == before


def test_a_run_goes_on_only_when_asked(run, tiny_model, capsys):
    assert main([str(tiny_model), "--out", str(run), *SMALL.split()]) == 2
    assert "--resume" in capsys.readouterr().err


def test_a_run_that_has_nothing_to_go_on_with_says_so(tmp_path, tiny_model, capsys):
    arguments = [str(tiny_model), "--out", str(tmp_path / "new"), "--resume", "--stage", "export"]
    main([*arguments, *SMALL.split()])
    assert "there is nothing to go on with" in capsys.readouterr().err


def test_smaller_batches_are_no_other_run(tmp_path):
    claim(Recipe("m"), tmp_path, resume=False)
    claim(Recipe("m", batch_tokens=64), tmp_path, resume=True)
    assert json.loads((tmp_path / "run.json").read_text())["recipe"]["batch_tokens"] == 64


def test_another_runs_folder_is_refused(run, tiny_model, capsys):
    other = [str(tiny_model), "--out", str(run), *SMALL.split(), "--steps", "3", "--resume"]
    assert main(other) == 2
    assert "belongs to another run" in capsys.readouterr().err


def test_a_folder_with_other_files_is_refused(tmp_path):
    (tmp_path / "letter.txt").write_text("Dear Anna")
    with pytest.raises(UsageError, match="is in use"):
        claim(Recipe("m"), tmp_path, resume=False)


def test_stages_out_of_order_are_refused(tiny_model, tmp_path, capsys):
    out = tmp_path / "out"
    assert main([str(tiny_model), "--out", str(out), "--stage", "fit"]) == 2
    assert "--stage synthesise" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["tokens", "steps", "epochs"])
def test_counts_below_one_are_refused(name):
    with pytest.raises(UsageError, match=f"--{name} cannot be 0"):
        Recipe("m", **{name: 0})


def test_nothing_in_a_record_is_not_a_number(run):
    def check(value):
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, list):
            for part in value:
                check(part)
        assert not (isinstance(value, float) and not math.isfinite(value))

    check(json.loads((run / "evaluation.json").read_text()))
