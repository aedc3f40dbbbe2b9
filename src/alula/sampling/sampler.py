"""The target's own choice at every row: argmax(log p' + g), or plain argmax at temperature 0."""

from __future__ import annotations

import math
from collections.abc import Collection

import torch
from torch import Tensor

from alula.errors import ModelError
from alula.ops.counts import add_counts
from alula.ops.exact import MASS_BITS
from alula.ops.kernels import kernels_for
from alula.ops.sample import EVERYTHING, Found, Wants
from alula.sampling import noise
from alula.sampling.state import SamplingState
from alula.sampling.transforms import (
    Candidates,
    Filters,
    kept,
    needed_mass,
    penalise,
    ranked,
    ranked_above,
    scale,
    total_mass,
)

NO_CHOICE = -1
"""What `sample` gives where a row's logits allow no choice."""

_SMALL_VOCABULARY = 4096
"""Up to here the CPU sorts all rows at once; above, a row's few candidates are cheaper."""


def sample(
    logits: Tensor,
    lines: Tensor,
    positions: Tensor,
    path: Tensor,
    state: SamplingState,
    wants: Wants = EVERYTHING,
) -> Tensor:
    """The target's own token after each row, [R] int64.

    `logits` [R, V] fp32, left as they are; `lines` [R] of `state`; `positions` [R], the absolute
    position of the token being sampled; `path` [R, A], the ids of the row's drafted ancestors and
    its own, -1 padded, without what `state` has counted already. `wants` bounds what the lines ask
    for, so that a device, which the host cannot ask, does no more.

    A row's token depends on its own logits, settings, key, path and position alone, to the bit.
    Ties go to the lowest id. Where no largest logit exists (NaN, +inf, or nothing but -inf) the
    token is NO_CHOICE; that needs no synchronisation, and `check` turns it into an error.
    """
    kernel = kernels_for(logits.device).sample
    if kernel is not None:
        return kernel(logits, lines, positions, path, state.settings(), wants)
    if logits.device.type != "cpu":
        return choose_at_once(_adjusted(logits, lines, path, state), lines, positions, state)
    logits = _adjusted_where_asked(logits, lines, path, state)
    if state.all_greedy(lines.tolist()):
        return _finite_argmax(logits)
    if state.vocabulary <= _SMALL_VOCABULARY:
        return choose_at_once(logits, lines, positions, state)
    return choose_row_by_row(logits, lines, positions, state)


def find(
    logits: Tensor,
    lines: Tensor,
    positions: Tensor,
    path: Tensor,
    state: SamplingState,
    wants: Wants = EVERYTHING,
) -> Tensor | Found:
    """As `sample`, or what the device's form of `advance` makes the choice of."""
    kernel = kernels_for(logits.device).find
    if kernel is not None:
        return kernel(logits, lines, positions, path, state.settings(), wants)
    return sample(logits, lines, positions, path, state, wants)


def check(tokens: Collection[int]) -> None:
    """Raise ModelError if one of these sampled tokens is NO_CHOICE."""
    if NO_CHOICE in tokens:
        raise ModelError(
            "the model gave logits that no token can be chosen from",
            "a row holds NaN or +inf, or nothing but -inf",
            "check the weights and the dtype (float16 overflows where float32 does not)",
        )


def choose_at_once(
    logits: Tensor, lines: Tensor, positions: Tensor, state: SamplingState
) -> Tensor:
    """All rows in one sequence of operations whose shapes no value decides.

    Takes what `sample` does after penalties and bias. It sorts the whole vocabulary.
    """
    temperature = state.temperature[lines, None]
    scaled = scale(logits, torch.where(temperature > 0, temperature, 1.0))
    candidates = ranked(scaled)
    keep = kept(candidates, total_mass(scaled), state.filters(lines), state.vocabulary)
    drawn = _draw(candidates, keep, noise.row_words(state.key[lines], positions))
    return torch.where(temperature[:, 0] > 0, drawn, _finite_argmax(logits))


def choose_row_by_row(
    logits: Tensor, lines: Tensor, positions: Tensor, state: SamplingState
) -> Tensor:
    """The same choice, each row at the cost of its own settings.

    It decides on values, so it suits the CPU and no captured graph.
    """
    words = noise.row_words(state.key[lines], positions)
    rows = [slice(row, row + 1) for row in range(len(lines))]
    return torch.cat([_choose_row(logits[r], lines[r], words[r], state) for r in rows])


def _choose_row(logits: Tensor, line: Tensor, words: Tensor, state: SamplingState) -> Tensor:
    params = state.params[int(line)]
    if params is None or params.greedy:
        return _finite_argmax(logits)
    scaled = scale(logits, state.temperature[line, None])
    if not math.isfinite(float(scaled.amax())):
        return torch.full_like(line, NO_CHOICE)
    if not params.has_filters:
        every = torch.arange(state.vocabulary, device=logits.device)
        return _draw_of_row(Candidates(every[None], scaled), words)
    filters = state.filters(line)
    measures_all = params.top_p < 1.0 and int(filters.top_k) == state.vocabulary
    total = total_mass(scaled) if measures_all else torch.zeros_like(filters.top_k)
    candidates = _candidates(scaled, total, filters)
    count = int(kept(candidates, total, filters, state.vocabulary).sum())
    return _draw_of_row(Candidates(candidates.ids[:, :count], candidates.scaled[:, :count]), words)


def _draw_of_row(candidates: Candidates, words: Tensor) -> Tensor:
    """The candidate of one row whose noisy score is largest, the lowest id of equal ones.

    Noise that is made in less time leaves few that the exact noise has to decide between.
    """
    noisy = candidates.scaled[0] + noise.near_gumbel(words, candidates.ids)[0]
    near = (noisy >= noisy.amax() - 4 * noise.NEAR).nonzero()[:, 0]
    best = Candidates(candidates.ids[:, near], candidates.scaled[:, near])
    if len(near) == 1:
        return best.ids[0]
    return _draw(best, torch.ones_like(best.ids, dtype=torch.bool), words)


def _candidates(scaled: Tensor, total: Tensor, filters: Filters) -> Candidates:
    """The head of one row's ranking, long enough for its filters.

    Tokens whose probability is below (1 - top_p) / V have less than 1 - top_p together, so that
    the mass before the first of them has reached top_p already; the sum shows whether rounding
    agrees, and if not, more are ranked.
    """
    vocabulary = scaled.shape[1]
    top_k, top_p, least = int(filters.top_k), float(filters.top_p), float(filters.log_min_p)
    if top_k < vocabulary:
        return ranked_above(scaled, float(scaled.topk(top_k).values[0, -1]))
    if top_p >= 1.0:
        return ranked_above(scaled, least)
    negligible = math.log((1.0 - top_p) / vocabulary * math.ldexp(int(total), -MASS_BITS))
    candidates = ranked_above(scaled, max(least, negligible))
    enough = needed_mass(total, filters.top_p)
    if least >= negligible or bool(total_mass(candidates.scaled) >= enough):
        return candidates
    return ranked_above(scaled, least)


def _draw(candidates: Candidates, keep: Tensor, words: Tensor) -> Tensor:
    """The kept candidate of each row whose noisy score is largest; the lowest id of equal ones."""
    noisy = candidates.scaled + noise.exact_gumbel(words, candidates.ids)
    noisy = torch.where(keep, noisy, -math.inf)
    best = noisy.amax(dim=-1, keepdim=True)
    beyond = torch.iinfo(torch.int64).max
    lowest = torch.where(noisy == best, candidates.ids, beyond).amin(dim=-1)
    return torch.where(best[:, 0].isfinite(), lowest, NO_CHOICE)


def _finite_argmax(scores: Tensor) -> Tensor:
    """argmax of each row, the first of equal ones; NO_CHOICE where the largest is not finite."""
    chosen = scores.argmax(dim=-1)
    best = scores.gather(1, chosen[:, None])[:, 0]
    return torch.where(best.isfinite(), chosen, NO_CHOICE)


def _adjusted(logits: Tensor, lines: Tensor, path: Tensor, state: SamplingState) -> Tensor:
    """Logits after penalties and bias; a row that asks for neither keeps its own to the bit."""
    if state.prompt_seen is not None and state.output_counts is not None:
        counts = state.output_counts[lines]
        add_counts(counts, torch.arange(len(counts), device=counts.device), path)
        logits = penalise(logits, state.prompt_seen[lines], counts, state.penalties(lines))
    return logits if state.bias is None else logits + state.bias[lines]


def _adjusted_where_asked(
    logits: Tensor, lines: Tensor, path: Tensor, state: SamplingState
) -> Tensor:
    """The same at no cost for the rows that ask for neither; it decides on the host."""
    rows = [row for row, line in enumerate(lines.tolist()) if state.adjusts(line)]
    if not rows:
        return logits
    asked = torch.tensor(rows)
    return logits.index_copy(0, asked, _adjusted(logits[asked], lines[asked], path[asked], state))
