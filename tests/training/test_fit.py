import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import fit_process
import lessons
from alula.errors import MachineError, ResourceError, UsageError
from alula.models.load import load
from alula.models.progress import silent
from alula.training.corpus import batches
from alula.training.curve import read_points
from alula.training.drafting import as_checkpoint, draft_vocabulary
from alula.training.fit import CURVE, STATE, Trainer, fit
from alula.training.network import DraftNetwork

QUIET = {"checkpoint_seconds": 1e9}


@pytest.fixture(scope="module")
def model(tiny_model):
    return load(str(tiny_model), dtype="float32")


@pytest.fixture(scope="module")
def corpus(model, tmp_path_factory):
    return lessons.corpus(model, tmp_path_factory.mktemp("data"))


def _fit(model, corpus, folder: Path, **settings):
    trainer = Trainer(model, corpus, replace(fit_process.SETTINGS, **QUIET, **settings))
    return trainer, fit(trainer, folder, silent, lambda _: None)


def _learnt_greedily(corpus):
    chosen = np.flatnonzero(~corpus.held_out & (corpus.temperature == 0))
    return [corpus.batch(chosen.tolist())]


def test_loss_falls_and_the_curve_is_drawn(model, corpus, tmp_path):
    trainer, curve = _fit(model, corpus, tmp_path, epochs=30, rate=3e-3)
    trained = [p["loss"][0] for p in curve.points if "loss" in p]
    assert trained[-1] < 0.8 * trained[0]
    assert all(p["tau"] >= 1 for p in curve.points if "tau" in p)
    assert trainer.judge(_learnt_greedily(corpus))["tau"] > 1.3
    assert (tmp_path / CURVE).with_suffix(".svg").read_text().startswith("<svg")
    assert trainer.step == len(trainer.plan)


@pytest.fixture(scope="module")
def command(tiny_model, model, tmp_path_factory) -> list[str]:
    """A fit in a process of its own; its output folder is still to be added."""
    folder = tmp_path_factory.mktemp("written")
    lessons.corpus(model, folder)
    data = str(folder / "shard-0000.safetensors")
    return [sys.executable, fit_process.__file__, str(tiny_model), data]


@pytest.fixture(scope="module")
def undisturbed(command, tmp_path_factory) -> dict[str, torch.Tensor]:
    """What a fit comes to that nobody stops."""
    folder = tmp_path_factory.mktemp("undisturbed")
    subprocess.run([*command, str(folder)], env=_environment(), check=True)
    return load_file(folder / STATE)


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}


def _assert_it_goes_on_to_the_bit(command, undisturbed, folder: Path) -> None:
    done = subprocess.run(
        [*command, str(folder), "resume"], env=_environment(), check=True, capture_output=True
    )
    assert b"going on from step" in done.stdout
    found = load_file(folder / STATE)
    assert undisturbed.keys() == found.keys()
    for name, tensor in undisturbed.items():
        assert torch.equal(tensor, found[name]), name
    steps = [point["step"] for point in read_points(folder / CURVE)]
    assert steps == sorted(steps)


def test_killed_and_resumed_is_the_same_to_the_bit(command, undisturbed, tmp_path):
    victim = subprocess.Popen([*command, str(tmp_path)], env=_environment())
    while not (tmp_path / STATE).exists() or victim.poll() is not None:
        time.sleep(0.01)
    time.sleep(0.05)
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    _assert_it_goes_on_to_the_bit(command, undisturbed, tmp_path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_told_to_stop_it_keeps_where_it_is(command, undisturbed, tmp_path, number):
    told = [*command, str(tmp_path), "rarely"]
    with subprocess.Popen(
        told, env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()  # half of it is done
        process.send_signal(number)
    assert process.returncode in {128 + number, -number}
    assert (tmp_path / STATE).exists()
    _assert_it_goes_on_to_the_bit(command, undisturbed, tmp_path)


def test_a_resume_with_other_settings_is_refused(model, corpus, tmp_path):
    _fit(model, corpus, tmp_path)
    other = Trainer(model, corpus, replace(fit_process.SETTINGS, epochs=9))
    with pytest.raises(UsageError, match="other data or settings"):
        fit(other, tmp_path, silent, lambda _: None, resume=True)


def test_after_memory_ran_out_it_goes_on_with_smaller_batches(model, corpus, tmp_path):
    trainer, _ = _fit(model, corpus, tmp_path)
    trainer.step = len(trainer.plan) // 2
    trainer.save(tmp_path / STATE)
    smaller = Trainer(model, corpus, replace(fit_process.SETTINGS, batch_tokens=48))
    assert len(smaller.plan) > len(trainer.plan)
    smaller.resume(tmp_path / STATE)
    assert smaller.step / len(smaller.plan) == pytest.approx(0.5, abs=0.05)
    for name, tensor in trainer.network.state_dict().items():
        assert torch.equal(smaller.network.state_dict()[name], tensor)


def test_exported_weights_alone_are_a_warm_start(model, corpus, tmp_path):
    trainer, _ = _fit(model, corpus, tmp_path, epochs=30, rate=3e-3)
    start = as_checkpoint(trainer.network, trainer.draft_ids, torch.float16)
    again = Trainer(model, corpus, fit_process.SETTINGS, start)
    learnt = _learnt_greedily(corpus)
    before = trainer.judge(learnt)["tau"]
    assert before > 1.3
    assert again.judge(learnt)["tau"] == pytest.approx(before, abs=0.05)
    assert again.step == 0


def test_memory_that_runs_out_names_the_setting(model, corpus, tmp_path, monkeypatch):
    def fail(*_args):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB")

    monkeypatch.setattr(DraftNetwork, "losses", fail)
    with pytest.raises(ResourceError, match="--batch-tokens is 96") as caught:
        _fit(model, corpus, tmp_path)
    assert "--resume" in caught.value.fix


def test_a_full_disk_leaves_the_last_good_checkpoint(model, corpus, tmp_path, monkeypatch):
    trainer, _ = _fit(model, corpus, tmp_path)
    before = (tmp_path / STATE).read_bytes()

    def full(_handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("alula.models.home.os.fsync", full)
    with pytest.raises(MachineError, match="no room"):
        trainer.save(tmp_path / STATE)
    assert (tmp_path / STATE).read_bytes() == before
    assert [p.name for p in tmp_path.iterdir() if "partial" in p.name] == []


def test_batches_hold_every_conversation_once_within_the_limit():
    lengths = np.random.default_rng(1).integers(1, 60, 300)
    chosen = np.arange(0, 300, 2)
    found = batches(lengths, chosen, 128, seed=4)
    assert sorted(n for batch in found for n in batch) == chosen.tolist()
    assert all(len(b) * max(lengths[b]) <= 128 or len(b) == 1 for b in found)
    assert found == batches(lengths, chosen, 128, seed=4) != batches(lengths, chosen, 128, seed=5)
    padding = 1 - sum(lengths[chosen]) / sum(len(b) * max(lengths[b]) for b in found)
    assert padding < 0.15


def test_the_draft_vocabulary_is_frequent_and_has_all_special_tokens(model):
    counts = torch.zeros(259, dtype=torch.int64)
    counts[200:240] = 5
    counts[100] = 9
    ids = draft_vocabulary(counts, 20, model.tokenizer)
    assert ids.tolist() == [0, 1, 2, 100, *range(200, 216)]
    with pytest.raises(UsageError, match="3 special tokens"):
        draft_vocabulary(counts, 2, model.tokenizer)
