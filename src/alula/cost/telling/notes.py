"""Where the figures of an estimate come from, and how far they hold."""

from __future__ import annotations

from alula.cost.estimate import Estimate
from alula.cost.units import ms, us

_LONG = 48 * 1024
"""Tokens of context where predictions leave 15 % of what was measured (docs/estimate.md)."""


def notes(found: Estimate) -> list[str]:
    """What was taken from where; what is assumed, extrapolated or known to be off."""
    setting, machine = found.setting, found.machine
    layout, constants = setting.layout, setting.speed.constants
    told = [
        f"Predicted, not run: {constants.bandwidth_share:.0%} of {machine.device.name}'s "
        f"{machine.device.bandwidth_bytes_s / 1e9:.0f} GB/s, {us(constants.launch_s)} a kernel, "
        f"{ms(constants.fixed_s)} outside the layers; batch {setting.batch}, context "
        f"{setting.context}, rows choose experts independently.",
    ]
    if layout.ranks > 1:
        allreduce = setting.speed.allreduce
        told.append(f"All-reduces: {allreduce.name} ({allreduce.source}).")
        beyond = [n for n in found.launches if not allreduce.covers(setting.payload_bytes(n))]
        if beyond:
            told.append(f"Extrapolated beyond that table: {', '.join(map(str, beyond))} rows.")
    if setting.drafter is not None:
        drafter = setting.drafter
        told.append(
            f"The drafter is taken to be an EAGLE-3 layer {drafter.hidden} wide with an MLP of "
            f"{drafter.width} and {drafter.vocab:,} tokens, in bf16, on all ranks."
        )
    if setting.context > _LONG:
        told.append(
            f"At more than {_LONG:,} tokens of context attention kernels reach less of the "
            "bandwidth than is taken here: published steps were 15 % longer at 64k, 24 % at 128k."
        )
    if found.question.acceptance is not None:
        told.append(f"Acceptance: {found.question.acceptance.origin}.")
    if found.public is not None:
        name = found.public.name
        told.append(f"{name[0].upper()}{name[1:]}: {found.public.source}.")
    return told
