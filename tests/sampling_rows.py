"""Rows of logits and lines of settings, for tests of sampling."""

from __future__ import annotations

import math

import torch

from alula.sampling import noise
from alula.sampling.params import SamplingParams
from alula.sampling.state import SamplingState

MIXED = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.8),
    SamplingParams(temperature=0.8, top_p=0.95),
    SamplingParams(temperature=1.3, top_p=0.3),
    SamplingParams(temperature=1.0, top_k=5),
    SamplingParams(temperature=1.0, top_k=50, top_p=0.8, min_p=0.01),
    SamplingParams(temperature=2.0, min_p=0.2),
    SamplingParams(temperature=0.7, top_p=0.9, min_p=0.05, logit_bias={3: 4.0, 5: -100.0}),
    SamplingParams(temperature=0.0, repetition_penalty=1.3, frequency_penalty=0.5),
    SamplingParams(temperature=0.9, repetition_penalty=1.2, presence_penalty=0.5),
    SamplingParams(temperature=0.9, top_p=0.9, frequency_penalty=-1.0, logit_bias={0: 2.0}),
    SamplingParams(temperature=1e-30),
    SamplingParams(temperature=1e30, top_p=0.999999),
    SamplingParams(temperature=1.0, top_p=1 - 1e-9),
]


def mixed_state(vocabulary, device="cpu"):
    """A line for each of MIXED."""
    state = SamplingState(len(MIXED), vocabulary, device)
    for line, params in enumerate(MIXED):
        prompt = [(line * 31 + i * 7) % vocabulary for i in range(20)]
        state.admit(line, params, noise.request_key(5, line), prompt, prompt[3:9])
    return state


def case(rows, vocabulary, seed=0, step=None):
    """Logits, lines, positions and paths of `rows` rows; `step` rounds logits to make ties."""
    make = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, vocabulary, generator=make) * 3
    if step is not None:
        logits = (logits / step).round() * step
    lines = torch.randint(0, len(MIXED), (rows,), generator=make)
    lines[: len(MIXED)] = torch.arange(len(MIXED))[:rows]
    positions = torch.randint(0, 4096, (rows,), generator=make)
    path = torch.randint(-1, vocabulary, (rows, 3), generator=make)
    return logits, lines, positions, path


HARD = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=1.0, top_k=3),
    SamplingParams(temperature=1.0, top_p=0.5),
    SamplingParams(temperature=1.0, top_k=4, top_p=0.75),
    SamplingParams(temperature=1.0, top_k=200, top_p=1 - 2**-24, min_p=1e-7),
    SamplingParams(temperature=3e38, top_p=0.3),
    SamplingParams(temperature=1.0, top_p=1e-30),
]


def hard_rows(vocabulary):
    """Ties, exact borders and rows without a largest logit, one line of logits each."""
    every = torch.arange(vocabulary)
    equal = torch.zeros(vocabulary)
    halves = -math.log(2.0) * every.float()  # masses 1, 1/2, 1/4, …
    low = torch.full((vocabulary,), -math.inf)
    lone, pair = low.clone(), low.clone()
    lone[vocabulary - 1] = -5.0
    pair[[1, vocabulary // 2]] = 2.0
    steps = (every % 3).float()
    close = 1.0 + every.float() * 2**-23
    tiny = torch.where(every % 2 == 0, 0.0, 1e-38)
    far = 1e30 * (every % 5 - 2).float()
    rows = [equal, halves.flip(0), lone, pair, steps, close, tiny, far, low]
    middle = every[vocabulary // 2 :][:1]
    spoilt = [equal.index_fill(0, middle, value) for value in (math.nan, math.inf)]
    return torch.stack(rows + spoilt)


def hard_case(vocabulary, device="cpu"):
    """Every hard row under every hard setting: a state, and logits, lines, positions, paths."""
    state = SamplingState(len(HARD), vocabulary, device)
    for line, params in enumerate(HARD):
        state.admit(line, params, noise.request_key(9, line), [])
    rows = hard_rows(vocabulary)
    logits = rows.repeat(len(HARD), 1)
    lines = torch.arange(len(HARD)).repeat_interleave(len(rows))
    path = torch.full((len(lines), 1), -1)
    return state, (logits, lines, torch.arange(len(lines)) * 7, path)
