"""An estimate as data for programs; every key names its unit."""

from __future__ import annotations

from typing import Any

from alula.cost.estimate import Estimate
from alula.cost.formats import Format
from alula.cost.round import Round
from alula.cost.step import Part, Step
from alula.cost.work import Work


def as_data(found: Estimate) -> dict[str, Any]:
    """Everything an estimate holds."""
    setting, question = found.setting, found.question
    return {
        "model": setting.shape.name,
        "machine": found.machine.name,
        "ranks": setting.layout.ranks,
        "layout": {
            "attention": setting.layout.attention,
            "experts": setting.layout.experts,
            "combine": setting.layout.combine,
        },
        "formats": {
            part: form.name
            for part, form in vars(setting.shape.formats).items()
            if isinstance(form, Format)
        },
        "changes": question.changes,
        "best_case": question.best_case,
        "batch": setting.batch,
        "context_tokens": setting.context,
        "parameters": setting.shape.parameters,
        "active_parameters": setting.shape.active_parameters,
        "weights_bytes_per_gpu": found.weights_bytes,
        "kv_bytes_per_token": setting.shape.kv_bytes_per_token,
        "read_bytes_per_gpu": read_bytes(found),
        "fits": found.fits,
        "exchanges": [
            {"kind": kind, "count": number, "bytes_per_row": each}
            for kind, number, each in exchanges(found)
        ],
        "allreduce": setting.speed.allreduce.name,
        "plain": {"tok_s": found.plain_tok_s, **_step_data(found.plain, setting.works())},
        "launches": [
            {"rows": rows, **_step_data(step, setting.works(rows))}
            for rows, step in found.launches.items()
        ],
        "round": _round_data(found, found.asked),
        "chains": [_round_data(found, whole) for whole in found.rounds],
        "tau": found.tau,
        "acceptance": None if question.acceptance is None else question.acceptance.conditional,
        "best": {"draft": found.best.name, "tok_s": found.best.tok_s},
        "remedies": [
            {
                "name": worth.remedy.name,
                "needs": worth.remedy.needs,
                "plain_tok_s": worth.plain_tok_s,
                "break_even": worth.break_even,
                "best": {"draft": worth.best.name, "tok_s": worth.best.tok_s},
                "worth_tok_s": worth.gain_tok_s,
            }
            for worth in found.worths
        ],
        "fewer_rows_tok_s": found.fewer_rows_tok_s,
        "bounds": [{"name": bound.name, "tok_s": bound.tok_s} for bound in found.bounds],
    }


def _step_data(step: Step, works: tuple[Work, ...]) -> dict[str, Any]:
    return {
        "total_ms": step.total_s * 1e3,
        "memory_ms": step.memory_s * 1e3,
        "launch_ms": step.launch_s * 1e3,
        "exchange_ms": step.exchange_s * 1e3,
        "measured_ms": step.measured_s * 1e3,
        "fixed_ms": step.fixed_s * 1e3,
        "components": [
            _component_data(part, work) for part, work in zip(step.parts, works, strict=True)
        ],
    }


def _component_data(part: Part, work: Work) -> dict[str, Any]:
    return {
        "name": part.component.value,
        "read_bytes": work.read_bytes,
        "flops": work.flops,
        "launches": work.launches,
        "memory_ms": part.memory_s * 1e3,
        "launch_ms": part.launch_s * 1e3,
        "exchange_ms": part.exchange_s * 1e3,
        "measured_ms": part.measured_s * 1e3,
    }


def _round_data(found: Estimate, whole: Round) -> dict[str, Any]:
    return {
        "draft": whole.draft.name,
        "rows": whole.draft.rows,
        "total_ms": whole.total_s * 1e3,
        "verify_ms": whole.verify.total_s * 1e3,
        "drafting_ms": whole.drafting.total_s * 1e3,
        "host_ms": whole.host_s * 1e3,
        "break_even": whole.total_s / found.plain.total_s,
    }


def exchanges(found: Estimate) -> list[tuple[str, int, int]]:
    """Kinds of exchange in a launch: how many, and the bytes for one row of each sequence."""
    kinds: dict[str, tuple[int, int]] = {}
    for work in found.setting.works():
        for each in work.collectives:
            before, _ = kinds.get(each.kind, (0, 0))
            kinds[each.kind] = (before + each.count, each.size_bytes)
    return [(kind, number, each) for kind, (number, each) in kinds.items()]


def read_bytes(found: Estimate) -> float:
    """By one plain step, on each GPU."""
    return sum(work.read_bytes for work in found.setting.works())
