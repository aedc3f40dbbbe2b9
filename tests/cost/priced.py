"""Settings that several tests price."""

from __future__ import annotations

from alula.cost.described import described_machine
from alula.cost.drafter import usual_drafter
from alula.cost.layout import layout_named
from alula.cost.machine import Machine, allreduce_named, speed
from alula.cost.reading.model import find_model
from alula.cost.round import Setting
from alula.machine.whatif import WhatIf


def machine(name: str = "8x-rtx-pro-6000") -> Machine:
    return described_machine(WhatIf(name))


def setting(
    model: str = "kimi-k2.5",
    on: str = "8x-rtx-pro-6000",
    *,
    layout: str = "tp",
    allreduce: str | None = None,
    context: int = 1024,
    batch: int = 1,
    host_s: float = 0.0,
) -> Setting:
    where, shape = machine(on), find_model(model)
    return Setting(
        shape,
        layout_named(layout, where.count),
        speed(where, allreduce_named(where, where.count, allreduce)),
        batch,
        context,
        usual_drafter(shape),
        host_s,
    )
