"""The self-check passes where all is wired right, and finds each mistake it is there for."""

import pytest

from alula.errors import ModelError
from alula.models.load import load
from alula.models.progress import silent
from alula.training.fit import Fit
from alula.training.network import DraftNetwork
from alula.training.selfcheck import SEQUENCES, lesson, self_check
from alula.training.target import DenseTarget
from alula.training.writer import EngineWriter

TEXTS = [f"{first} {second}" for first in ("Why", "How") for second in ("is", "can", "am", "do")]
SETTINGS = Fit(
    draft_vocab=256,
    steps=3,
    epochs=150,
    batch_tokens=1 << 20,
    rate=5e-3,
    last_rate=1e-4,
    muon=False,
)


@pytest.fixture(scope="module")
def model(tiny_model):
    return load(str(tiny_model), dtype="float32")


def _check(model):
    return self_check(model, EngineWriter(model, 8, 256), silent, SETTINGS, TEXTS)


def test_it_passes_as_things_are(model):
    checked = _check(model)
    assert checked.tau > 2.5 and checked.divergence < 0.5


def test_wrong_layers_are_found(model, monkeypatch):
    features = DenseTarget.features

    def other(self, ids, taps):
        return features(self, ids, tuple(tap - 1 for tap in taps))

    monkeypatch.setattr(DenseTarget, "features", other)
    with pytest.raises(ModelError, match="by heart"):
        _check(model)


def test_a_shift_of_the_tokens_is_found(model, monkeypatch):
    unroll = DraftNetwork.unroll

    def late(self, features, tokens, embed, steps):
        return unroll(self, features, tokens.roll(1, dims=1), embed, steps)

    monkeypatch.setattr(DraftNetwork, "unroll", late)
    with pytest.raises(ModelError, match="by heart"):
        _check(model)


def test_a_mask_of_the_wrong_tokens_is_found(model, monkeypatch):
    teacher = DenseTarget.teacher

    def prompts(self, last, mask, draft_ids):
        return teacher(self, last, ~mask, draft_ids)

    monkeypatch.setattr(DenseTarget, "teacher", prompts)
    with pytest.raises(ModelError, match="by heart"):
        _check(model)


def test_there_are_as_many_prompts_as_promised():
    assert len(set(lesson())) == SEQUENCES == 32
