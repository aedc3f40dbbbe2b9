import pytest
import torch

import tiny_models
from alula.models.load import load
from alula.ops.norm import Normed
from alula.training.target import DenseTarget

LENGTHS = (40, 7, 23)


@pytest.fixture(scope="module", params=["llama", "qwen2", "qwen3"])
def decoder(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param) / "model"
    tiny_models.make(request.param, num_hidden_layers=7).save_pretrained(folder)
    tiny_models.save_tokenizer(folder)
    return load(str(folder), dtype="float32").decoder


@pytest.fixture
def batch() -> torch.Tensor:
    padded = torch.zeros(len(LENGTHS), max(LENGTHS), dtype=torch.int64)
    for line, length in enumerate(LENGTHS):
        padded[line, :length] = tiny_models.ids(length, seed=line)
    return padded


def _relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    assert found.shape == expected.shape
    return float((found - expected).abs().max() / expected.abs().max())


def test_a_padded_batch_equals_the_decoder_alone(decoder, batch):
    taps = (2, 3, 4)
    found = DenseTarget(decoder).features(batch, taps)
    for line, length in enumerate(LENGTHS):
        rows = tiny_models.chain(0, length)
        expected = decoder.forward(batch[line, :length], rows, tiny_models.pool_for(decoder), taps)
        assert _relative_error(found.last[line, :length], expected.last.values) < 1e-5
        assert _relative_error(found.aux[line, :length], torch.cat(expected.aux, dim=-1)) < 1e-5


@pytest.mark.parametrize("rows", [5, 4096])
def test_the_teacher_speaks_of_tokens_that_bear_loss(decoder, batch, rows, monkeypatch):
    monkeypatch.setattr("alula.training.target.LOGIT_ROWS", rows)
    target = DenseTarget(decoder)
    last = target.features(batch, ()).last
    mask = torch.zeros_like(batch, dtype=torch.bool)
    mask[0, 5:30], mask[1, :3], mask[2, 20] = True, True, True
    draft_ids = torch.arange(0, decoder.shape.vocab_size, 3)
    teacher = target.teacher(last, mask, draft_ids)
    assert len(teacher.places) == 25 + 2 + 1  # nothing predicts the first token
    for number, (line, place) in enumerate(
        zip(teacher.sequences.tolist(), teacher.places.tolist(), strict=True)
    ):
        assert mask[line, place + 1]
        logits = decoder.logits(Normed(last[line, place][None]))[0]
        torch.testing.assert_close(teacher.probabilities[number], logits[draft_ids].softmax(0))
        choice, chosen = int(teacher.choice[number]), int(logits.argmax())
        assert (choice < 0) == (chosen % 3 != 0)
        assert choice < 0 or int(draft_ids[choice]) == chosen
    assert (teacher.choice < 0).any() and (teacher.choice >= 0).any()
