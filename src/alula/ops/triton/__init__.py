"""The ops as Triton kernels: one source for every architecture.

A row's result depends on that row alone, bit for bit, and no launch reads anything back or
depends on the values in a tensor, so that every one of them can be captured in a CUDA graph.
"""

from alula.ops.triton.activation import silu_and_mul, silu_and_mul_gradient
from alula.ops.triton.advance import advance, settle
from alula.ops.triton.attention import plan
from alula.ops.triton.catch_up import catch_up
from alula.ops.triton.commit import commit
from alula.ops.triton.cross_entropy import cross_entropy, cross_entropy_gradient
from alula.ops.triton.finish import finish
from alula.ops.triton.grow import grow
from alula.ops.triton.layer import add, embed, gate, project, project_heads
from alula.ops.triton.linear import lay_out
from alula.ops.triton.norm import add_rms_norm, rms_norm
from alula.ops.triton.own_key import attend_own, attend_own_gradient
from alula.ops.triton.pair import pair
from alula.ops.triton.prepare import prepare
from alula.ops.triton.restrict import restrict
from alula.ops.triton.rope import rotate, rotate_and_store
from alula.ops.triton.sample import find, sample
from alula.ops.triton.walk import walk

name = "triton"

__all__ = [
    "add",
    "add_rms_norm",
    "advance",
    "attend_own",
    "attend_own_gradient",
    "catch_up",
    "commit",
    "cross_entropy",
    "cross_entropy_gradient",
    "embed",
    "find",
    "finish",
    "gate",
    "grow",
    "lay_out",
    "name",
    "pair",
    "plan",
    "prepare",
    "project",
    "project_heads",
    "restrict",
    "rms_norm",
    "rotate",
    "rotate_and_store",
    "sample",
    "settle",
    "silu_and_mul",
    "silu_and_mul_gradient",
    "walk",
]
