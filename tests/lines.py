"""Lines in the middle of things, for tests of what a round begins and ends with."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from alula.ops.lines import LineState
from alula.ops.rope import Rotation, rotary_table

HISTORY, PAGES = 40, 24


@dataclass
class Case:
    """Rounds of some of the lines; the last line is spare, and may occur more than once."""

    at: Tensor
    state: LineState
    nodes: int
    depth: int

    def copy(self, device: torch.device) -> LineState:
        """The state, to be changed."""
        return LineState(*(None if t is None else t.clone().to(device) for t in self.state))


def case(seed: int, vocabulary: int = 3) -> Case:
    """Drafts with unused nodes, siblings that agree, stops and limits within reach."""
    dice = random.Random(seed)
    lines, depth = dice.randint(2, 6), dice.randint(0, 4)
    room = 0 if depth == 0 else dice.choice([depth, depth + 1, 15, 16, 33])
    nodes = dice.randint(min(depth, room), room)
    lengths = [dice.randint(1, HISTORY - 10) for _ in range(lines)]
    limits = [length + dice.choice([0, 1, 2, 3, 40]) for length in lengths]
    at = dice.sample(range(lines - 1), dice.randint(1, lines - 1))
    at += [lines - 1] * dice.randint(0, 2)
    lengths[-1] = limits[-1] = 1
    stop_ids = [[dice.choice([-1, -1, -1, 0, 1, 7]) for _ in range(5)] for _ in lengths]
    trees = [_tree(dice, room, depth, vocabulary) for _ in lengths]
    counts = torch.randint(0, 5, (lines, vocabulary), dtype=torch.int32)
    state = LineState(
        history=_words(dice, lines, HISTORY, vocabulary),
        lengths=torch.tensor(lengths),
        limits=torch.tensor(limits).clamp(max=HISTORY - 1),
        stop_ids=torch.tensor(stop_ids),
        page_table=torch.tensor([dice.sample(range(90), PAGES) for _ in lengths]),
        draft_tokens=_integers([tokens for tokens, _ in trees]),
        draft_parents=_integers([parents for _, parents in trees]),
        output_counts=counts if dice.random() < 0.5 else None,
    )
    return Case(torch.tensor(at), state, nodes, depth)


def angles(head_dim: int) -> Rotation:
    """Of all positions."""
    frequencies = 100.0 ** -(torch.arange(head_dim // 2) / head_dim)
    return rotary_table(frequencies, torch.arange(HISTORY + 8))


def _tree(dice: random.Random, room: int, depth: int, words: int) -> tuple[list[int], list[int]]:
    used, depths = dice.randint(0, room), [0]
    parents = []
    for _ in range(room):
        above = [number for number, level in enumerate(depths) if level < depth]
        parents.append(dice.choice(above[-4:]))
        depths.append(depths[parents[-1]] + 1)
    return [dice.randrange(words) if i < used else -1 for i in range(room)], parents


def _integers(values: list[list[int]]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def _words(dice: random.Random, lines: int, length: int, vocabulary: int) -> Tensor:
    drawn = [dice.randrange(vocabulary) for _ in range(lines * length)]
    words = torch.tensor(drawn).view(lines, length)
    words[:, -1] = 0  # no token belongs there
    return words
