"""An estimate as a document."""

from __future__ import annotations

from alula.cost.draft import Acceptance, from_tau
from alula.cost.estimate import Estimate
from alula.cost.round import Round, best_choice, chains
from alula.cost.step import Step
from alula.cost.telling.document import Bar, Bars, Chart, Document, Mark, Segment, Table
from alula.cost.telling.facts import as_data, exchanges, read_bytes
from alula.cost.telling.notes import notes as own_notes
from alula.cost.telling.verdict import verdict
from alula.cost.units import count, size, us
from alula.errors import UsageError

_SHARES = (0.5, 0.6, 0.7, 0.8, 0.9)


def tell(found: Estimate, notes: tuple[str, ...] = ()) -> Document:
    """The verdict, what stands behind it, and the same as data."""
    blocks = (
        _model(found),
        _work(found),
        _bars(found),
        _launches(found),
        _chains(found),
        _chart(found),
        _remedies(found),
        Table(
            "Hard bounds",
            ("", "tok/s"),
            tuple((bound.name, f"{bound.tok_s:.1f}") for bound in found.bounds),
        ),
    )
    return Document(verdict(found), blocks, (*own_notes(found), *notes), as_data(found))


def _step_segments(step: Step) -> list[Segment]:
    """Where the time of a launch goes."""
    reading = [
        Segment(part.component.value, part.memory_s * 1e3) for part in step.parts if part.memory_s
    ]
    shown = [segment for segment in reading if segment.value >= 0.005]
    rest = sum(segment.value for segment in reading) - sum(segment.value for segment in shown)
    return [
        *shown,
        Segment("kernel latency", step.launch_s * 1e3),
        *([Segment("measured kernels", step.measured_s * 1e3)] if step.measured_s else []),
        *([Segment("all-reduces", step.exchange_s * 1e3)] if step.exchange_s else []),
        Segment("outside the layers", step.fixed_s * 1e3 + rest),
    ]


def _round_segments(whole: Round) -> tuple[Segment, ...]:
    return (
        *_step_segments(whole.verify),
        Segment("drafting", whole.drafting.total_s * 1e3),
        *([Segment("host", whole.host_s * 1e3)] if whole.host_s else []),
    )


def _bars(found: Estimate) -> Bars:
    return Bars(
        "Where the time goes",
        (
            Bar("plain step", tuple(_step_segments(found.plain))),
            Bar(f"round, {found.question.draft.name}", _round_segments(found.asked)),
        ),
    )


def _model(found: Estimate) -> Table:
    shape, layout = found.setting.shape, found.setting.layout
    rows = [
        ("parameters", f"{count(shape.parameters)}, {count(shape.active_parameters)} active"),
        ("weights on each GPU", size(found.weights_bytes)),
        (
            "keys and values",
            f"{shape.kv_bytes_per_token / 1e3:.1f} KB a token, "
            f"on {layout.kv_copies(shape)} of {layout.ranks} GPUs",
        ),
        ("read by a plain step, each GPU", size(read_bytes(found))),
    ]
    for kind, number, each in exchanges(found):
        rows.append((f"{kind}s in a launch", f"{number} of rows × {each:,} B"))
    return Table("The model", ("", ""), tuple(rows), wordy=True)


def _work(found: Estimate) -> Table:
    """What one launch does on each GPU, plain and with the asked draft."""
    setting, rows = found.setting, found.question.draft.rows
    pairs = list(zip(setting.works(), setting.works(rows), strict=True))
    headers = ["each GPU"]
    for what in ("reads", "operations"):
        headers += [f"{what}, 1 row", f"{what}, {rows} rows"]
    lines: list[tuple[str, ...]] = [
        (
            one.component.value,
            size(one.read_bytes),
            size(more.read_bytes),
            count(one.flops),
            count(more.flops),
            f"{one.launches:g}",
            ", ".join(_counted(each.count, each.kind) for each in one.collectives),
        )
        for one, more in pairs
    ]
    reads = (size(sum(work.read_bytes for work in each)) for each in zip(*pairs, strict=True))
    flops = (count(sum(work.flops for work in each)) for each in zip(*pairs, strict=True))
    kernels = f"{sum(one.launches for one, _ in pairs):g}"
    lines.append(("all", *reads, *flops, kernels, ""))
    return Table("What a launch does", (*headers, "kernels", "exchanges"), tuple(lines))


def _counted(number: int, kind: str) -> str:
    return f"{number} {kind}" if number == 1 else f"{number} {kind}s"


def _launches(found: Estimate) -> Table:
    measured = any(step.measured_s for step in found.launches.values())
    headers = ("rows", "reading ms", "kernels ms", *(["measured ms"] if measured else []))
    rows = []
    for number, step in found.launches.items():
        times = [step.memory_s, step.launch_s, *([step.measured_s] if measured else [])]
        times += [step.exchange_s, step.fixed_s, step.total_s]
        each = us(found.setting.exchange_s(number)) if found.setting.layout.ranks > 1 else "none"
        rows.append((str(number), *(f"{time_s * 1e3:.2f}" for time_s in times), each))
    headers = (*headers, "all-reduces ms", "fixed ms", "all ms", "each all-reduce")
    return Table("A launch by rows", headers, tuple(rows))


def _chains(found: Estimate) -> Table:
    """Each draft, and the best chain of any length."""
    known = found.question.acceptance is not None
    headers = ["draft", "verify ms", "round ms", "break-even τ", "acceptance needed"]
    headers += ["τ", "tok/s"] if known else [f"tok/s at {share:g}" for share in _SHARES]
    asked = [] if any(r.draft == found.asked.draft for r in found.rounds) else [found.asked]
    rows = []
    for whole in (*asked, *found.rounds):
        needed = whole.total_s / found.plain.total_s
        cells = [f"{whole.verify.total_s * 1e3:.1f}", f"{whole.total_s * 1e3:.1f}"]
        cells += [f"{needed:.2f}", _needed_acceptance(whole, needed)]
        rows.append((whole.draft.name, *cells, *_speeds(found, whole)))
    rows.append(("best", *[""] * 4, *_best(found)))
    return Table("Drafts, by the acceptance of each draft token", tuple(headers), tuple(rows))


def _speeds(found: Estimate, whole: Round) -> list[str]:
    """Tokens a second of one draft; with its τ where acceptance is known."""
    batch, depth = found.setting.batch, whole.draft.depth
    if found.question.acceptance is not None:
        tau = found.question.acceptance.tau(depth)
        return [f"{tau:.2f}", f"{batch * tau / whole.total_s:.1f}"]
    taus = [Acceptance((share,), "").tau(depth) for share in _SHARES]
    return [f"{batch * tau / whole.total_s:.0f}" for tau in taus]


def _best(found: Estimate) -> list[str]:
    """The fastest chain, or plain decoding."""
    if found.question.acceptance is not None:
        return [found.best.name, f"{found.best.tok_s:.1f}"]
    choices = (best_choice(found.setting, Acceptance((s,), ""), chains()) for s in _SHARES)
    return [choice.name for choice in choices]


def _needed_acceptance(whole: Round, needed: float) -> str:
    """The same at every depth, so that the draft breaks even."""
    try:
        return f"{from_tau(max(needed, 1.0), whole.draft).conditional[0]:.2f}"
    except UsageError:
        return "impossible"


def _chart(found: Estimate) -> Chart:
    whole, acceptance, public = found.asked, found.question.acceptance, found.public
    at_ms = whole.total_s * 1e3
    if acceptance is not None:
        marks = [
            Mark(r.draft.name, r.total_s * 1e3, acceptance.tau(r.draft.depth))
            for r in dict.fromkeys((whole, *found.rounds))
        ]
    elif public is not None:
        marks = [
            Mark(f"{whole.draft.name}, public low", at_ms, public.tau_low),
            Mark(f"{whole.draft.name}, public high", at_ms, public.tau_high),
        ]
    else:
        marks = [Mark(f"{whole.draft.name}, break-even", at_ms, found.break_even)]
    marks.append(Mark("plain", found.plain.total_s * 1e3, 1.0))
    speed = 1.0 / found.plain.total_s
    in_order = tuple(sorted(marks, key=lambda mark: mark.round_ms))
    return Chart("Break-even: above the thick line it pays", speed, in_order)


def _remedies(found: Estimate) -> Table:
    rows = [] if found.question.acceptance is None else [_fewer_rows(found)]
    rows += [
        (
            worth.remedy.name,
            f"{worth.plain_tok_s:.1f}",
            f"{worth.break_even:.2f}",
            f"{worth.best.name} {worth.best.tok_s:.1f}",
            f"{worth.gain_tok_s:+.1f}",
            worth.remedy.needs,
        )
        for worth in sorted(found.worths, key=lambda each: -each.gain_tok_s)
    ]
    title = "What each remedy is worth: best setting with it, less best without"
    if found.question.acceptance is None:
        title += " (acceptance unknown: plain decoding only)"
    return Table(
        title, ("", "plain tok/s", "break-even τ", "best", "worth tok/s", "takes"), tuple(rows)
    )


def _fewer_rows(found: Estimate) -> tuple[str, ...]:
    asked = found.question.draft.name
    best = f"{found.best.name} {found.best.tok_s:.1f}"
    plain, gain = f"{found.plain_tok_s:.1f}", f"{found.fewer_rows_tok_s:+.1f}"
    return (f"the best chain, not {asked}", plain, "", best, gain, "a setting")
