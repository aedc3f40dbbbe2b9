"""The target's own choice at every row, in a few launches that read nothing back.

The same token as in `sampling.sampler`: noise, scaled logits and masses have the same bits, and
nothing depends on an order of sums.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from alula.ops.sample import Found, LineSettings, Wants
from alula.ops.triton.chunks import (
    NOTHING,
    Chunks,
    Pair,
    best_of,
    found,
    is_finite,
    largest_of,
    ranked_filters,
    scale,
)
from alula.ops.triton.exact import noise
from alula.ops.triton.launch import ceil_div, options, power_of_2
from alula.ops.triton.overlap import release, wait
from alula.ops.triton.search import find_border, search

_NO_ID = tl.constexpr(2**31 - 1)
_FEW_ROWS = 8
_SMALL_CHUNK, _LARGE_CHUNK = 1024, 4096


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
    overlaps: tl.constexpr,
):
    """Penalties and bias, and the largest logit of each chunk; NaN counts as +inf."""
    release(overlaps)
    wait(overlaps)
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
    best, first = best_of(tl.where(value != value, float("inf"), value), token)
    tl.store(best_values + row * tl.num_programs(0) + number, best)
    tl.store(best_ids + row * tl.num_programs(0) + number, first)


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
    overlaps: tl.constexpr,
):
    """The largest noisy score of each chunk, among what the filters keep."""
    release(overlaps)
    wait(overlaps)
    number, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    line = tl.load(lines + row)
    warmth = tl.load(temperature + line)
    largest = largest_of(best_values, row, chunks, block_chunks)
    if (warmth > 0.0) & is_finite(largest):
        token = number * chunk + tl.arange(0, chunk)
        scaled, size = scale(logits + row * logits_stride, token, vocabulary, largest, warmth)
        keep = (token < vocabulary) & (scaled >= tl.load(log_min_p + line))
        if filters > 0:
            has_k, has_p = ranked_filters(top_k, top_p, line, vocabulary)
            if has_k | has_p:
                border, left, _equal, before = find_border(
                    first_sums, first_states, row, number, chunks, has_k == 0, block_chunks
                )
                if filters > 1:
                    both = has_k & has_p
                    if both:
                        border, left, _equal, before = find_border(
                            second_sums, second_states, row, number, chunks, True, block_chunks
                        )
                equal = (size == border) & (token < vocabulary)
                rank = before + tl.cumsum(equal.to(tl.int32), axis=0)
                keep &= (size < border) | (equal & (rank <= left))
        best, first = tl.full((), -float("inf"), tl.float32), tl.full((), _NO_ID, tl.int32)
        if tl.max(keep.to(tl.int32), axis=0) > 0:
            noisy = scaled + noise(tl.load(key + line), tl.load(positions + row), token)
            best, first = best_of(tl.where(keep, noisy, -float("inf")), token)
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
    overlaps: tl.constexpr,
):
    """Put together what the chunks of a row found; -1 where no largest logit exists."""
    release(overlaps)
    wait(overlaps)
    row = tl.program_id(0).to(tl.int64)
    largest, token = found(best_values, best_ids, row, chunks, block_chunks)
    exists = is_finite(largest)
    if draws:
        warmth = tl.load(temperature + tl.load(lines + row))
        if (warmth > 0.0) & exists:
            best, token = found(drawn_values, drawn_ids, row, chunks, block_chunks)
            exists = is_finite(best)
    tl.store(chosen + row, tl.where(exists, token, -1).to(tl.int64))


def sample(
    logits: Tensor,
    lines: Tensor,
    positions: Tensor,
    path: Tensor,
    settings: LineSettings,
    wants: Wants,
) -> Tensor:
    """See `sampling.sampler.sample`; logits [R, V] and path [R, A] have contiguous rows, and
    the rest is contiguous.

    One launch more than `find`.
    """
    return sample_in(_chunk(logits), logits, lines, positions, path, settings, wants)


def find(
    logits: Tensor,
    lines: Tensor,
    positions: Tensor,
    path: Tensor,
    settings: LineSettings,
    wants: Wants,
) -> Found:
    """As `sample`, its choice left for `advance` to make.

    One launch where all rows are greedy, 2 with noise, and 8 more for every filter a row has.
    """
    return find_in(_chunk(logits), logits, lines, positions, path, settings, wants)


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
    found = find_in(chunk, logits, lines, positions, path, settings, wants)
    rows, chunks = logits.shape[0], ceil_div(logits.shape[1], chunk)
    chosen = torch.empty(rows, dtype=torch.int64, device=logits.device)
    choose_kernel[(rows,)](
        *(lines, *found, chosen, chunks),
        draws=wants.noise,
        block_chunks=power_of_2(chunks),
        **options(logits),
    )
    return chosen


def find_in(
    chunk: int,
    logits: Tensor,
    lines: Tensor,
    positions: Tensor,
    path: Tensor,
    settings: LineSettings,
    wants: Wants,
) -> Found:
    """As `find`, in chunks of a given power of two of at least 128."""
    work = Chunks(logits, lines, settings, (logits, logits), chunk)
    work = _adjust(work._replace(best=work.found()), path, wants.adjustments)
    drawn = _draw(work, positions, wants.filters) if wants.noise else NOTHING
    return Found(settings.temperature, *work.best, *drawn)


def _chunk(logits: Tensor) -> int:
    return _SMALL_CHUNK if logits.shape[0] < _FEW_ROWS else _LARGE_CHUNK


def _adjust(work: Chunks, path: Tensor, asked: bool) -> Chunks:
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
        num_warps=work.warps,
        **options(logits),
    )
    return work._replace(logits=adjusted)


def _draw(work: Chunks, positions: Tensor, filters: int) -> Pair:
    settings = work.settings
    first = search(work) if filters > 0 else None
    second = search(work, first) if filters > 1 else None
    drawn = work.found()
    draw_kernel[(work.chunks, work.rows)](
        *(work.logits, work.lines, positions, settings.temperature),
        *(settings.top_k, settings.top_p, settings.log_min_p, settings.key),
        *(work.best[0], *(first or NOTHING), *(second or NOTHING), *drawn),
        *(work.logits.stride(0), work.chunks, work.vocabulary),
        filters=filters,
        chunk=work.chunk,
        block_chunks=work.block_chunks,
        num_warps=work.warps,
        **options(work.logits),
    )
    return drawn
