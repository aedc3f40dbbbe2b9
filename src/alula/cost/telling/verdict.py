"""An estimate in one sentence: does speculation pay?"""

from __future__ import annotations

from alula.cost.estimate import Estimate
from alula.cost.units import size

_SHORT = 1024


def verdict(found: Estimate) -> str:
    """One sentence: does speculation pay? A second one where the first takes the best case."""
    taken = " and ".join(found.question.best_case)
    return f"{_sentence(found)} Best case: {taken}." if taken else _sentence(found)


def _sentence(found: Estimate) -> str:
    plain = found.plain_tok_s
    where = f"{found.setting.shape.name} on {_where(found)}"
    draft, needed, tau = found.question.draft.name, found.break_even, found.tau
    if not found.fits:
        needs = size(found.weights_bytes + found.kv_bytes)
        return (
            f"{where}: it does not fit, {needs} of weights and keys for each GPU's "
            f"{size(found.machine.device.memory_bytes)}; if it did, {plain:.1f} tok/s plain."
        )
    if tau is None:
        return f"{where}: {plain:.1f} tok/s plain; {draft} pays from τ {needed:.2f}{_public(found)}"
    speed = found.setting.speculative_tok_s(found.question.draft, tau)
    pays = "pays" if tau >= needed else "does not pay"
    return (
        f"{where}: {draft} {pays}: it needs τ {needed:.2f} and gets {tau:.2f}, "
        f"{speed:.1f} tok/s against {plain:.1f} plain{_best(found)}."
    )


def _best(found: Estimate) -> str:
    if found.best.draft is None:
        return "; no chain does"
    if found.best.draft == found.question.draft:
        return ""
    return f"; the best is {found.best.name} at {found.best.tok_s:.1f}"


def _where(found: Estimate) -> str:
    """The machine, and what differs from one short sequence on all of it."""
    setting, machine = found.setting, found.machine
    ranks = setting.layout.ranks
    parts = [machine.title if ranks == machine.count else f"{ranks} of {machine.title}"]
    if setting.batch > 1:
        parts.append(f"batch {setting.batch}")
    if setting.context > _SHORT:
        parts.append(f"context {setting.context:,}")
    return ", ".join([*parts, *found.question.changes])


def _public(found: Estimate) -> str:
    public = found.public
    if public is None:
        return "; measure what your drafter reaches (alula bench decode)."
    return (
        f"; {public.name} reach {public.tau_low:g} to {public.tau_high:g}, yours may not: "
        "measure it."
    )
