"""Every kernel compiles for every architecture we know, fits its shared memory, spills nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

OLDEST_TRITON = Path(sys.prefix) / "oldest-triton"
SHARED_KB = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 103: 227, 120: 99, 121: 99}
ALLOWED_STACK = 64
"""ptxas at times puts away around a loop what is needed behind it, a dozen registers; a
tile that is too large for the registers spills hundreds of bytes."""
ALLOWED_STACK_OF_TREES = 192
"""Of attention in two warps, for trees: with 160 bytes put away it was a fifth faster on sm_90 than
in four warps that put away none. sm_80 puts away 184."""
EXACT = {"adjust_kernel", "search_kernel", "draw_kernel"}
"""Kernels that promise the reference's bits: each operation on floats rounded as IEEE 754 says."""
TRAINING = {
    "attend_own_kernel",
    "attend_own_gradient_kernel",
    "restrict_kernel",
    "silu_and_mul_gradient_kernel",
    "cross_entropy_kernel",
    "cross_entropy_gradient_kernel",
}
"""Kernels no token depends on. All others leave it to nobody which products and sums are fused:
the compiler once rotated by one formula in a joined kernel and by another in one of its own."""
ATTENTION = {"attention_kernel", "spread_attention_kernel"}
FIRST_OF_A_PASS = {"embed_kernel", "pair_kernel"}
"""Kernels that let no other begin before they have waited, so that what was there before a pass may
be read without waiting."""
KERNELS = {
    *EXACT,
    *TRAINING,
    "choose_kernel",
    "walk_kernel",
    "prepare_kernel",
    "advance_kernel",
    "commit_kernel",
    "catch_up_kernel",
    "pair_kernel",
    "children_kernel",
    "grow_kernel",
    "finish_kernel",
    "linear_kernel",
    "gate_kernel",
    "heads_kernel",
    "add_linear_kernel",
    "add_scale_kernel",
    "embed_kernel",
    "attention_kernel",
    "spread_attention_kernel",
    "rms_norm_kernel",
    "rotate_kernel",
    "silu_and_mul_kernel",
}


def compiled(extent: str, *architectures: int, triton: Path | None = None) -> list[dict[str, Any]]:
    """In a process of its own, since this one may have imported Triton with its interpreter.

    `triton`: a folder with another Triton than the installed one.
    """
    program = Path(__file__).with_name("kernel_proof.py")
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    if triton:
        path = (str(triton), os.environ.get("PYTHONPATH", ""))
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    ran = subprocess.run(
        [sys.executable, program, extent, *map(str, architectures)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


def check(kernels: list[dict[str, Any]], architecture: int) -> None:
    assert kernels
    for kernel in kernels:
        assert kernel["architecture"] == architecture
        assert kernel["shared"] <= SHARED_KB[architecture] * 1024, kernel
        assert kernel["instructions"] > 30, kernel
        assert kernel["local"] == 0, kernel
        is_of_tree = kernel["kernel"] in ATTENTION and kernel["warps"] == 2
        allowed = ALLOWED_STACK_OF_TREES if is_of_tree else ALLOWED_STACK
        assert kernel["stack"] <= allowed, kernel
        assert kernel["fuses"] == (kernel["kernel"] in TRAINING), kernel
        overlaps = architecture >= 90 and kernel["kernel"] not in TRAINING
        assert kernel["waits"] == overlaps, kernel
        if kernel["kernel"] in FIRST_OF_A_PASS:
            assert not kernel["releases_first"], kernel
        if kernel["kernel"] in ATTENTION:  # past what a processor has kept from before
            assert all(".cg" in read for read in kernel["reads_first"]), kernel
            assert bool(kernel["reads_first"]) == overlaps, kernel
        if kernel["kernel"] in EXACT:
            assert not kernel["inexact"], kernel


@pytest.mark.parametrize("architecture", [120])
def test_the_usual_launches_of_a_small_model_compile(architecture: int) -> None:
    kernels = compiled("sample", architecture)
    assert {kernel["kernel"] for kernel in kernels} == KERNELS
    check(kernels, architecture)
    early = [kernel["reads_first"] for kernel in kernels if "spread" in kernel["kernel"]]
    assert any("ld.global.cg.v4.b32" in reads for reads in early)  # keys, and not only numbers


@pytest.mark.skipif(not OLDEST_TRITON.is_dir(), reason="make installs the oldest Triton")
def test_the_oldest_triton_compiles_them_too() -> None:
    """It took no function that returns a None, and the newest did."""
    kernels = compiled("sample", 90, triton=OLDEST_TRITON)
    assert {kernel["triton"] for kernel in kernels} == {"3.6.0"}
    assert {kernel["kernel"] for kernel in kernels} == KERNELS
    check(kernels, 90)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", SHARED_KB)
def test_all_launches_of_all_shapes_compile(architecture: int) -> None:
    check(compiled("all", architecture), architecture)


def test_a_tile_too_large_for_an_architecture_is_found() -> None:
    """sm_90's best tile takes 164 KB and compiles for sm_120 without a word."""
    with pytest.raises(AssertionError, match="shared"):
        check(compiled("too large", 120), 120)
