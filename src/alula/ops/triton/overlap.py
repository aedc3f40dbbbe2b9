"""Programmatic dependent launch: a kernel may begin while the one before it still runs.

What a kernel does before `wait` must not touch anything that an earlier kernel may still write:
weights may be fetched, and what a pass reads but never changes. Those that a model's pass begins
with, `embed_kernel` and `pair_kernel`, let the next one begin only when they have waited, so that
no kernel of a pass begins before all that was launched ahead of the pass has ended. (In half
precision a pass begins with an operation of torch, which no kernel overtakes.) Attention therefore
reads before its wait what the pass's rows are, and keys and values that are settled (see `Rows`).
What one processor has kept nearby may be older than that, so these reads ask for what all see.
Of a kernel launched with `overlaps` a program has to call `wait` before it reads or writes anything
else, and one program at least has to, always; that makes the order transitive, since whoever waits
for a kernel waits for all its programs, and so for what they waited for.

PTX ISA, griddepcontrol; capability 9.0 and above.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def wait(overlaps: tl.constexpr):
    """Go on when the kernels before have ended and what they wrote can be read."""
    if overlaps:
        tl.extra.cuda.gdc_wait()


@triton.jit
def release(overlaps: tl.constexpr):
    """Let the next kernel begin, once all programs have come here or ended."""
    if overlaps:
        tl.extra.cuda.gdc_launch_dependents()
