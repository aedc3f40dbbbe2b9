"""A built-in model comes with a drafter that fits it, and other models do not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from alula.engine.speculator import drafter_for
from alula.models.builtin import BUILT_IN
from alula.speculation.eagle3_checkpoint import load
from alula.speculation.shipped import FOLDER, called, shipped

MOST_BYTES = 24_000_000


def test_smollm2_has_a_drafter_of_its_own_size() -> None:
    folder = shipped("smollm2")
    assert folder is not None
    checkpoint = load(folder)
    assert checkpoint.dtype is torch.float16
    checkpoint.fit(hidden_size=576, vocab_size=49152, layers=30)
    assert checkpoint.config.taps(30) == (2, 15, 27)
    assert sum(path.stat().st_size for path in folder.iterdir()) <= MOST_BYTES


def test_every_drafter_belongs_to_a_built_in_model_and_says_how_it_was_made() -> None:
    folders = [folder for folder in FOLDER.iterdir() if folder.is_dir()]
    assert folders
    for folder in folders:
        assert folder.name in BUILT_IN
        card = (folder / "README.md").read_text("utf-8")
        assert "alula train" in card
        assert "license: apache-2.0" in card


@pytest.mark.parametrize("model", ["", ".", "..", "other", "smollm2/", "../drafters/smollm2"])
def test_other_names_have_none(model: str) -> None:
    assert shipped(model) is None


@pytest.mark.parametrize(
    ("option", "used"),
    [
        ("auto", True),
        ("chain:3", True),
        ("tree:3x2:6", True),
        ("off", False),
        ("chain:0", False),
        ("ngram", False),
    ],
)
def test_it_is_the_default_where_an_option_needs_a_drafter(option: str, used: bool) -> None:
    assert drafter_for(option, "smollm2", None) == (shipped("smollm2") if used else None)
    assert drafter_for(option, "another", None) is None
    assert drafter_for(option, "smollm2", Path("own")) == Path("own")


def test_a_message_names_it_without_its_path() -> None:
    assert called(FOLDER / "smollm2") == "the drafter that comes with smollm2"
    assert called(Path("a/b")) == "the drafter a/b"
