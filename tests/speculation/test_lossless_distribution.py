"""Speculation draws from the target's own law: a proof by counting, on a toy vocabulary.

A toy target (a table: logits by absolute position and last two tokens) and a toy drafter (the
same table, perturbed) are driven by a small speculative loop over thousands of requests at once,
each with a key of its own, around the real sampler, state, noise and walk. The joint law of the
emitted tokens is compared by chi-square with the target's exact one, which float64 arithmetic
written for this test alone enumerates. Four plausible rules that are wrong stay here to show
that the comparison would notice.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from alula.ops.counts import add_counts
from alula.sampling import noise, sampler
from alula.sampling.params import SamplingParams
from alula.sampling.state import SamplingState
from alula.speculation.tree import DraftTree
from alula.speculation.walk import Path, walk

V = 5
LENGTH = 16
PROMPT = (1, 3, 1)
BATCH = 4096

CHAIN_2 = (0, 1)
CHAIN_3 = (0, 1, 2)
TREE = (0, 0, 0, 1, 1, 4)
"""Parents of nodes 1, 2, …: three children of the root, two of its first, one of theirs."""

SETTINGS = {
    "temperature": SamplingParams(temperature=0.8),
    "top_p": SamplingParams(temperature=1.1, top_p=0.8),
    "min_p": SamplingParams(temperature=1.2, min_p=0.15),
    "penalties": SamplingParams(
        temperature=0.9, repetition_penalty=1.4, presence_penalty=0.6, frequency_penalty=0.5
    ),
    "all": SamplingParams(
        temperature=1.1,
        top_p=0.9,
        top_k=4,
        min_p=0.05,
        repetition_penalty=1.3,
        presence_penalty=0.4,
        frequency_penalty=0.3,
        logit_bias={2: 0.7},
    ),
}


@dataclass(frozen=True)
class Toy:
    """Target and drafter: logits [LENGTH, V, V, V] by position, token before last, last."""

    target: Tensor
    drafter: Tensor

    @staticmethod
    def make(seed: int) -> Toy:
        make = torch.Generator().manual_seed(seed)
        target = torch.randn(LENGTH, V, V, V, generator=make) * 1.5
        return Toy(target, target + torch.randn(target.shape, generator=make) * 0.8)


TOY = Toy.make(0)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The tensors here are small; a second thread would only be waited for."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# The speculative loop


@dataclass
class Round:
    """What the rows of one round see; row 0 is the root, row i node i of the tree."""

    toy: Toy
    state: SamplingState
    lines: Tensor
    """[S], the state's lines of the requests that still run."""
    tree: DraftTree
    position: Tensor
    """[S, 1 + N], absolute position of the token sampled after each row."""
    last_two: Tensor
    """[S, 1 + N, 2], the last tokens of each row's prefix."""
    path: Tensor
    """[S, 1 + N, A], each row's drafted ancestors and itself, -1 padded."""
    emitted: Tensor
    """[S], tokens this turn has emitted before the round."""

    def logits(self, table: Tensor) -> Tensor:
        """[S, 1 + N, V]."""
        return table[self.position, self.last_two[..., 0], self.last_two[..., 1]]

    def choose(self, *, position: Tensor | None = None, path: Tensor | None = None) -> Tensor:
        """The real sampler at every row, [S, 1 + N]; the wrong rules hand it something else."""
        position = self.position if position is None else position
        path = self.path if path is None else path
        sequences, rows = position.shape
        lines = self.lines.repeat_interleave(rows)
        flat = (self.logits(self.toy.target).reshape(-1, V), lines, position.flatten())
        found = sampler.sample(*flat, path.reshape(len(lines), -1), self.state)
        return found.view(sequences, rows)


Rule = Callable[[Round], Path]


def right(this: Round) -> Path:
    """The target's own choice at every row; a draft is accepted if it equals it."""
    return walk(this.tree, this.choose())


def draft(
    toy: Toy,
    state: SamplingState,
    lines: Tensor,
    parents: tuple[int, ...],
    position: Tensor,
    last_two: Tensor,
    emitted: Tensor,
) -> Round:
    """Draft a tree: children of a node are the top of log q / T + g, with the target's noise."""
    sequences = len(lines)
    prefixes, positions, paths = [last_two], [position], [torch.full((sequences, len(parents)), -1)]
    tokens: list[Tensor] = []
    rankings: dict[int, Tensor] = {}
    for node, parent in enumerate(parents, start=1):
        before, at = prefixes[parent], positions[parent]
        if parent not in rankings:
            q = toy.drafter[at, before[:, 0], before[:, 1]] / state.temperature[0].clamp(min=0.5)
            g = noise.gumbel(state.key[lines], at, torch.arange(V))
            rankings[parent] = (q + g).argsort(descending=True)
        token = rankings[parent][:, parents[: node - 1].count(parent)]
        path = paths[parent].clone()
        path[:, node - 1] = token
        prefixes.append(torch.stack([before[:, 1], token], dim=1))
        positions.append(at + 1)
        paths.append(path)
        tokens.append(token)
    drafted = torch.stack(tokens, dim=1) if tokens else torch.empty(sequences, 0).long()
    tree = DraftTree(drafted, torch.tensor(parents, dtype=torch.int64).expand(sequences, -1))
    stacked = (torch.stack(part, dim=1) for part in (positions, prefixes, paths))
    return Round(toy, state, lines, tree, *stacked, emitted)


def play(
    toy: Toy,
    params: SamplingParams,
    keys: list[int],
    parents: tuple[int, ...],
    *,
    tokens: int = 3,
    context: Tensor | None = None,
    rule: Rule = right,
) -> Tensor:
    """Emit `tokens` for each key after `context` [S, L]; returns context and output together."""
    sequences = len(keys)
    context = torch.tensor(PROMPT).repeat(sequences, 1) if context is None else context
    start = context.shape[1]
    state = SamplingState(sequences, V)
    for line, (key, prompt) in enumerate(zip(keys, context.tolist(), strict=True)):
        state.admit(line, params, key, prompt)
    text = torch.cat([context, torch.full((sequences, tokens), -1)], dim=1)
    length = torch.full((sequences,), start)
    while len(lines := (length < start + tokens).nonzero()[:, 0]):
        at = length[lines]
        last_two = torch.stack([text[lines, at - 2], text[lines, at - 1]], dim=1)
        path = rule(draft(toy, state, lines, parents, at, last_two, at - start))
        count = torch.minimum(path.length, start + tokens - at)
        if state.output_counts is not None:
            emitted = torch.arange(path.tokens.shape[1]) < count[:, None]
            add_counts(state.output_counts, lines, path.tokens.where(emitted, -1))
        for step in range(int(count.max())):
            live = step < count
            text[lines[live], at[live] + step] = path.tokens[live, step]
        length[lines] += count
    return text


# The exact law, enumerated in float64


def law_of_next(
    toy: Toy, params: SamplingParams, prompt: list[int], output: list[int]
) -> np.ndarray:
    """Probabilities [V] of the token after prompt and output."""
    text = prompt + output
    logits = toy.target[len(text), text[-2], text[-1]].double().numpy().copy()
    counts = np.array([output.count(token) for token in range(V)], dtype=float)
    for token in set(text):
        r = params.repetition_penalty
        logits[token] = logits[token] / r if logits[token] > 0 else logits[token] * r
    logits -= params.frequency_penalty * counts + params.presence_penalty * (counts > 0)
    for token, bias in (params.logit_bias or {}).items():
        logits[token] += bias
    p = np.exp((logits - logits.max()) / params.temperature)
    ranking = sorted(range(V), key=lambda token: (-p[token], token))
    if params.top_k > 0:
        p[ranking[params.top_k :]] = 0.0
    p /= p.sum()
    before = np.concatenate([[0.0], np.cumsum(p[ranking])[:-1]])
    if params.top_p < 1:
        p[np.array(ranking)[before >= params.top_p]] = 0.0
    p[p < params.min_p * p.max()] = 0.0
    return p / p.sum()


def law(
    toy: Toy, params: SamplingParams, prompt: list[int], tokens: int
) -> Iterator[tuple[tuple[int, ...], float]]:
    """Every continuation of `tokens` tokens and its probability."""
    for output in itertools.product(range(V), repeat=tokens):
        mass = 1.0
        for i, token in enumerate(output):
            mass *= law_of_next(toy, params, prompt, list(output[:i]))[token] if mass else 0.0
        yield output, mass


def law_of_two_turns(
    toy: Toy, params: SamplingParams, each: int, between: tuple[int, ...]
) -> dict[tuple[int, ...], float]:
    """The joint law of two turns; the second one's prompt is all that came before."""
    joint = {}
    for first, mass in law(toy, params, list(PROMPT), each):
        if mass:
            prompt = [*PROMPT, *first, *between]
            for second, other in law(toy, params, prompt, each):
                joint[first + second] = mass * other
    return joint


def p_value(found: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float]) -> float:
    """Chi-square of counts against a law; cells expected less than five times are pooled.

    A count where the law has no mass is proof enough, and gives 0.
    """
    draws = sum(found.values())
    if any(expected.get(cell, 0.0) == 0.0 for cell in found):
        return 0.0
    pairs = sorted((mass * draws, found[cell]) for cell, mass in expected.items() if mass)
    pooled: list[list[float]] = [[0.0, 0.0]]
    for want, have in pairs:
        if pooled[-1][0] >= 5:
            pooled.append([0.0, 0.0])
        pooled[-1][0] += want
        pooled[-1][1] += have
    want, have = np.array(pooled).T
    return float(stats.chisquare(have, want * have.sum() / want.sum()).pvalue)


# Running the comparison


@dataclass
class Case:
    """One comparison: parameters, topology, rule and number of draws."""

    params: SamplingParams
    parents: tuple[int, ...]
    rule: Rule = right
    draws: int = 20_000
    seed: int = 0
    found: Counter[tuple[int, ...]] = field(default_factory=Counter)

    def batches(self) -> Iterator[list[int]]:
        """Keys, a fresh one for each draw."""
        for first in range(0, self.draws, BATCH):
            upto = min(first + BATCH, self.draws)
            yield [noise.request_key(self.seed, sample) for sample in range(first, upto)]

    def count(self, text: Tensor) -> None:
        self.found.update(map(tuple, text.tolist()))

    def three_tokens(self) -> float:
        """p-value of the joint law of three consecutive tokens."""
        for keys in self.batches():
            self.count(play(TOY, self.params, keys, self.parents, rule=self.rule)[:, -3:])
        return p_value(self.found, dict(law(TOY, self.params, list(PROMPT), 3)))

    def two_turns(self) -> float:
        """p-value of the joint law of two tokens, a word by the user, and two tokens more."""
        between = (0, 2)
        for keys in self.batches():
            shared = {"tokens": 2, "rule": self.rule}
            first = play(TOY, self.params, keys, self.parents, **shared)
            user = torch.tensor(between).repeat(len(keys), 1)
            context = torch.cat([first, user], dim=1)
            second = play(TOY, self.params, keys, self.parents, context=context, **shared)
            self.count(torch.cat([first[:, -2:], second[:, -2:]], dim=1))
        return p_value(self.found, law_of_two_turns(TOY, self.params, 2, between))


TOPOLOGIES = pytest.mark.parametrize(
    "parents", [CHAIN_2, CHAIN_3, TREE], ids=["K=2", "K=3", "tree"]
)
CHAIN_AND_TREE = pytest.mark.parametrize("parents", [CHAIN_3, TREE], ids=["chain", "tree"])
PARAMETERS = pytest.mark.parametrize("params", SETTINGS.values(), ids=SETTINGS.keys())


@CHAIN_AND_TREE
@PARAMETERS
def test_three_consecutive_tokens_have_the_targets_joint_law(params, parents):
    assert Case(params, parents, seed=len(parents)).three_tokens() > 1e-4


@CHAIN_AND_TREE
@pytest.mark.parametrize("params", [SETTINGS["temperature"], SETTINGS["all"]])
def test_two_turns_have_the_targets_joint_law(params, parents):
    assert Case(params, parents, seed=len(parents)).two_turns() > 1e-4


@pytest.mark.slow
@TOPOLOGIES
@PARAMETERS
def test_the_joint_laws_hold_over_a_hundred_thousand_draws(params, parents):
    assert Case(params, parents, draws=100_000, seed=10 + len(parents)).three_tokens() > 1e-4
    assert Case(params, parents, draws=100_000, seed=20 + len(parents)).two_turns() > 1e-4


@CHAIN_AND_TREE
@pytest.mark.parametrize("params", [*SETTINGS.values(), SamplingParams(temperature=0.0)])
def test_a_request_gets_the_same_tokens_with_and_without_speculation(params, parents):
    keys = [noise.request_key(8, sample) for sample in range(256)]
    assert torch.equal(
        play(TOY, params, keys, parents, tokens=8), play(TOY, params, keys, (), tokens=8)
    )


def test_speculation_is_at_work_in_these_proofs():
    """Shared noise makes target and drafter agree often; without it nothing here means much."""
    lengths = []

    def watched(this: Round) -> Path:
        path = right(this)
        lengths.append(path.length.double().mean())
        return path

    Case(SETTINGS["temperature"], CHAIN_3, watched, draws=2000).three_tokens()
    assert lengths[0] > 1.8


# Rules that are wrong


def accept_by_ratio(this: Round, *, shared: bool = True) -> Path:
    """Accept a draft with probability p / q, else draw from (p - q)+.

    That is right with noise of its own for the second draw, and wrong with the draft's.
    """
    temperature = this.state.temperature[0]
    p = (this.logits(this.toy.target) / temperature).softmax(-1)
    q = (this.logits(this.toy.drafter) / temperature).softmax(-1)
    rows, position = p.shape[1], this.position.flatten()
    keys = this.state.key[this.lines].repeat_interleave(rows)
    other = salted(keys, 1)
    g = noise.gumbel(keys if shared else other, position, torch.arange(V)).view_as(p)
    u = noise.hash_bits(other, position, torch.tensor([V])).view(-1, rows)[:, :-1] * 2.0**-32
    drafted = this.tree.tokens[..., None]
    accept = u < (p[:, :-1].gather(2, drafted) / q[:, :-1].gather(2, drafted))[..., 0]
    residual = (p - q).clamp(min=0)
    residual[:, -1] = p[:, -1]
    recovered = (residual.log() + g).argmax(-1)
    steps = torch.arange(rows)
    good = accept.long().cumprod(dim=1).sum(dim=1, keepdim=True)
    padded = torch.nn.functional.pad(this.tree.tokens, (0, 1))
    tokens = torch.where(steps < good, padded, torch.where(steps == good, recovered, -1))
    return Path(torch.where(steps <= good, steps, -1), tokens, good[:, 0] + 1)


def salted(keys: Tensor, salt: int) -> Tensor:
    """Keys whose noise has nothing to do with that of `keys`."""
    return noise.hash_bits(keys, torch.full_like(keys, salt), torch.tensor([2**20]))[:, 0]


def one_draw_per_branch(this: Round) -> Path:
    """Every child is tested against a draw of its own instead of its parent's."""
    keys = this.state.key.clone()
    own = this.choose()
    branches = []
    for node in range(1, this.tree.nodes + 1):
        this.state.key = salted(keys, node)
        branches.append(this.choose().gather(1, this.tree.parents[:, node - 1 : node])[:, 0])
    this.state.key = keys
    agrees = torch.stack(branches, dim=1) == this.tree.tokens
    # The walk descends where a parent's choice equals a child's token: show it the first child
    # that agrees with its own draw.
    for node in range(this.tree.nodes, 0, -1):
        parent = this.tree.parents[:, node - 1 : node]
        token = this.tree.tokens[:, node - 1 : node]
        chosen = torch.where(agrees[:, node - 1 : node], token, own.gather(1, parent))
        own.scatter_(1, parent, chosen)
    return walk(this.tree, own)


def noise_by_output_index(this: Round) -> Path:
    """Noise is counted from the start of each turn, so that both turns draw the same."""
    depth = this.position - this.position[:, :1]
    return walk(this.tree, this.choose(position=this.emitted[:, None] + depth))


def one_penalty_state(this: Round) -> Path:
    """All nodes are penalised for what came before the round, not for their own path."""
    return walk(this.tree, this.choose(path=torch.full_like(this.path, -1)))


def test_accepting_by_ratio_with_shared_noise_is_noticed():
    case = Case(SETTINGS["temperature"], CHAIN_2, accept_by_ratio, draws=60_000)
    assert case.three_tokens() < 1e-9
    alone = partial(accept_by_ratio, shared=False)
    assert Case(SETTINGS["temperature"], CHAIN_2, alone, draws=60_000).three_tokens() > 1e-4


def test_one_draw_per_branch_is_noticed():
    assert Case(SETTINGS["temperature"], TREE, one_draw_per_branch).three_tokens() < 1e-9


def test_noise_by_output_index_is_noticed_by_two_turns():
    case = Case(SETTINGS["temperature"], CHAIN_2, noise_by_output_index)
    assert case.two_turns() < 1e-9
    alone = Case(SETTINGS["temperature"], CHAIN_2, noise_by_output_index)
    assert alone.three_tokens() > 1e-4, "one turn alone cannot show it"


@CHAIN_AND_TREE
def test_one_penalty_state_for_all_nodes_is_noticed(parents):
    assert Case(SETTINGS["penalties"], parents, one_penalty_state).three_tokens() < 1e-9
