"""A decoder layer's linears, each one launch with what comes before and after it.

Results are rounded where the separate ops round them, so that a launch and its parts agree to the
bit and either may serve, by what is fastest for the rows there are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from alula.ops.attention import Heads
from alula.ops.layer import Store, Stream
from alula.ops.linear import Weight
from alula.ops.norm import Norm, Normed
from alula.ops.rope import Rotation
from alula.ops.store import HeadNorms
from alula.ops.triton.activation import silu_and_mul
from alula.ops.triton.launch import options, power_of_2
from alula.ops.triton.layer_kernels import (
    add_linear_kernel,
    add_scale_kernel,
    embed_kernel,
    gate_kernel,
    heads_kernel,
)
from alula.ops.triton.linear import TiledWeight
from alula.ops.triton.norm import add_rms_norm, rms_norm
from alula.ops.triton.rope import rotate_and_store

JOINED_ROWS = 128
"""Up to here a linear takes along what follows it; large tiles have no registers left for that."""


def embed(ids: Tensor, table: Tensor, dtype: torch.dtype, norm: Norm, changes: int) -> Stream:
    """See `layer.embed`."""
    if dtype == torch.float16:  # too narrow for rows that are not divided yet
        x = table[ids].to(dtype)
        return Stream(x, Normed(rms_norm(x, *norm)))
    rows, width = len(ids), table.shape[1]
    x, scaled = (torch.empty(rows, width, dtype=dtype, device=ids.device) for _ in range(2))
    room = torch.empty(changes + 1, rows, dtype=torch.int64, device=ids.device)
    embed_kernel[(rows,)](
        *(ids, table, norm.weight, x, scaled, room, rows, width, changes),
        block=power_of_2(width),
        block_changes=power_of_2(changes + 1),
        **options(x),
    )
    return Stream(x, Normed(scaled, room[0], norm.eps), room[1:])


def add(stream: Stream, inner: Tensor, weight: Weight, norm: Norm) -> Stream:
    """See `layer.add`."""
    x, room = stream.x, stream.room
    if room is None:
        x, normed = add_rms_norm(x, weight.multiply(inner, x.dtype), *norm)
        return Stream(x, Normed(normed))
    total, scaled = torch.empty_like(x), torch.empty_like(x)
    squares = room[0]
    if isinstance(weight, TiledWeight) and len(x) <= JOINED_ROWS:
        tiling = weight.tiling(len(x))
        add_linear_kernel[(tiling.programs,)](
            *(inner, weight.values, weight.bias, x, norm.weight, total, scaled, squares),
            *(len(x), *weight.shape, inner.stride(0)),
            **tiling.constants,
        )
    else:
        change = weight.multiply(inner, x.dtype)
        add_scale_kernel[(len(x),)](
            *(x, change, norm.weight, total, scaled, squares, x.shape[1]),
            block=power_of_2(x.shape[1]),
            **options(x),
        )
    return Stream(total, Normed(scaled, squares, norm.eps), room[1:])


def project(normed: Normed, weight: Weight, dtype: torch.dtype) -> Tensor:
    """See `layer.project`."""
    assert isinstance(weight, TiledWeight)
    return weight.multiply_normed(normed, dtype)


def project_heads(
    normed: Normed,
    weight: Weight,
    heads: Heads,
    rotation: Rotation,
    store: Store,
    norms: HeadNorms | None = None,
) -> Tensor:
    """See `layer.project_heads`."""
    assert isinstance(weight, TiledWeight)
    x, count = normed.values, heads.query + 2 * heads.kv
    d, rows = weight.shape[0] // count, len(normed.values)
    if norms is not None or rows > JOINED_ROWS:
        projected = project(normed, weight, weight.dtype).view(rows, count, d)
        return rotate_and_store(projected, heads, rotation, *store, norms)
    queries = torch.empty(rows, heads.query, d, dtype=weight.dtype, device=x.device)
    tiling = weight.tiling(rows)
    heads_kernel[(tiling.programs,)](
        *(x, weight.values, weight.bias, normed.squares, rotation.cos, rotation.sin),
        *(queries, store.keys, store.values, *store.at),
        *(rows, *weight.shape, x.stride(0), store.keys.stride(0), store.keys.stride(1)),
        normed.eps,
        query_heads=heads.query,
        kv_heads=heads.kv,
        half=d // 2,
        has_squares=normed.squares is not None,
        # Attention takes so little memory and so few processors that it may begin meanwhile.
        **{**tiling.constants, "releases": "at once"},
    )
    return queries


def gate(normed: Normed, gate_up: Weight) -> Tensor:
    """See `layer.gate`."""
    assert isinstance(gate_up, TiledWeight)
    x, rows = normed.values, len(normed.values)
    if rows > JOINED_ROWS:
        return silu_and_mul(project(normed, gate_up, gate_up.dtype))
    y = torch.empty(rows, gate_up.shape[0] // 2, dtype=gate_up.dtype, device=x.device)
    tiling = gate_up.tiling(rows)
    gate_kernel[(tiling.programs,)](
        *(x, gate_up.values, gate_up.bias, normed.squares, y),
        *(rows, *gate_up.shape, x.stride(0), normed.eps),
        has_squares=normed.squares is not None,
        **tiling.constants,
    )
    return y
