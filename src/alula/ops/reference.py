"""The ops in plain PyTorch: what runs on the CPU, and what every kernel is compared with."""

from alula.ops.activation import silu_and_mul, silu_and_mul_gradient
from alula.ops.advance import advance, settle
from alula.ops.attention import plan
from alula.ops.catch_up import catch_up
from alula.ops.commit import commit
from alula.ops.cross_entropy import cross_entropy, cross_entropy_gradient
from alula.ops.expand import finish, grow
from alula.ops.layer import add, embed, gate, project, project_heads
from alula.ops.linear import lay_out
from alula.ops.norm import add_rms_norm, rms_norm
from alula.ops.own_key import attend_own, attend_own_gradient
from alula.ops.pair import pair
from alula.ops.prepare import prepare
from alula.ops.restrict import restrict
from alula.ops.rope import rotate
from alula.ops.sample import Find, Sample
from alula.ops.store import rotate_and_store
from alula.ops.walk import walk

name = "reference"

sample: Sample | None = None
"""The floor above has it: `sampling.sampler`."""
find: Find | None = None

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
