from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from alula.cache.pool import KVPool
from alula.ops.rows import Rows
from alula.ops.store import places
from alula.speculation.eagle3 import Eagle3
from alula.speculation.eagle3_checkpoint import Eagle3Checkpoint, random_checkpoint
from alula.training.network import DraftNetwork, Teacher, weighted
from ttt_reference import SlowTraining

HIDDEN, VOCABULARY, DRAFT, STEPS = 16, 40, 24, 4
LENGTHS = [9, 5, 12]


class _World(NamedTuple):
    checkpoint: Eagle3Checkpoint
    table: Tensor
    tokens: Tensor
    features: Tensor
    target: Tensor
    """The target's logits over its whole vocabulary."""
    mask: Tensor

    @property
    def teacher(self) -> Teacher:
        ids = self.checkpoint.target_ids
        sequences, places = self.mask[:, 1:].nonzero(as_tuple=True)
        logits = self.target[sequences, places]
        known = torch.full((VOCABULARY,), -1)
        known[ids] = torch.arange(len(ids))
        choice = known[logits.argmax(-1)]
        earliest = int(places.min())
        return Teacher(sequences, places, logits[:, ids].softmax(-1), choice, earliest)

    def sequence(self, line: int):
        n = LENGTHS[line]
        tokens = self.tokens[line, :n].tolist()
        return tokens, self.features[line, :n], self.target[line, :n], self.mask[line, :n].tolist()


def _world(dtype: torch.dtype = torch.float32, **settings) -> _World:
    generator = torch.Generator().manual_seed(3)
    checkpoint = random_checkpoint(
        hidden_size=HIDDEN,
        vocab_size=VOCABULARY,
        layers=10,
        heads=4,
        kv_heads=2,
        draft_vocab_size=DRAFT,
        dtype=dtype,
        **settings,
    )
    longest, batch = max(LENGTHS), len(LENGTHS)
    tokens = torch.randint(VOCABULARY, (batch, longest), generator=generator)
    mask = torch.rand(batch, longest, generator=generator) < 0.7
    for line, length in enumerate(LENGTHS):
        mask[line, length:] = False
    return _World(
        checkpoint,
        torch.randn(VOCABULARY, HIDDEN, generator=generator).to(dtype),
        tokens,
        torch.randn(batch, longest, 3 * HIDDEN, generator=generator).to(dtype),
        3 * torch.randn(batch, longest, VOCABULARY, generator=generator).to(dtype),
        mask,
    )


def _network(world: _World) -> DraftNetwork:
    network = DraftNetwork(world.checkpoint.config).to(world.table.dtype)
    state = {n: t for n, t in world.checkpoint.tensors.items() if n not in ("d2t", "t2d")}
    network.load_state_dict(state)
    return network


def _losses(network: DraftNetwork, world: _World, steps: int = STEPS):
    embed = world.table.__getitem__
    return network.losses(world.features[:, :-1], world.tokens, embed, world.teacher, steps)


def test_gradients_equal_those_of_a_slow_implementation():
    world = _world(torch.float64)
    network = _network(world)
    loss = weighted(_losses(network, world))
    loss.backward()
    leaves = {n: p.detach().clone().requires_grad_() for n, p in network.named_parameters()}
    slow = SlowTraining(world.checkpoint.config, leaves, world.table)
    known = world.checkpoint.target_ids.tolist()
    expected = slow.loss([world.sequence(line) for line in range(len(LENGTHS))], known, STEPS)
    expected.backward()
    torch.testing.assert_close(loss, expected, atol=1e-7, rtol=1e-7)
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, name
        # The rotary tables are fp32.
        torch.testing.assert_close(
            parameter.grad, leaves[name].grad, atol=1e-6, rtol=1e-6, msg=lambda m, n=name: n + m
        )


def test_every_step_counts_the_places_it_can_predict():
    world = _world()
    for step, part in enumerate(_losses(_network(world), world)):
        wanted = sum(
            world.mask[line, 2 + step : length].sum() for line, length in enumerate(LENGTHS)
        )
        assert len(part.places) == len(part.hits) == wanted


VARIANTS = [
    {},
    {"norm_before_residual": True},
    {"norm_before_fc": True},
    {"fc_norm": True, "norm_output": True},
    {"aux_layers": (1, 8), "rope_theta": 50.0},
]


@pytest.mark.parametrize("settings", VARIANTS)
def test_logits_of_every_step_equal_those_of_cached_inference(settings):
    """The tokens are those of the text: inference is handed them instead of its own drafts."""
    world = _world(**settings)
    if settings.get("aux_layers"):
        world = world._replace(features=world.features[..., : 2 * HIDDEN].contiguous())
    network = _network(world)
    with torch.no_grad():
        hidden = list(
            network.unroll(world.features[:, :-1], world.tokens, world.table.__getitem__, STEPS)
        )
    for line, length in enumerate(LENGTHS):
        for t in range(length - 1):
            for step, expected in enumerate(_cached(world, line, t)):
                found = network.logits(hidden[step][line, t])
                torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def _cached(world: _World, line: int, t: int) -> list[Tensor]:
    """Logits of drafting from pair t along the text, over a key-value pool."""
    network = Eagle3(world.checkpoint, embedding=world.table, device=torch.device("cpu"))
    config, page = world.checkpoint.config, 32
    pool = KVPool(
        layers=1,
        pages=1,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        page_size=page,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    tokens, positions = world.tokens[line], torch.arange(t + 1)
    pairs = network.pair(network.fuse(world.features[line, : t + 1]), tokens[1 : t + 2], positions)
    slots = positions + 1
    found = []
    for step in range(min(STEPS, LENGTHS[line] - 1 - t)):
        rows = Rows(
            positions=slots - 1,
            slots=slots,
            sequences=torch.zeros_like(slots),
            last=slots,
            page_table=torch.zeros(1, 1, dtype=torch.int64),
            base=slots[:1],
            first=1,
        )
        plan = network.plan(rows, pool)
        output = network.forward(pairs, places(slots, page), plan, pool)
        found.append(output.logits[-1])
        slots = slots[-1:] + 1
        if t + 2 + step < LENGTHS[line]:
            pairs = network.pair(output.hidden[-1:], tokens[t + 2 + step][None], slots - 1)
    return found
