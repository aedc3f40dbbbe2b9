"""From what a person asks to a document that answers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from alula.cost.allreduce import LinkAllReduce
from alula.cost.claims.case import Case, read_case
from alula.cost.claims.check import Check, check_claims
from alula.cost.claims.implied import SHORT_CHAIN
from alula.cost.described import described_machine
from alula.cost.draft import (
    Acceptance,
    Draft,
    from_conditional,
    from_survival,
    from_tau,
    parse_draft,
)
from alula.cost.drafter import usual_drafter
from alula.cost.estimate import Question, estimate
from alula.cost.formats import format_named
from alula.cost.layout import check, layout_named
from alula.cost.machine import (
    HostTime,
    Machine,
    allreduce_named,
    host_time,
    known_drafter,
    speed,
)
from alula.cost.reading.model import find_model
from alula.cost.round import Setting
from alula.cost.telling.check import tell_check
from alula.cost.telling.document import Document, Table
from alula.cost.telling.estimate import tell
from alula.cost.units import parse_time
from alula.errors import UsageError
from alula.machine.whatif import WhatIf

if TYPE_CHECKING:
    from alula.cost.measured import Measured


@dataclass(frozen=True)
class Asked:
    """A question as it is typed."""

    model: str
    what_if: WhatIf
    ranks: int | None = None
    layout: str = "tp"
    weights: str | None = None
    attention: str | None = None
    allreduce: str | None = None
    rows: tuple[int, ...] = (1, 2, 4, 8, 16)
    context: int = 1024
    batch: int = 1
    draft: str = "chain:3"
    acceptance: tuple[float, ...] = ()
    survival: tuple[float, ...] = ()
    tau: float | None = None
    host: str | None = None
    measured: Path | None = None


def answer(asked: Asked) -> Document:
    """Estimate one setting. Everything typed is checked before anything is computed."""
    draft = parse_draft(asked.draft)
    acceptance = _acceptance(asked, draft)
    machine = described_machine(asked.what_if)
    setting, notes = setting_of(asked, machine)
    table: tuple[Table, ...] = ()
    calibration: dict[str, object] | None = None
    if asked.measured is not None:
        setting, table, told, calibration = _calibrated(setting, asked, asked.measured)
        notes = (*notes, *told)
    question = Question(draft, acceptance, asked.rows, _changes(asked), _best_case(asked, setting))
    found = estimate(machine, setting, question)
    document = tell(found, notes)
    data = {**document.data, "calibration": calibration}
    return replace(document, blocks=(*document.blocks, *table), data=data)


def answer_claims(path: Path) -> Document:
    """Check a file of claims."""
    return tell_check(claims_checked(read_case(path)))


def claims_checked(case: Case) -> Check:
    """What follows from a file of claims."""
    what_if = WhatIf(case.machine)
    host = None if case.assumed.host_ms is None else f"{case.assumed.host_ms}ms"
    asked = Asked(
        case.model,
        what_if,
        ranks=case.ranks,
        context=case.context,
        host=host,
    )
    machine = described_machine(what_if)
    setting, _ = setting_of(asked, machine)
    drafter = known_drafter(setting.shape.name, SHORT_CHAIN)
    return check_claims(case, setting, drafter, machine.device.memory_bytes)


def setting_of(asked: Asked, machine: Machine) -> tuple[Setting, tuple[str, ...]]:
    """What a question fixes, and remarks on it. Raises UsageError or ModelError."""
    shape = find_model(asked.model)
    if asked.weights is not None:
        shape = shape.with_weights(format_named(asked.weights))
    if asked.attention is not None:
        shape = shape.with_attention(format_named(asked.attention))
    ranks = _ranks(asked, machine)
    layout = layout_named(asked.layout, ranks)
    check(shape, layout, machine.count)
    if ranks == 1 and asked.allreduce is not None:
        raise _nothing_to_exchange("--allreduce")
    if ranks == 1 and asked.layout != "tp":
        raise _nothing_to_exchange(f"--layout {asked.layout}")
    host, note = _host(asked, machine, ranks)
    own = speed(machine, allreduce_named(machine, ranks, asked.allreduce))
    setting = Setting(
        shape, layout, own, asked.batch, asked.context, usual_drafter(shape), host.each_s
    )
    notes: tuple[str, ...] = (note,)
    if asked.what_if.driver is not None:
        notes += (f"The driver, {asked.what_if.driver}, changes no estimate.",)
    return setting, notes


def _changes(asked: Asked) -> tuple[str, ...]:
    """What was asked for, as the verdict names it."""
    wanted = (
        (None if asked.layout == "tp" else asked.layout, "layout {}"),
        (asked.weights, "weights in {}"),
        (asked.attention, "attention in {}"),
        (asked.allreduce, "all-reduces {}"),
        (asked.host, "host {}"),
        (asked.measured and asked.measured.name, "calibrated by {}"),
    )
    return tuple(text.format(value) for value, text in wanted if value is not None)


def _best_case(asked: Asked, setting: Setting) -> tuple[str, ...]:
    """What nobody measured on such a machine, so that the estimate takes it at its best."""
    taken = []
    if asked.host is None and setting.host_s == 0:
        taken.append("no host time in a round")
    exchanging = setting.layout.ranks > 1 and asked.allreduce is None
    if exchanging and isinstance(setting.speed.allreduce, LinkAllReduce):
        taken.append(f"all-reduces at the {setting.speed.allreduce.name}")
    return tuple(taken)


def _ranks(asked: Asked, machine: Machine) -> int:
    ranks = machine.count if asked.ranks is None else asked.ranks
    if ranks > machine.count:
        raise UsageError(
            f"--tp {ranks} needs more GPUs than there are",
            f"the machine is {machine.title}",
            f"take --tp {machine.count} or less, or describe a larger machine",
        )
    return ranks


def _host(asked: Asked, machine: Machine, ranks: int) -> tuple[HostTime, str]:
    """What the host adds to a round: as said, as observed elsewhere, or nothing."""
    if asked.host is not None:
        given = HostTime(parse_time(asked.host, "--host"), "--host", "--host")
        return given, f"Host time in a round: {asked.host}, as given."
    known = host_time(machine, ranks)
    if known is None:
        note = "Host time in a round: none on record for such a machine, taken as 0 (see --host)."
        return HostTime(0.0, "", ""), note
    note = (
        f"Host time in a round: {known.each_s * 1e3:g} ms, {known.engine}: {known.source}. "
        "An engine with one launch a round has less: --host 0ms."
    )
    return known, note


def _acceptance(asked: Asked, draft: Draft) -> Acceptance | None:
    given = [bool(asked.acceptance), bool(asked.survival), asked.tau is not None]
    if sum(given) > 1:
        raise UsageError(
            "acceptance was given twice",
            "--acceptance (conditional), --survival (cumulative) and --tau say the same thing",
            "keep one of them",
        )
    if asked.acceptance:
        return from_conditional(asked.acceptance)
    if asked.survival:
        return from_survival(asked.survival)
    return None if asked.tau is None else from_tau(asked.tau, draft)


def _calibrated(
    setting: Setting, asked: Asked, path: Path
) -> tuple[Setting, tuple[Table, ...], tuple[str, ...], dict[str, object] | None]:
    """The setting with what was measured in place of what was assumed."""
    # Fitting needs numpy, which takes its time to import.
    from alula.cost.calibrate import fit
    from alula.cost.measured import read_measured
    from alula.cost.telling.fit import fit_data, fit_notes, fit_table

    measured = read_measured(path)
    _refuse_unused(measured, setting, asked)
    allreduce = measured.allreduce or setting.speed.allreduce
    setting = setting.with_speed(
        replace(setting.speed, allreduce=allreduce, kernels=measured.kernels)
    )
    points = measured.points(setting)
    if not points:
        return setting, (), (f"Used as they were measured: {path.name}.",), None
    found = fit(points)
    own = replace(setting.speed, constants=found.constants(setting.speed.constants))
    host_s = found.host_s if any(point.draft for point in points) else setting.host_s
    calibrated = replace(setting, speed=own, host_s=host_s)
    return calibrated, (fit_table(found),), fit_notes(found, path.name), fit_data(found)


def _refuse_unused(measured: Measured, setting: Setting, asked: Asked) -> None:
    """What was measured, or asked, and plays no part here would be ignored in silence."""
    if measured.allreduce is not None and asked.allreduce is not None:
        raise _twice("--allreduce", "`allreduces`")
    if asked.host is not None and any("round_ms" in entry for entry in measured.entries):
        raise _twice("--host", "the host's time in its rounds")
    if measured.allreduce is not None and setting.layout.ranks == 1:
        raise _nothing_to_exchange("`allreduces`")
    present = {part.component for part in setting.step().parts}
    for table in measured.kernels:
        if table.component not in present:
            raise UsageError(
                f"kernels of {table.component.value!r} were measured for another model",
                f"{setting.shape.name} has {', '.join(part.value for part in sorted(present))}",
                "remove them from the file",
            )


def _twice(flag: str, measured: str) -> UsageError:
    return UsageError(
        f"{flag} was given, and measured as well",
        f"the file of --measured holds {measured}",
        f"leave {flag} out, or remove them from the file",
    )


def _nothing_to_exchange(what: str) -> UsageError:
    return UsageError(
        f"{what} has no meaning on one GPU", "it exchanges nothing", "leave it out, or raise --tp"
    )
