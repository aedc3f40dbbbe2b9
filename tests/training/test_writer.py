import torch

from alula.models.load import load
from alula.models.progress import silent
from alula.training.writer import Ask, DenseWriter, EngineWriter, answers


def test_dense_batches_and_the_engine_write_the_same(tiny_model):
    model = load(str(tiny_model), dtype="float32")
    dice = torch.Generator().manual_seed(2)
    asks = [
        Ask(
            prompt=torch.randint(259, (int(n),), generator=dice).tolist(),
            temperature=(0.0, 0.7, 1.0)[number % 3],
            seed=number,
            max_tokens=10 + number,
            min_p=0.05 * (number % 2),
            stop_ids=frozenset({100 + number}),
        )
        for number, n in enumerate(torch.randint(1, 60, (30,), generator=dice))
    ]
    expected = answers(EngineWriter(model, 4, 128), asks, silent)
    assert answers(DenseWriter(model, 8, 128), asks, silent) == expected
    lengths = {len(answer) - ask.max_tokens for ask, answer in zip(asks, expected, strict=True)}
    assert 0 in lengths and min(lengths) < 0
