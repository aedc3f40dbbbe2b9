"""Keyed Gumbel noise: one draw per (request key, absolute position, target token id).

The noise has no state, so every row can make its own, in any order and as often as needed: that
is what lets speculation, batches and preemption leave a request's tokens alone. The bits come
from hashes nested in each other, in 32-bit arithmetic that every device reproduces exactly.
"""

from __future__ import annotations

import secrets

import torch
from torch import Tensor

from alula.ops import exact
from alula.ops.exact import INNER, OUTER, mix

_LOW_32 = 0xFFFFFFFF
_LOW_64 = 0xFFFFFFFFFFFFFFFF
_GOLDEN_64 = 0x9E3779B97F4A7C15

NEAR = 1e-5


def fresh_seed() -> int:
    """A seed for a request that named none, no larger than every reader of JSON keeps exactly."""
    return secrets.randbits(53)


def request_key(seed: int, sample: int) -> int:
    """The key of sample number `sample` of a request: 64 bits, as a signed integer.

    For one seed, different samples have different keys (every step is a bijection of the
    sample's number).
    """
    key = _mix_64(_mix_64(seed + _GOLDEN_64) + sample)
    return key - 2**64 if key >= 2**63 else key


def hash_bits(keys: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
    """32 random bits per row and token, [R, T] int64 in [0, 2^32).

    `keys` [R] int64; `positions` [R] int64, the absolute position of the token being sampled,
    below 2^32; `tokens` int64 target ids, [T] for every row or [R, T].
    """
    return _bits(row_words(keys, positions), tokens).long() & _LOW_32


def gumbel(keys: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
    """Standard Gumbel noise for the arguments of `hash_bits`, [R, T] fp32.

    Within 1e-5 of `exact_gumbel`, whose bits are the same on every device.
    """
    return near_gumbel(row_words(keys, positions), tokens)


def row_words(keys: Tensor, positions: Tensor) -> Tensor:
    """[R, 2] int32: what a row's noise depends on, as two 32-bit words.

    Each hashes the key's low word, its high word and the position, nested in this order, from a
    start of its own. Going from int64 to int32 keeps the low word.
    """
    low = keys.to(torch.int32)
    starts = [low + exact.signed(start) for start in exact.STARTS]
    words = mix(torch.stack(starts, dim=1), INNER)
    for part in (keys >> 32, positions):
        words = mix(words.add_(part.to(torch.int32)[:, None]), INNER)
    return words


def exact_gumbel(words: Tensor, tokens: Tensor) -> Tensor:
    """-log(-log1p(-u)) with u = (bits + 1/2) / 2^32, [R, T] fp32, for `row_words` [R, 2].

    What decides between tokens. u is rounded to fp32 at every step and capped below 1; the small
    u, which make the large values, keep their full precision.
    """
    return exact.gumbel(_bits(words, tokens))


def near_gumbel(words: Tensor, tokens: Tensor) -> Tensor:
    """As `exact_gumbel`, within NEAR of it and in half the time, by the library's logarithms."""
    u = exact.uniform(_bits(words, tokens))
    return u.neg_().log1p_().neg_().log_().neg_()


def _bits(words: Tensor, tokens: Tensor) -> Tensor:
    """[R, T] int32 holding outer(inner(token + first word) + second word)."""
    inner = mix(tokens.to(torch.int32) + words[:, :1], INNER)
    return mix(inner.add_(words[:, 1:]), OUTER)


def _mix_64(x: int) -> int:
    """SplitMix64's finaliser (Steele, Lea and Flood, OOPSLA 2014)."""
    x &= _LOW_64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _LOW_64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _LOW_64
    return x ^ (x >> 31)
