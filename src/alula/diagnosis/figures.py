"""What a measured figure says of an attempt whose log explains nothing."""

from __future__ import annotations

from dataclasses import replace

from alula.diagnosis.attempts import Attempt
from alula.diagnosis.cause import Cause, Certainty, Diagnosis, Note
from alula.diagnosis.chains import Suspect, chains
from alula.diagnosis.facts import Facts, all_hold
from alula.diagnosis.signatures import Ruling

_OF_MEMORY = ("oom_", "leftover")
"""Classes of causes that a changed memory setting brings about as well."""


def explain_figure(
    attempt: Attempt, baseline: Attempt | None, facts: Facts, diagnosis: Diagnosis
) -> Diagnosis:
    """The diagnosis with the cause of a spoiled or lower figure, where the log gives none.

    An attempt that differs from the baseline in a setting which changes speed or memory by itself,
    and in something else, measures neither.
    """
    cause = diagnosis.cause
    if baseline is None or (
        cause is not None and not cause.ruling.failure_class.startswith(_OF_MEMORY)
    ):
        return diagnosis
    spoiled = _spoiled(attempt, baseline)
    if spoiled is not None:
        return replace(diagnosis, cause=spoiled, notes=(*diagnosis.notes, *_was(cause)))
    if cause is None:
        return replace(diagnosis, cause=_slower(attempt, baseline, facts))
    return diagnosis


def feature_asked(attempt: Attempt) -> str:
    """The feature that was tried, as the attempt says or as its command shows."""
    shown = (suspect.ruling.feature for suspect in chains().suspects if _asked(suspect, attempt))
    return attempt.feature or next(shown, "")


def _was(cause: Cause | None) -> tuple[Note, ...]:
    if cause is None:
        return ()
    return (Note(f"the run itself ended by {cause.ruling.failure_class}", cause.event),)


def _spoiled(attempt: Attempt, baseline: Attempt) -> Cause | None:
    ours, theirs = attempt.settings(), baseline.settings()
    if not ours or not theirs:
        return None
    different = sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name))
    confounders = [name for name in different if name in chains().confounders]
    tried = [name for name in different if name not in chains().confounders]
    if not confounders or not (tried or attempt.feature):
        return None
    because = tuple(
        f"{name} is {ours.get(name, 'not set')}, the baseline's is {theirs.get(name, 'not set')}"
        for name in confounders
    )
    ruling = _invalid(" and ".join(confounders), ", ".join(tried) or attempt.feature)
    return Cause(ruling, Certainty.CERTAIN, None, because, name="spoiled-measurement")


def _invalid(confounders: str, tried: str) -> Ruling:
    return Ruling(
        failure_class="inconclusive",
        layer="setting",
        owner="the measurement",
        meaning=f"{confounders} differs from the baseline too, so the run says nothing of {tried}",
        fix=f"run again with {confounders} as in the baseline, both of them at least twice",
        refuted_by=f"the baseline gives the same figure with this {confounders}",
        feature="",
        certain=None,
        cleared_when=None,
    )


def _slower(attempt: Attempt, baseline: Attempt, facts: Facts) -> Cause | None:
    before, now = baseline.tokens_per_second, attempt.tokens_per_second
    if before is None or now is None or now >= before * (1 - chains().noise):
        return None
    measured = f"{now:g} tok/s against {before:g} of the baseline"
    for suspect in chains().suspects:
        if _asked(suspect, attempt) and all_hold(suspect.ruling.when, facts):
            shown = (
                f"{condition.name} is {facts.get(condition.name)}"
                for condition in suspect.ruling.when
            )
            because = (measured, *shown)
            return Cause(
                suspect.ruling, Certainty.LIKELY, None, because, suspect.sources, suspect.name
            )
    return Cause(_SLOWER, Certainty.LIKELY, None, (measured,), name="slower")


def _asked(suspect: Suspect, attempt: Attempt) -> bool:
    asked = any(words in attempt.command for words in suspect.asked_by)
    return asked or attempt.feature == suspect.ruling.feature


_SLOWER = Ruling(
    failure_class="slower",
    layer="measured",
    owner="the change",
    meaning="it runs, and is slower than the baseline",
    fix="keep the baseline; see first that nothing ran degraded and that the option had an effect",
    refuted_by="interleaved repeats of both, whose ranges overlap",
    feature="",
    certain=None,
    cleared_when=None,
)
