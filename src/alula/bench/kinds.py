"""What kind of work each kernel of a round does: by its name, and by its place in the round.

A round computes the target's rows, samples, walks, commits and drafts, in this order. Kernels
that torch brings along (copies, sums, sorts) say nothing by their names: their place tells.
"""

from __future__ import annotations

from collections.abc import Sequence

LINEAR = "linear"
ATTENTION = "attention"
NORM = "norm"
ROPE = "rope and store"
ACTIVATION = "activation"
SAMPLING = "sampling"
WALK = "walk and commit"
DRAFTER = "drafter"
OTHER = "other"
GAPS = "launch gaps"
KINDS = (LINEAR, ATTENTION, NORM, ROPE, ACTIVATION, SAMPLING, WALK, DRAFTER, OTHER, GAPS)

_NAMED = (
    (
        LINEAR,
        (
            "linear_kernel",
            "gate_kernel",
            "heads_kernel",
            "gemm",
            "gemv",
            "nvjet",
            "cutlass",
            "splitkreduce",
        ),
    ),
    (ATTENTION, ("attention_kernel", "attend", "flash", "fmha")),
    (NORM, ("rms_norm", "add_scale_kernel")),
    (ROPE, ("rotate_kernel",)),
    (ACTIVATION, ("silu",)),
    (SAMPLING, ("adjust_kernel", "draw_kernel", "choose_kernel", "search_kernel")),
    (WALK, ("walk_kernel", "advance_kernel", "commit_kernel")),
)
_OF_A_WALK, _OF_A_DRAFTER = ("walk_kernel", "advance_kernel"), "catch_up_kernel"


def by_name(name: str) -> str:
    """The kind that a kernel's name tells, `other` where it tells none."""
    lower = name.lower()
    return next((kind for kind, parts in _NAMED if any(p in lower for p in parts)), OTHER)


def kinds(names: Sequence[str]) -> list[str]:
    """The kinds of one round's kernels in the order they run.

    From the last linear before the walk (the head) to the walk, all is sampling. Behind the walk
    all is commit until the drafter catches up or its first linear, and the drafter's from there
    on. Where nothing walks, names decide alone.
    """
    found = [by_name(name) for name in names]
    walks = [at for at, name in enumerate(names) if any(part in name for part in _OF_A_WALK)]
    walk = min(walks, default=None)
    if walk is None:
        return found
    linears = [at for at, kind in enumerate(found) if kind == LINEAR]
    head = max((at for at in linears if at < walk), default=-1)
    begins = [*linears, *(at for at, name in enumerate(names) if _OF_A_DRAFTER in name)]
    drafter = min((at for at in begins if at > walk), default=len(names))
    found[head + 1 : walk] = [SAMPLING] * (walk - head - 1)
    found[walk:drafter] = [WALK] * (drafter - walk)
    found[drafter:] = [DRAFTER] * (len(names) - drafter)
    return found
