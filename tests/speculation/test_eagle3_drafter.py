import pytest
import torch

from alula.errors import ModelError
from alula.ops.catch_up import Committed
from alula.ops.expand import Drafts, Roots
from alula.speculation import eagle3
from alula.speculation.drafter import DraftContext, Round
from alula.speculation.eagle3 import Eagle3, Output
from alula.speculation.eagle3_checkpoint import Eagle3Checkpoint, random_checkpoint
from alula.speculation.eagle3_drafter import Eagle3Drafter
from alula.speculation.tree import DraftTree, TreeShape, nodes_to, path_tokens, paths
from eagle3_reference import SlowEagle3, slow_tree
from launches import launches

CPU = torch.device("cpu")
HIDDEN, VOCABULARY, LAYERS, PAGE = 32, 60, 10, 4


class _Recorder(Eagle3):
    """Keeps what each forward returned."""

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        self.outputs: list[Output] = []

    def forward(self, *args):
        self.outputs.append(super().forward(*args))
        return self.outputs[-1]


class _World:
    """Sequences, their target features, and a drafter that follows them."""

    def __init__(
        self, lengths: list[int], shape: TreeShape, window=None, temperatures=None, **settings
    ):
        generator = torch.Generator().manual_seed(1)
        self.lengths = lengths
        self.temperatures = temperatures or [0.0] * len(lengths)
        self.shape = shape
        self.checkpoint = _checkpoint(**settings)
        self.table = torch.randn(VOCABULARY, HIDDEN, generator=generator)
        width = max(lengths) + 8
        self.history = torch.randint(VOCABULARY, (len(lengths), width), generator=generator)
        config = self.checkpoint.config
        self.features = torch.randn(
            len(lengths), width, config.features * HIDDEN, generator=generator
        )
        per_line = -(-width // PAGE)
        pages = torch.randperm(len(lengths) * per_line, generator=generator)
        self.page_table = pages.view(len(lengths), per_line)
        self.keys = torch.randint(2**62, (len(lengths),), generator=generator)
        self.network = _Recorder(self.checkpoint, embedding=self.table, device=CPU, window=window)
        self.drafter = Eagle3Drafter(self.network, shape, taps=config.taps(LAYERS))
        self.drafter.allocate(len(pages), PAGE, len(lengths), CPU)

    def context(self, spans: dict[int, range], drafting: list[int]) -> DraftContext:
        """Features of the given positions by sequence."""
        pairs = [(line, position) for line, span in sorted(spans.items()) for position in span]
        sequences, positions = torch.tensor(pairs).T.contiguous()
        drafts = torch.tensor(drafting, dtype=torch.int64)
        return DraftContext(
            history=self.history,
            lengths=torch.tensor(self.lengths),
            page_table=self.page_table,
            keys=self.keys,
            temperatures=torch.tensor(self.temperatures),
            features=self.features[sequences, positions],
            feature_sequences=sequences,
            feature_positions=positions,
            drafting=drafts,
            latest=torch.searchsorted(sequences, drafts, right=True) - 1,
            greedy=not any(self.temperatures[line] for line in drafting),
        )

    def propose(self, depth: int | None = None, drafting: list[int] | None = None) -> DraftTree:
        """One launch with the features of all known positions."""
        spans = {line: range(length - 1) for line, length in enumerate(self.lengths)}
        lines = list(range(len(self.lengths))) if drafting is None else drafting
        return self.drafter.propose(self.context(spans, lines), depth or self.shape.depth)

    def dense(self, counts: list[int], nodes: int) -> Round:
        """What a launch leaves that committed as many positions of each sequence, in trees."""
        lengths, tokens = torch.tensor(self.lengths), torch.tensor(counts)
        generator = torch.Generator().manual_seed(3)
        path = torch.stack([torch.randperm(nodes, generator=generator) for _ in counts]) + 1
        path = torch.nn.functional.pad(path, (1, 0)).where(
            torch.arange(nodes + 1) < tokens[:, None], -1
        )
        aux = torch.full((len(counts), nodes + 1, self.features.shape[2]), 9.0)
        last = lengths - tokens - 1
        for line, count in enumerate(counts):
            committed = last[line] + torch.arange(count)
            aux[line, path[line, :count]] = self.features[line, committed]
        lines = torch.arange(len(counts))
        page_features = torch.zeros(1 + self.page_table.numel(), aux.shape[2])
        return Round(
            Committed(lines, self.history, self.page_table, last, path, tokens),
            Roots(
                lines=lines,
                lengths=lengths,
                limits=torch.full_like(lengths, 999),
                keys=self.keys,
                temperatures=torch.tensor(self.temperatures),
                page_table=self.page_table,
            ),
            aux=tuple(part.contiguous() for part in aux.flatten(0, 1).split(HIDDEN, dim=1)),
            page_features=page_features,
            drafts=Drafts(*(torch.full((len(counts), self.shape.nodes), 7) for _ in range(2))),
            greedy=not any(self.temperatures),
        )

    def slow(self, line: int) -> SlowEagle3:
        length = self.lengths[line]
        tokens = self.history[line, :length].tolist()
        features = self.features[line, : length - 1]
        return SlowEagle3(self.checkpoint, self.table, tokens, features, self.network.window)

    def expected(self, line: int, shape: TreeShape | None = None) -> list[tuple[int, ...]]:
        return slow_tree(
            self.slow(line),
            shape or self.shape,
            int(self.keys[line]),
            self.temperatures[line],
            self.lengths[line],
        )


def _checkpoint(**settings) -> Eagle3Checkpoint:
    numbers = {"heads": 4, "kv_heads": 2, "draft_vocab_size": 24, **settings}
    return random_checkpoint(hidden_size=HIDDEN, vocab_size=VOCABULARY, layers=LAYERS, **numbers)


def _paths(tree: DraftTree, line: int) -> list[tuple[int, ...]]:
    _, way = paths(tree, tree.nodes)
    tokens = path_tokens(tree, way)[line, 1:].tolist()
    return [tuple(token for token in path if token >= 0) for path in tokens]


CHAIN, TREE = TreeShape(4, 1, 4), TreeShape(3, 3, 8)
VARIANTS = [
    {},
    {"kv_heads": 4},
    {"kv_heads": 1},
    {"draft_vocab_size": None},
    {"norm_before_residual": True},
    {"norm_before_fc": True},
    {"fc_norm": True},
    {"norm_output": True},
    {"fc_norm": True, "norm_output": True, "norm_before_residual": True},
    {"aux_layers": (1, 8)},
    {"rope_theta": 50.0},
]


@pytest.mark.parametrize("settings", VARIANTS)
def test_logits_of_every_step_equal_an_uncached_network(settings):
    world = _World([9, 2, 5], CHAIN, **settings)
    tree = world.propose()
    assert len(world.network.outputs) == 4
    for line in range(3):
        slow, drafted = world.slow(line), tree.tokens[line].tolist()
        for step, output in enumerate(world.network.outputs):
            logits, hidden = slow.draft(drafted[:step])
            torch.testing.assert_close(output.logits[line].double(), logits, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(output.hidden[line].double(), hidden, atol=1e-5, rtol=1e-5)


def test_an_embedding_of_its_own_is_used():
    world = _World([6], CHAIN)
    own = torch.randn(VOCABULARY, HIDDEN, generator=torch.Generator().manual_seed(5))
    tensors = {**world.checkpoint.tensors, "embed_tokens.weight": own}
    checkpoint = Eagle3Checkpoint(world.checkpoint.config, tensors)
    network = Eagle3(checkpoint, embedding=world.table, device=CPU)
    drafter = Eagle3Drafter(network, CHAIN, taps=(2, 5, 7))
    drafter.allocate(8, PAGE, 1, CPU)
    found = drafter.propose(world.context({0: range(5)}, [0]), 4)
    world.checkpoint = checkpoint
    assert _paths(found, 0) == world.expected(0)
    assert _paths(found, 0) != _paths(world.propose(), 0)


@pytest.mark.parametrize("shape", [CHAIN, TREE, TreeShape(1, 4, 4), TreeShape(2, 5, 30)])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.5])
def test_the_draft_equals_a_slow_expansion(shape, temperature):
    world = _World([7, 12, 2], shape, temperatures=[temperature] * 3)
    tree = world.propose()
    assert tree.nodes == nodes_to(shape, shape.depth)
    for line in range(3):
        assert _paths(tree, line) == world.expected(line)


def follow_and_draft_on(world: _World) -> None:
    """A tight launch, then a dense one; the drafts are those of a slow expansion."""
    counts = [1, 4, 2]
    before = {
        line: range(length - 1 - count)
        for line, (length, count) in enumerate(zip(world.lengths, counts, strict=True))
    }
    world.drafter.propose(world.context(before, []), 0)
    dense = world.dense(counts, nodes=5)
    world.drafter.draft_on(dense, world.shape.depth)
    for line in range(3):
        assert _paths(DraftTree(*dense.drafts), line) == world.expected(line)
    # Position 7 ends a page, and is committed in the second sequence alone.
    kept = dense.page_features.any(dim=1).nonzero()[:, 0].tolist()
    assert [page for page in kept if page < len(dense.page_features) - 1] == [
        int(world.page_table[1, 1])
    ]
    assert torch.equal(dense.page_features[world.page_table[1, 1]], world.features[1, 7])


@pytest.mark.parametrize("shape", [CHAIN, TREE])
@pytest.mark.parametrize("temperatures", [[0.0] * 3, [0.0, 0.7, 1.5]])
def test_a_dense_round_is_drafted_on_as_any_other(shape, temperatures):
    follow_and_draft_on(_World([6, 11, 4], shape, temperatures=temperatures))


@pytest.mark.parametrize("shape", [CHAIN, TREE])
def test_keys_that_are_called_settled_were_written_before_the_pass(shape, monkeypatch):
    """Attention may read them while the first kernels of the pass still run."""
    world = _World([6, 11, 4], shape)
    network, store, began, planned = world.network, world.drafter._pool._store, [], []
    pair, plan, forward = network.pair, network.plan, network.forward

    def pair_and_remember(*args):
        began.append(store.clone())
        return pair(*args)

    def plan_and_remember(rows, pool):
        planned.append(rows)
        return plan(rows, pool)

    def forward_and_check(*args):
        found, rows = forward(*args), planned[-1]
        for sequence, base in enumerate(rows.base.tolist() if rows.settled else []):
            positions = torch.arange(rows.first, base)
            pages = rows.page_table[sequence, positions // PAGE]
            for now, then in zip(store.flatten(0, 1), began[-1].flatten(0, 1), strict=True):
                at = (pages, slice(None), positions % PAGE)
                assert torch.equal(now[at], then[at])
        return found

    monkeypatch.setattr(network, "pair", pair_and_remember)
    monkeypatch.setattr(network, "plan", plan_and_remember)
    monkeypatch.setattr(network, "forward", forward_and_check)
    follow_and_draft_on(world)
    assert {rows.settled for rows in planned} == {True, False}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy remarks on infinities
@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU has its own proof")
@pytest.mark.parametrize("settings", [{}, {"norm_before_residual": True}])
@pytest.mark.parametrize("shape", [CHAIN, TREE])
def test_the_kernels_draft_on_alike(shape, settings, monkeypatch):
    pytest.importorskip("triton")
    from alula.ops import triton as forms

    monkeypatch.setattr(eagle3, "kernels_for", lambda _: forms)
    follow_and_draft_on(_World([6, 11, 4], shape, temperatures=[0.0, 0.7, 1.5], **settings))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.skipif(torch.cuda.is_available(), reason="counts what the interpreter runs")
@pytest.mark.parametrize(("shape", "most"), [(TreeShape(3, 1, 3), 29), (TreeShape(4, 4, 32), 38)])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_dense_round_takes_few_launches(shape, most, temperature, monkeypatch):
    """9 a level (6 of them the network's), 2 more to catch up, and no operation of torch."""
    pytest.importorskip("triton")
    from alula.ops import triton as forms

    monkeypatch.setattr(eagle3, "kernels_for", lambda _: forms)
    world = _World([6, 11], shape, temperatures=[temperature] * 2)
    dense = world.dense([1, 3], nodes=4)
    with launches(monkeypatch) as counts:
        world.drafter.draft_on(dense, shape.depth)
    assert all(name.endswith("_kernel") for name in counts), counts
    assert counts.total() <= most


def test_a_dense_round_without_a_draft_is_followed():
    world = _World([6, 11, 4], TREE)
    counts = [1, 4, 2]
    world.lengths = [length - count for length, count in zip(world.lengths, counts, strict=True)]
    world.propose()
    world.lengths = [6, 11, 4]
    dense = world.dense(counts, nodes=5)
    world.drafter.draft_on(dense, 0)
    assert (dense.drafts.tokens == -1).all()
    world.lengths = [7, 12, 5]
    spans = {line: range(length - 2, length - 1) for line, length in enumerate(world.lengths)}
    found = world.drafter.propose(world.context(spans, [0, 1, 2]), 3)
    for line in range(3):
        assert _paths(found, line) == world.expected(line)


@pytest.mark.parametrize("shape", [CHAIN, TREE])
def test_temperatures_may_differ_within_a_batch(shape):
    temperatures = [0.0, 0.5, 1.0, 2.0]
    world = _World([5, 6, 7, 8], shape, temperatures=temperatures)
    tree = world.propose()
    for line in range(4):
        assert _paths(tree, line) == world.expected(line)


@pytest.mark.parametrize("shape", [CHAIN, TREE])
def test_the_way_the_features_arrive_does_not_matter(shape):
    world = _World([13, 9], shape)
    whole = world.propose()
    arrivals = [
        {0: range(0, 5)},
        {0: range(5, 6), 1: range(0, 8)},  # with the feature before a prefix hit in front
        {0: range(5, 11)},
    ]
    for spans in arrivals:
        world.drafter.propose(world.context(spans, []), 0)
    last = world.context({0: range(11, 12), 1: range(7, 8)}, [0, 1])
    again = world.drafter.propose(last, shape.depth)
    assert torch.equal(again.tokens, whole.tokens)
    assert torch.equal(again.parents, whole.parents)


@pytest.mark.parametrize("shape", [CHAIN, TREE])
def test_a_draft_leaves_no_trace(shape):
    """Keys of drafted nodes are the draft's own: the next draft sees those of true features."""
    world = _World([6, 5], shape)
    world.propose()
    world.lengths = [9, 6]
    found = world.drafter.propose(
        world.context({0: range(5, 8), 1: range(4, 5)}, [0, 1]), shape.depth
    )
    for line in range(2):
        assert _paths(found, line) == world.expected(line)


def test_sequences_that_do_not_draft_are_only_followed():
    world = _World([6, 7, 8], TREE)
    tree = world.propose(drafting=[0, 2])
    assert (tree.tokens[1] == -1).all()
    assert [_paths(tree, 0), _paths(tree, 2)] == [world.expected(0), world.expected(2)]
    world.lengths = [6, 8, 8]
    found = world.drafter.propose(world.context({1: range(6, 7)}, [1]), 3)
    assert _paths(found, 1) == world.expected(1)


def test_a_shallower_draft_is_the_shape_cut_off():
    world = _World([6], TreeShape(4, 2, 9))
    for depth, nodes in ((1, 2), (2, 6), (3, 9), (9, 9)):
        tree = world.propose(depth)
        assert tree.nodes == nodes
        assert _paths(tree, 0) == world.expected(0, TreeShape(min(depth, 4), 2, nodes))


def test_depth_zero_follows_and_runs_no_layer():
    world = _World([6, 9], TREE)
    spans = {0: range(5), 1: range(8)}
    assert world.drafter.propose(world.context(spans, [0, 1]), 0).tokens.shape == (2, 0)
    assert world.network.outputs == []


@pytest.mark.parametrize("shape", [CHAIN, TREE])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_prompts_behind_the_position_limit_are_drafted_from_a_window(shape, temperature):
    world = _World([50, 12], shape, max_positions=16, temperatures=[temperature] * 2)
    assert world.network.window == 16
    tree = world.propose()
    for line in range(2):
        assert _paths(tree, line) == world.expected(line)
    assert all(torch.isfinite(output.logits).all() for output in world.network.outputs)


def test_only_the_window_need_be_followed():
    """After a pause without drafts, catching up takes the last W features."""
    world = _World([40], CHAIN, window=10)
    late = world.drafter.propose(world.context({0: range(29, 39)}, [0]), 4)
    assert _paths(late, 0) == world.expected(0)


@pytest.mark.parametrize("window", [1, 3, 7])
def test_a_window_may_be_narrower_than_the_limit(window):
    world = _World([15], CHAIN, window=window)
    assert _paths(world.propose(), 0) == world.expected(0)


def test_what_other_sequences_left_behind_does_not_matter():
    world, clean = _World([6, 7], TREE), _World([6, 7], TREE)
    world.drafter._pool._store.fill_(7e5)
    assert torch.equal(world.propose().tokens, clean.propose().tokens)


def test_more_children_than_tokens_are_refused():
    with pytest.raises(ModelError, match="24 tokens"):
        _World([5], TreeShape(1, 25, 25))


def test_half_precision_drafts_finite_numbers():
    world = _World([9], TREE, dtype=torch.bfloat16)
    assert (world.propose().tokens >= 0).all()
    assert all(output.logits.dtype == torch.float32 for output in world.network.outputs)
