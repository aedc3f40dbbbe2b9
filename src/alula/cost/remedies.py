"""What each remedy is worth: the best setting with it against the best without it.

A remedy that speeds up plain steps as well can make speculation pay less, so the best of both
sides may be plain decoding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from alula.cost.allreduce import AllReduce, FlatAllReduce
from alula.cost.draft import Acceptance, Draft
from alula.cost.formats import FORMATS
from alula.cost.layout import Layout, check
from alula.cost.round import Choice, Setting, best_choice, chains
from alula.cost.step import Speed
from alula.errors import UsageError


@dataclass(frozen=True)
class Remedy:
    """A change of the setting."""

    name: str
    setting: Setting
    needs: str
    """What having it takes."""


@dataclass(frozen=True)
class Worth:
    """What a remedy brings."""

    remedy: Remedy
    plain_tok_s: float
    break_even: float
    best: Choice
    gain_tok_s: float


def with_allreduce(setting: Setting, allreduce: AllReduce) -> Setting:
    """The setting with other all-reduces."""
    return setting.with_speed(replace(setting.speed, allreduce=allreduce))


def remedies(setting: Setting, others: dict[str, tuple[AllReduce, str]]) -> list[Remedy]:
    """Remedies the layout allows and lacks; `others` are the machine's all-reduces, by name."""
    possible = []
    for remedy in _all(setting, others):
        try:
            check(remedy.setting.shape, remedy.setting.layout)
        except UsageError:
            continue
        if remedy.setting != setting:
            possible.append(remedy)
    return possible


def _all(setting: Setting, others: dict[str, tuple[AllReduce, str]]) -> Iterator[Remedy]:
    if setting.layout.ranks > 1:
        yield from _cheaper(setting, others)
        yield from _replicated(setting)
        fused = replace(setting.layout, fused_norm=True)
        yield _remedy("all-reduce and norm fused", setting, layout=fused, needs="a fused kernel")
    half = replace(setting.layout, launch_share=setting.layout.launch_share / 2)
    yield _remedy("half the kernels fused", setting, layout=half, needs="fused kernels")
    for name in _smaller(setting):
        yield _remedy(
            f"attention in {name}",
            setting,
            attention=name,
            needs="a check of the model's accuracy",
        )
    if setting.shape.experts is not None and setting.layout.ranks > 1:
        for combine in ("all-reduce", "all-to-all"):
            spread = replace(setting.layout, experts="expert", combine=combine)
            yield _remedy(
                f"expert parallelism, {combine}", setting, layout=spread, needs="a setting"
            )


def _smaller(setting: Setting) -> list[str]:
    """Formats that would make the attention's weights smaller than they are."""
    now = setting.shape.formats.attention.bytes_per_weight
    return [name for name in ("fp8", "int4-g32") if FORMATS[name].bytes_per_weight < now]


def _cheaper(setting: Setting, others: dict[str, tuple[AllReduce, str]]) -> Iterator[Remedy]:
    for name, (allreduce, needs) in others.items():
        if allreduce != setting.speed.allreduce:
            yield Remedy(f"all-reduce: {name}", with_allreduce(setting, allreduce), needs)
    free = FlatAllReduce(0.0, "free")
    yield Remedy("all-reduce: free", with_allreduce(setting, free), "impossible: the bound")


def _replicated(setting: Setting) -> Iterator[Remedy]:
    whole = replace(setting.layout, attention="replicated")
    yield _remedy("attention replicated", setting, layout=whole, needs="memory")
    for name in _smaller(setting):
        yield _remedy(
            f"attention replicated in {name}",
            setting,
            layout=whole,
            attention=name,
            needs="memory, and a check of the model's accuracy",
        )


def _remedy(
    name: str,
    setting: Setting,
    *,
    needs: str,
    layout: Layout | None = None,
    attention: str | None = None,
) -> Remedy:
    shape = setting.shape
    if attention is not None:
        shape = shape.with_attention(FORMATS[attention])
    changed = replace(setting, shape=shape, layout=layout or setting.layout)
    return Remedy(name, changed, needs)


def worth(remedy: Remedy, best_now: Choice, draft: Draft, acceptance: Acceptance | None) -> Worth:
    """The best setting with the remedy against `best_now`, plain decoding included in both."""
    setting = remedy.setting
    best = best_choice(setting, acceptance, [draft, *chains()])
    return Worth(
        remedy,
        setting.plain_tok_s(),
        setting.break_even(draft),
        best,
        best.tok_s - best_now.tok_s,
    )


def fewer_rows(setting: Setting, draft: Draft, acceptance: Acceptance | None) -> float:
    """Gain, in tok/s, of choosing the best chain over the better of plain and the asked draft."""
    free = best_choice(setting, acceptance, [draft, *chains()])
    return free.tok_s - best_choice(setting, acceptance, [draft]).tok_s


def ideal_speed(speed: Speed) -> Speed:
    """Nominal bandwidth, no latency, free exchanges: what no engine can pass."""
    constants = replace(speed.constants, bandwidth_share=1.0, launch_s=0.0, fixed_s=0.0)
    return replace(speed, constants=constants, allreduce=FlatAllReduce(0.0, "free"))
