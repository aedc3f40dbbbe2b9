"""The target's own choice at every row, in a few launches that read nothing back.

A row's vocabulary is cut into chunks, one to a program. Every launch passes on what its chunks
found, and the programs of the next one put it together, each for itself: maxima with the lowest
id, and sums of integers, which have no order. A row's token is therefore the same, to the bit,
in any chunks and as in `sampling.sampler`. The borders of top_k and top_p are found digit by
digit, of four bits, in the size of the scaled logits.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from alula.ops.sample import LineSettings, Wants
from alula.ops.triton.exact import mass, noise

LEVELS = 8
_DIGITS = tl.constexpr(16)
_LEVELS = tl.constexpr(LEVELS)
_NO_ID = tl.constexpr(2**31 - 1)
_STEP = tl.constexpr(128)
_FEW_ROWS = 8
_SMALL_CHUNK, _LARGE_CHUNK = 1024, 4096


@triton.jit
def _best(values, ids):
    """The largest value and the lowest id that has it."""
    best = tl.max(values, axis=0)
    return best, tl.min(tl.where(values == best, ids, _NO_ID), axis=0)


@triton.jit
def _found(values, ids, row, chunks, block_chunks: tl.constexpr):
    """The best of what a row's chunks found."""
    at = tl.arange(0, block_chunks)
    value = tl.load(values + row * chunks + at, mask=at < chunks, other=-float("inf"))
    return _best(value, tl.load(ids + row * chunks + at, mask=at < chunks, other=_NO_ID))


@triton.jit
def _filters(settings_top_k, settings_top_p, line, vocabulary):
    """Whether a line has top_k on, and top_p."""
    return tl.load(settings_top_k + line) < vocabulary, tl.load(settings_top_p + line) < 1.0


@triton.jit
def _is_finite(value):
    return (value > -float("inf")) & (value < float("inf"))


@triton.jit(do_not_specialize=["path_length"])
def adjust_kernel(
    logits,
    lines,
    path,
    repetition,
    presence,
    frequency,
    prompt_seen,
    output_counts,
    bias,
    adjusted,
    best_values,
    best_ids,
    logits_stride,
    path_stride,
    path_length,
    vocabulary,
    has_penalties: tl.constexpr,
    has_bias: tl.constexpr,
    chunk: tl.constexpr,
):
    """Penalties and bias, and the largest logit of each chunk; NaN counts as +inf."""
    number, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    token = number * chunk + tl.arange(0, chunk)
    inside = token < vocabulary
    value = tl.load(logits + row * logits_stride + token, mask=inside, other=-float("inf"))
    line = tl.load(lines + row)
    if has_penalties:
        repeats = tl.load(repetition + line)
        once, each = tl.load(presence + line), tl.load(frequency + line)
        if (repeats != 1.0) | (once != 0.0) | (each != 0.0):
            of_line = line * vocabulary + token
            count = tl.load(output_counts + of_line, mask=inside, other=0)
            for step in range(path_length):
                count += (tl.load(path + row * path_stride + step) == token).to(tl.int32)
            seen = tl.load(prompt_seen + of_line, mask=inside, other=0) != 0
            weaker = tl.where(value > 0, tl.div_rn(value, repeats), value * repeats)
            value = tl.where((count > 0) | seen, weaker, value)
            value -= each * count.to(tl.float32) + once * (count > 0).to(tl.float32)
    if has_bias:
        value += tl.load(bias + line * vocabulary + token, mask=inside, other=0.0)
    if has_penalties or has_bias:
        tl.store(adjusted + row * vocabulary + token, value, mask=inside)
    best, first = _best(tl.where(value != value, float("inf"), value), token)
    tl.store(best_values + row * tl.num_programs(0) + number, best)
    tl.store(best_ids + row * tl.num_programs(0) + number, first)


@triton.jit
def _scaled(logits, token, vocabulary, largest, temperature):
    """See `transforms.scale`; and the bits of its size, which grow as the likelihood falls."""
    value = tl.load(logits + token, mask=token < vocabulary, other=-float("inf"))
    scaled = tl.div_rn(value - largest, temperature)
    return scaled, scaled.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def _size_mass(size):
    """The mass of a token whose scaled logit has this size."""
    return mass(-size.to(tl.int32).to(tl.float32, bitcast=True))


@triton.jit
def _sums(sums, row, level, chunks, block_chunks: tl.constexpr):
    """What the chunks of a row counted at a level, [chunks, 16]."""
    at, digit = tl.arange(0, block_chunks)[:, None], tl.arange(0, _DIGITS)[None, :]
    start = sums + ((row * _LEVELS + level) * chunks) * _DIGITS
    return tl.load(start + at * _DIGITS + digit, mask=at < chunks, other=0)


@triton.jit
def _descend(sum_of_digit, size, left):
    """Take the digit in which `left` is reached: the longer size, and what is left within it."""
    digit = tl.arange(0, _DIGITS)
    reached = tl.cumsum(sum_of_digit, axis=0)
    chosen = tl.sum((reached < left).to(tl.int32), axis=0)
    return size * _DIGITS + chosen, left - tl.sum(tl.where(digit < chosen, sum_of_digit, 0), axis=0)


@triton.jit
def _border(sums, states, row, number, chunks, weighs, block_chunks: tl.constexpr):
    """Where a search ended: the size at the border, how many tokens of just that size are kept,
    how many there are, and how many in the chunks before this one."""
    state = states + (row * _LEVELS + _LEVELS - 1) * 2
    all_sums = _sums(sums, row, _LEVELS - 1, chunks, block_chunks)
    size, left = _descend(tl.sum(all_sums, axis=0), tl.load(state), tl.load(state + 1))
    each = tl.where(weighs, tl.maximum(_size_mass(size), 1), 1)
    at, digit = tl.arange(0, block_chunks)[:, None], tl.arange(0, _DIGITS)[None, :]
    equal = tl.where(digit == size % _DIGITS, all_sums, 0)
    before = tl.sum(tl.sum(tl.where(at < number, equal, 0), axis=1), axis=0)
    every = tl.sum(tl.sum(equal, axis=1), axis=0)
    return size, (left + each - 1) // each, every // each, before // each


@triton.jit
def _needed(total, top_p):
    """See `transforms.needed_mass`."""
    exact = top_p.to(tl.float64) * total.to(tl.float64)
    below = exact.to(tl.int64)
    return tl.minimum(below + (below.to(tl.float64) < exact).to(tl.int64), total)


@triton.jit(do_not_specialize=["level"])
def search_kernel(
    logits,
    lines,
    temperature,
    top_k,
    top_p,
    best_values,
    best_ids,
    first_sums,
    first_states,
    sums,
    states,
    logits_stride,
    level,
    chunks,
    vocabulary,
    second: tl.constexpr,
    chunk: tl.constexpr,
    block_chunks: tl.constexpr,
):
    """One digit of the border's size: counts tokens, or adds their masses, by their digit.

    The first search is for top_k, or for top_p where top_k is off; the second for top_p among
    what top_k left.
    """
    number, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    line = tl.load(lines + row)
    warmth = tl.load(temperature + line)
    has_k, has_p = _filters(top_k, top_p, line, vocabulary)
    largest, _ = _found(best_values, best_ids, row, chunks, block_chunks)
    if second:
        wanted, weighs = has_k & has_p, has_p
    else:
        wanted, weighs = has_k | has_p, has_k == 0
    if wanted & (warmth > 0.0) & _is_finite(largest):
        bound = tl.full((), 0x7FFFFFFF, tl.int64)
        surplus = tl.zeros((), tl.int64)
        if second:
            bound, kept, there, _ = _border(
                first_sums, first_states, row, number, chunks, False, block_chunks
            )
            surplus = (there - kept) * _size_mass(bound)
        size = tl.zeros((), tl.int64)
        if level > 0:
            state = states + (row * _LEVELS + level - 1) * 2
            of_digit = tl.sum(_sums(sums, row, level - 1, chunks, block_chunks), axis=0)
            if level == 1:
                needed = _needed(tl.sum(of_digit, axis=0) - surplus, tl.load(top_p + line))
                left = tl.where(weighs, needed, tl.load(top_k + line))
            else:
                size, left = tl.load(state), tl.load(state + 1)
            size, left = _descend(of_digit, size, left)
            if number == 0:
                tl.store(state + 2, size)
                tl.store(state + 3, left)
        digit = tl.arange(0, _DIGITS)
        total = tl.zeros((_STEP, _DIGITS), tl.int64)
        shift = 4 * (_LEVELS - 1 - level)
        for start in tl.range(0, chunk, _STEP, loop_unroll_factor=8):
            token = number * chunk + start + tl.arange(0, _STEP)
            scaled, own = _scaled(logits + row * logits_stride, token, vocabulary, largest, warmth)
            rest = own >> shift
            counts = (token < vocabulary) & (own <= bound) & ((rest >> 4) == size)
            weight = tl.full((_STEP,), 1, tl.int64)
            if weighs:
                weight = mass(scaled)
            weight = tl.where(counts, weight, 0)
            total += tl.where((rest & 15)[:, None] == digit[None, :], weight[:, None], 0)
        to = sums + ((row * _LEVELS + level) * chunks + number) * _DIGITS + digit
        tl.store(to, tl.sum(total, axis=0))


@triton.jit
def draw_kernel(
    logits,
    lines,
    positions,
    temperature,
    top_k,
    top_p,
    log_min_p,
    key,
    best_values,
    best_ids,
    first_sums,
    first_states,
    second_sums,
    second_states,
    drawn_values,
    drawn_ids,
    logits_stride,
    chunks,
    vocabulary,
    filters: tl.constexpr,
    chunk: tl.constexpr,
    block_chunks: tl.constexpr,
):
    """The largest noisy score of each chunk, among what the filters keep."""
    number, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    line = tl.load(lines + row)
    warmth = tl.load(temperature + line)
    largest, _ = _found(best_values, best_ids, row, chunks, block_chunks)
    if (warmth > 0.0) & _is_finite(largest):
        token = number * chunk + tl.arange(0, chunk)
        scaled, size = _scaled(logits + row * logits_stride, token, vocabulary, largest, warmth)
        keep = (token < vocabulary) & (scaled >= tl.load(log_min_p + line))
        if filters > 0:
            has_k, has_p = _filters(top_k, top_p, line, vocabulary)
            if has_k | has_p:
                border, left, _, before = _border(
                    first_sums, first_states, row, number, chunks, has_k == 0, block_chunks
                )
                if filters > 1:
                    both = has_k & has_p
                    if both:
                        inner, few, _, earlier = _border(
                            second_sums, second_states, row, number, chunks, True, block_chunks
                        )
                        left = tl.where(inner == border, tl.minimum(left, few), few)
                        border, before = inner, earlier
                equal = (size == border) & (token < vocabulary)
                rank = before + tl.cumsum(equal.to(tl.int32), axis=0)
                keep &= (size < border) | (equal & (rank <= left))
        best, first = tl.full((), -float("inf"), tl.float32), tl.full((), _NO_ID, tl.int32)
        if tl.max(keep.to(tl.int32), axis=0) > 0:
            noisy = scaled + noise(tl.load(key + line), tl.load(positions + row), token)
            best, first = _best(tl.where(keep, noisy, -float("inf")), token)
        tl.store(drawn_values + row * chunks + number, best)
        tl.store(drawn_ids + row * chunks + number, first)


@triton.jit
def choose_kernel(
    lines,
    temperature,
    best_values,
    best_ids,
    drawn_values,
    drawn_ids,
    chosen,
    chunks,
    draws: tl.constexpr,
    block_chunks: tl.constexpr,
):
    """Put together what the chunks of a row found; -1 where no largest logit exists."""
    row = tl.program_id(0).to(tl.int64)
    largest, token = _found(best_values, best_ids, row, chunks, block_chunks)
    exists = _is_finite(largest)
    if draws:
        warmth = tl.load(temperature + tl.load(lines + row))
        if (warmth > 0.0) & exists:
            best, token = _found(drawn_values, drawn_ids, row, chunks, block_chunks)
            exists = _is_finite(best)
    tl.store(chosen + row, tl.where(exists, token, -1).to(tl.int64))


class _Work(NamedTuple):
    """What the launches of one call share."""

    logits: Tensor
    lines: Tensor
    settings: LineSettings
    best: tuple[Tensor, Tensor]
    chunk: int

    @property
    def rows(self) -> int:
        return self.logits.shape[0]

    @property
    def vocabulary(self) -> int:
        return self.logits.shape[1]

    @property
    def chunks(self) -> int:
        return triton.cdiv(self.vocabulary, self.chunk)

    @property
    def block_chunks(self) -> int:
        return triton.next_power_of_2(self.chunks)

    def found(self) -> tuple[Tensor, Tensor]:
        """Room for the best value of each chunk, and its id."""
        shape = (self.rows, self.chunks)
        return self._empty(shape, torch.float32), self._empty(shape, torch.int32)

    def searched(self) -> tuple[Tensor, Tensor]:
        """Room for the sums and the states of a search."""
        sums = self._empty((self.rows, LEVELS, self.chunks, 16), torch.int64)
        return sums, self._empty((self.rows, LEVELS, 2), torch.int64)

    def _empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=self.logits.device)


def sample(
    logits: Tensor,
    lines: Tensor,
    positions: Tensor,
    path: Tensor,
    settings: LineSettings,
    wants: Wants,
) -> Tensor:
    """See `sampling.sampler.sample`; logits [R, V] and path [R, A] have contiguous rows.

    2 launches where all rows are greedy, 3 with noise, and 8 more for every filter a row has.
    """
    chunk = _SMALL_CHUNK if logits.shape[0] < _FEW_ROWS else _LARGE_CHUNK
    return sample_in(chunk, logits, lines, positions, path, settings, wants)


def sample_in(
    chunk: int,
    logits: Tensor,
    lines: Tensor,
    positions: Tensor,
    path: Tensor,
    settings: LineSettings,
    wants: Wants,
) -> Tensor:
    """As `sample`, in chunks of a given power of two of at least 128."""
    work = _Work(logits, lines, settings, (logits, logits), chunk)
    work = _adjust(work._replace(best=work.found()), path, wants.adjustments)
    drawn = _draw(work, positions, wants.filters) if wants.noise else (None, None)
    chosen = torch.empty(work.rows, dtype=torch.int64, device=logits.device)
    choose_kernel[(work.rows,)](
        *(lines, settings.temperature, *work.best, *drawn, chosen, work.chunks),
        draws=wants.noise,
        block_chunks=work.block_chunks,
    )
    return chosen


def _adjust(work: _Work, path: Tensor, asked: bool) -> _Work:
    """Find the best of each chunk, after penalties and bias where these are asked for."""
    settings, logits = work.settings, work.logits
    has_penalties = asked and settings.prompt_seen is not None
    has_bias = asked and settings.bias is not None
    adjusted = logits
    if has_penalties or has_bias:
        adjusted = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
    adjust_kernel[(work.chunks, work.rows)](
        *(logits, work.lines, path),
        *(settings.repetition, settings.presence, settings.frequency),
        *(settings.prompt_seen, settings.output_counts, settings.bias, adjusted, *work.best),
        *(logits.stride(0), path.stride(0), path.shape[1], work.vocabulary),
        has_penalties=has_penalties,
        has_bias=has_bias,
        chunk=work.chunk,
        enable_fp_fusion=False,
    )
    return work._replace(logits=adjusted)


def _draw(work: _Work, positions: Tensor, filters: int) -> tuple[Tensor, Tensor]:
    settings = work.settings
    first = _search(work, None) if filters > 0 else (None, None)
    second = _search(work, first) if filters > 1 else (None, None)
    drawn = work.found()
    draw_kernel[(work.chunks, work.rows)](
        *(work.logits, work.lines, positions, settings.temperature),
        *(settings.top_k, settings.top_p, settings.log_min_p, settings.key),
        *(*work.best, *first, *second, *drawn),
        *(work.logits.stride(0), work.chunks, work.vocabulary),
        filters=filters,
        chunk=work.chunk,
        block_chunks=work.block_chunks,
        enable_fp_fusion=False,
    )
    return drawn


def _search(work: _Work, first: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
    """Find where the filters' border lies: the first, or the second within it."""
    settings = work.settings
    sums, states = work.searched()
    for level in range(LEVELS):
        search_kernel[(work.chunks, work.rows)](
            *(work.logits, work.lines, settings.temperature, settings.top_k, settings.top_p),
            *(*work.best, *(first or (None, None)), sums, states),
            *(work.logits.stride(0), level, work.chunks, work.vocabulary),
            second=first is not None,
            chunk=work.chunk,
            block_chunks=work.block_chunks,
            enable_fp_fusion=False,
        )
    return sums, states
