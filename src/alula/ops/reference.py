"""The ops in plain PyTorch: what runs on the CPU, and what every kernel is compared with."""

from alula.ops.activation import silu_and_mul
from alula.ops.attention import plan
from alula.ops.linear import lay_out
from alula.ops.norm import add_rms_norm, rms_norm
from alula.ops.rope import rotate
from alula.ops.store import rotate_and_store

name = "reference"

__all__ = [
    "add_rms_norm",
    "lay_out",
    "name",
    "plan",
    "rms_norm",
    "rotate",
    "rotate_and_store",
    "silu_and_mul",
]
