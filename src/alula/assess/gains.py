"""What there is to gain, in tokens a second: by the model of costs, and by what was claimed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from alula.assess.situation import Situation
from alula.cost.answer import Asked, claims_checked, setting_of
from alula.cost.claims.check import Check
from alula.cost.described import described_machine
from alula.cost.draft import Acceptance, chain, from_tau
from alula.cost.estimate import Estimate, Question, estimate
from alula.cost.machine import KnownDrafter, Machine, known_drafter
from alula.cost.round import Setting, best_choice, chains
from alula.errors import UsageError

_DEEPEST = 8
"""Of the drafts that public drafters are measured with."""
FREE = "all-reduce: free"


class Gain(NamedTuple):
    """A range of tokens a second, and where it comes from."""

    low: float
    high: float
    source: str

    @property
    def middle(self) -> float:
        """Of the range."""
        return (self.low + self.high) / 2

    def __str__(self) -> str:
        low, high = f"{self.low:+.0f}", f"{self.high:+.0f}"
        return low if low == high else f"{low} to {high}"


class Bound(NamedTuple):
    """The most that a kind of change can reach, under a reading of what is known."""

    name: str
    reading: str
    tok_s: float
    source: str


class Public(NamedTuple):
    """A model's public drafters, and the depth their figures are taken to hold for."""

    drafter: KnownDrafter
    depth: int

    def acceptance(self, tau: float) -> Acceptance:
        """What it takes to reach an accepted length."""
        return from_tau(tau, chain(self.depth))


class Assumption(NamedTuple):
    """How many drafts are accepted, and who says so."""

    acceptance: Acceptance
    said: str


@dataclass(frozen=True)
class Gains:
    """Everything that can be priced; empty where nothing can."""

    tok_s: float | None = None
    """The best that is known: measured or claimed, else of the model."""
    tok_s_from: str = ""
    rows: int | None = None
    """Of the fastest draft at the least acceptance; None where none pays or is known."""
    remedies: dict[str, Gain] | None = None
    bounds: tuple[Bound, ...] = ()
    check: Check | None = None
    why_not: str = ""
    """Why nothing was priced."""
    predicted: tuple[tuple[str, str], ...] = ()
    """What to measure next, and what it should show."""

    def of(self, remedy: str) -> Gain | None:
        """What the first remedy so named brings beside the best draft; None if it has no price."""
        known = self.remedies or {}
        return next((known[name] for name in known if name.startswith(remedy)), None)


def price_gains(situation: Situation) -> Gains:
    """Price what the situation allows. Raises ModelError for a model that was named and is none."""
    check = claims_checked(situation.case) if situation.case else None
    if not situation.model:
        return _unpriced(situation, check, "no model is known")
    asked = Asked(situation.model, situation.what_if, ranks=situation.ranks)
    try:
        machine = described_machine(situation.what_if)
        setting, _ = setting_of(asked, machine)
    except UsageError as error:
        return _unpriced(situation, check, f"{error.what}: {error.why}")
    return _priced(situation, machine, setting, check)


def _unpriced(situation: Situation, check: Check | None, why_not: str) -> Gains:
    said = "the baseline" if situation.tok_s else ""
    bounds = tuple(_claimed(check))
    return Gains(situation.tok_s, said, bounds=bounds, check=check, why_not=why_not)


def _priced(situation: Situation, machine: Machine, setting: Setting, check: Check | None) -> Gains:
    ranks = setting.layout.ranks
    source = f"alula estimate {situation.model} --machine {machine.name} --tp {ranks}"
    public = _public(setting.shape.name)
    assumed = tuple(_assumptions(public, check))
    draft = chain(public.depth if public else 1)
    acceptances: list[Acceptance | None] = [each.acceptance for each in assumed] or [None]
    estimates = [estimate(machine, setting, Question(draft, each)) for each in acceptances]
    if not estimates[0].fits:
        return _unpriced(situation, check, f"{situation.model} does not fit into the GPUs' memory")
    remedies, rows = _remedies(estimates, source), _best_rows(setting, assumed, draft.depth)
    if rows is not None:
        remedies["rows"] = _rows_gain(setting, assumed, rows, source)
    if public is not None:
        remedies["drafter"] = _better_drafter(setting, public, source)
    plain = setting.plain_tok_s()
    return Gains(
        tok_s=situation.tok_s or plain,
        tok_s_from="the baseline" if situation.tok_s else source,
        rows=rows,
        remedies=remedies,
        bounds=(*_kept(rows, remedies, plain), *_modelled(estimates, source), *_claimed(check)),
        check=check,
        predicted=_predicted(setting),
    )


def _best_rows(setting: Setting, assumed: Sequence[Assumption], deepest: int) -> int | None:
    """Rows of the fastest chain at the least acceptance; None where plain steps are faster.

    Nobody knows what is accepted beyond the depth that drafters are measured with.
    """
    if not assumed:
        return None
    known = [each for each in chains() if each.depth <= deepest]
    best = best_choice(setting, assumed[0].acceptance, known).draft
    return best.rows if best else None


def _rows_gain(setting: Setting, assumed: Sequence[Assumption], rows: int, source: str) -> Gain:
    """Of a chain with so many rows over plain steps."""
    draft, plain = chain(rows - 1), setting.plain_tok_s()
    gains = [
        setting.speculative_tok_s(draft, each.acceptance.tau(draft.depth)) - plain
        for each in assumed
    ]
    told = f"{source} --draft {draft.name}; {'; '.join(each.said for each in assumed)}"
    return Gain(min(gains), max(gains), told)


def _public(model: str) -> Public | None:
    for depth in range(1, _DEEPEST + 1):
        if found := known_drafter(model, depth):
            return Public(found, depth)
    return None


def _assumptions(public: Public | None, check: Check | None) -> Iterator[Assumption]:
    """The least that public drafters reach, and what the claims come to."""
    if public is not None:
        least, name = public.drafter.tau_low, public.drafter.name
        said = f"τ {least:g} with {public.depth} drafts, the least of {name}"
        yield Assumption(public.acceptance(least), f"{said} ({public.drafter.source})")
    if check is None:
        return
    tau = _figure(check, "bound: the weights dominate", "tau")
    steps = check.case.assumed.draft_steps
    if tau is not None and steps is not None and 1 <= tau <= steps + 1:
        said = f"τ {tau:.2f} with {steps} drafts, as the claims imply"
        yield Assumption(from_tau(tau, chain(steps)), said)


def _remedies(estimates: Iterable[Estimate], source: str) -> dict[str, Gain]:
    found: dict[str, list[float]] = {}
    for each in estimates:
        for worth in each.worths:
            found.setdefault(worth.remedy.name, []).append(worth.gain_tok_s)
    return {
        name: Gain(min(values), max(values), f"{source}, remedy {name!r}")
        for name, values in found.items()
    }


def _better_drafter(setting: Setting, public: Public, source: str) -> Gain:
    """From the least to the most that public drafters reach."""
    known = public.drafter
    least, most = (
        best_choice(setting, public.acceptance(tau), chains()).tok_s
        for tau in (known.tau_low, known.tau_high)
    )
    told = f"{source} --tau {known.tau_low:g} against --tau {known.tau_high:g}; {known.source}"
    return Gain(0.0, most - least, told)


def _kept(rows: int | None, remedies: dict[str, Gain], plain: float) -> Iterator[Bound]:
    """What there is without any change, to compare with."""
    if rows is not None:
        gain = remedies["rows"]
        yield Bound("no change", f"at {rows} verify rows", plain + gain.high, gain.source)


def _modelled(estimates: Iterable[Estimate], source: str) -> Iterator[Bound]:
    free = [
        worth.best.tok_s for each in estimates for worth in each.worths if worth.remedy.name == FREE
    ]
    if free:
        reading = "if every all-reduce is free; the best draft, or none"
        yield Bound("the model of costs", reading, max(free), f"{source}, remedy {FREE!r}")


def _claimed(check: Check | None) -> Iterator[Bound]:
    if check is None:
        return
    for finding in check.findings:
        if finding.name.startswith("bound:") and "tok_s" in finding.figures:
            name = finding.name.removeprefix("bound: ")
            source = f"alula estimate --check: {finding.arithmetic}"
            reading = f"if {finding.reading}"
            yield Bound(f"the claims: {name}", reading, finding.figures["tok_s"], source)


def _figure(check: Check, name: str, figure: str) -> float | None:
    found = (each.figures.get(figure) for each in check.findings if each.name == name)
    return next(found, None)


def _predicted(setting: Setting) -> tuple[tuple[str, str], ...]:
    one, many = (setting.step(rows).total_s * 1e3 for rows in (1, 16))
    told = [("a launch with 1 row and with 16 rows", f"by the model: {one:.0f} and {many:.0f} ms")]
    if setting.layout.ranks > 1:
        small, large = (setting.exchange_s(rows) * 1e6 for rows in (1, 16))
        sizes = " and of ".join(f"{setting.payload_bytes(rows) / 1024:.0f} KiB" for rows in (1, 16))
        told.append(
            (
                f"one all-reduce of {sizes} inside a graph",
                f"by the model: {small:.0f} and {large:.0f} µs",
            )
        )
    return tuple(told)
