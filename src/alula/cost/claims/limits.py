"""Claims that cannot hold whatever else is true: what memory, links and rounds do not allow."""

from __future__ import annotations

from collections.abc import Iterator

from alula.cost.claims.case import Case, Claims
from alula.cost.claims.finding import Finding
from alula.cost.claims.rows import exchanges, ideal
from alula.cost.layout import kv_per_gpu, weights_per_gpu
from alula.cost.round import Setting
from alula.cost.units import size


def memory(setting: Setting, memory_bytes: float) -> Iterator[Finding]:
    """Do weights and keys fit into a GPU of `memory_bytes`?"""
    weights = weights_per_gpu(setting.shape, setting.layout)
    keys = kv_per_gpu(setting.shape, setting.layout, setting.batch * setting.context)
    if weights + keys <= memory_bytes:
        return
    yield Finding(
        "memory",
        "weights and keys lie in the GPUs' own memory",
        f"{size(weights)} of weights + {size(keys)} of keys for {size(memory_bytes)}",
        "impossible",
        f"{setting.shape.name} needs {size(weights + keys)} on each GPU of {size(memory_bytes)}",
        {"needed_gb": (weights + keys) / 1e9, "memory_gb": memory_bytes / 1e9},
    )


def no_exchange(claims: Claims, setting: Setting) -> Iterator[Finding]:
    """Is communication claimed of a GPU that is alone?"""
    said = (claims.allreduces, claims.allreduce_us, claims.communication_share)
    if exchanges(setting) or not any(said):
        return
    yield Finding(
        "communication on one GPU",
        "the model is on one GPU, as [setting] says",
        "0 all-reduces in a launch",
        "impossible",
        "one GPU exchanges nothing",
        {"allreduces": 0},
    )


def fastest_plain(claims: Claims, setting: Setting) -> Iterator[Finding]:
    """Can a plain step read its weights in that time?"""
    if claims.plain_tok_s is None:
        return
    most = ideal(setting).plain_tok_s()
    holds = claims.plain_tok_s <= most
    yield Finding(
        "plain decoding against the memory's bandwidth",
        "every step reads the weights once, and nothing else takes any time",
        f"{_reading(setting)} = at most {most:.1f} tok/s",
        "compatible" if holds else "impossible",
        f"{claims.plain_tok_s:g} tok/s are {claims.plain_tok_s / most:.0%} of the most that the "
        "memory allows",
        {"most_tok_s": most, "share": claims.plain_tok_s / most},
    )


def fastest_verification(claims: Claims, setting: Setting) -> Iterator[Finding]:
    """Can a verification read its weights in that time, and be shorter than a plain step?"""
    if claims.verify_ms is None:
        return
    least_ms = ideal(setting).step().total_s * 1e3
    if claims.verify_ms < least_ms:
        yield Finding(
            "verification against the memory's bandwidth",
            "it reads the weights once, for one row, and nothing else takes any time",
            f"{_reading(setting)}, not {claims.verify_ms:g} ms",
            "impossible",
            f"no launch takes less than {least_ms:.2f} ms, not {claims.verify_ms:g} ms",
            {"least_ms": least_ms},
        )
    elif claims.plain_tok_s is not None and claims.verify_ms * claims.plain_tok_s < 1e3:
        step_ms = 1e3 / claims.plain_tok_s
        yield Finding(
            "verification against a plain step",
            "both ran in the same engine; a verification has more rows",
            f"{claims.verify_ms:g} ms against 1/{claims.plain_tok_s:g} = {step_ms:.2f} ms",
            "differs",
            f"the verification is {step_ms - claims.verify_ms:.1f} ms shorter than a plain step, "
            "which must then hold as much beside its launch",
            {"step_ms": step_ms, "beside_ms": step_ms - claims.verify_ms},
        )


def tokens_of_a_round(case: Case) -> Iterator[Finding]:
    """Does a round emit at least its bonus token, and at most all of its draft?"""
    claims, steps = case.claims, case.assumed.draft_steps
    if claims.speculative_tok_s is None or claims.verify_ms is None:
        return
    tau = claims.speculative_tok_s * claims.verify_ms * 1e-3
    if tau < 1:
        beside_ms = 1e3 / claims.speculative_tok_s - claims.verify_ms
        yield Finding(
            "what a round takes beside its verification",
            "a round emits one token at least",
            f"1/{claims.speculative_tok_s:g} = {1e3 / claims.speculative_tok_s:.1f} ms a token",
            "implied",
            f"drafting and the host take at least {beside_ms:.1f} ms",
            {"beside_ms": beside_ms},
        )
    if steps is not None and tau > steps + 1:
        yield Finding(
            "tokens of a round against its draft",
            f"{steps} draft steps (assumed); drafting and the host take no time",
            f"{claims.speculative_tok_s:g} tok/s × {claims.verify_ms:g} ms = τ {tau:.2f}, "
            f"of at most {steps} + 1",
            "excluded",
            f"a round would emit {tau:.1f} tokens, and {steps} draft steps give {steps + 1}",
            {"tau": tau, "most": steps + 1},
        )


def _reading(setting: Setting) -> str:
    read_bytes = sum(work.read_bytes for work in setting.works())
    seconds = ideal(setting).step().total_s
    bandwidth = setting.speed.bandwidth_bytes_s
    return f"{size(read_bytes)} / {bandwidth / 1e9:g} GB/s = {seconds * 1e3:.2f} ms"
