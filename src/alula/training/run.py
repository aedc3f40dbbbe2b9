"""A training run: its settings, its folder, and its stages one after another."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from alula.bench.results import machine, versions
from alula.errors import UsageError
from alula.models.home import whole_file
from alula.models.load import LoadedModel
from alula.models.progress import Progress
from alula.speculation.eagle3_checkpoint import Eagle3Checkpoint, load
from alula.training import synthesise as synthesis
from alula.training.corpus import Corpus, load_corpus
from alula.training.curve import read_points
from alula.training.evaluate import Setting, evaluate
from alula.training.export import card, export, fitted
from alula.training.fit import CURVE, STATE, Fit, Trainer, fit
from alula.training.given import read_prompts
from alula.training.selfcheck import self_check
from alula.training.stop import ending
from alula.training.turns import Message, Turns
from alula.training.writer import Writer, writer

STAGES = ("check", "synthesise", "fit", "evaluate", "export")
_FREE = ("batch_tokens",)
"""What may change where a run goes on: memory may have run out."""
_RUN, _EVALUATION, _DRAFTER = "run.json", "evaluation.json", "drafter"


@dataclass(frozen=True)
class Recipe:
    """All that decides what a run makes. The same recipe gives the same run."""

    model: str
    tokens: int = 10_000_000
    prompts: str | None = None
    draft_vocab: int = 8192
    steps: int = 5
    epochs: int = 8
    batch_tokens: int = 16384
    rate: float = 3e-3
    max_length: int = 1024
    seed: int = 0
    together: int = 8192

    def __post_init__(self) -> None:
        for name in ("tokens", "draft_vocab", "steps", "epochs", "batch_tokens", "together"):
            if getattr(self, name) < 1:
                raise UsageError(
                    f"--{name.replace('_', '-')} cannot be {getattr(self, name)}",
                    "it must be a whole number of at least 1",
                    "give a larger number, or leave it out",
                )

    def synthesis(self) -> synthesis.Synthesis:
        """What the first stage is told."""
        return synthesis.Synthesis(
            tokens=self.tokens, seed=self.seed, max_length=self.max_length, together=self.together
        )

    def fit(self) -> Fit:
        """What the second stage is told."""
        return Fit(
            draft_vocab=self.draft_vocab,
            steps=self.steps,
            epochs=self.epochs,
            batch_tokens=self.batch_tokens,
            rate=self.rate,
            last_rate=self.rate / 10,
            seed=self.seed,
            max_positions=self.max_length,
        )


class Run:
    """One run in its folder."""

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        model: LoadedModel,
        progress: Progress,
        say: Callable[[str], None],
        *,
        stages: Sequence[str] = STAGES,
        resume: bool = False,
        start: Path | None = None,
    ) -> None:
        """`start`: an exported drafter whose weights the fit begins with.

        Raises UsageError for a folder that holds something else, prompts that cannot be used, and
        a model that cannot write its own.
        """
        self._stages = [name for name in STAGES if name in stages]
        self._given = None
        if "synthesise" in self._stages:
            self._given = _given(recipe, model, say)
        if not claim(recipe, folder, resume=resume) and resume:
            say(f"there is nothing to go on with in {folder}: a new run begins")
        self.recipe = recipe
        self._folder = folder
        self._model = model
        self._progress = progress
        self._say = say
        self._resume = resume
        self._start = None if start is None else load(start)
        self._writer: Writer | None = None

    def all(self) -> None:
        """Run the stages one after another; the time of each is added to the run's."""
        with ending():
            for name in self._stages:
                self._stage(name)

    def _stage(self, name: str) -> None:
        started = time.perf_counter()
        try:
            {
                "check": self.check,
                "synthesise": self.synthesise,
                "fit": self.fit,
                "evaluate": self.evaluate,
                "export": self.export,
            }[name]()
        finally:
            self._record(name, time.perf_counter() - started)

    def _record(self, stage: str, seconds: float) -> None:
        """Add to the time of a stage, which may have been interrupted, and say where it ran."""
        known = _read(self._folder)
        stages = known.setdefault("stages", {})
        before = stages.get(stage, {}).get("seconds", 0.0)
        stages[stage] = {
            "seconds": round(before + seconds, 1),
            "machine": machine(),
            "versions": versions(),
        }
        _write(self._folder / _RUN, known)

    def check(self) -> None:
        """The self-check; see `selfcheck`."""
        self._say(str(self_check(self._model, self._write, self._progress)))

    def synthesise(self) -> None:
        """Write conversations, or have the model answer the user's prompts."""
        synthesis.synthesise(
            self._model,
            self._write,
            self._folder / "data",
            self.recipe.synthesis(),
            self._progress,
            self._say,
            given=self._given,
        )

    def fit(self) -> None:
        """Learn."""
        trainer = Trainer(self._model, self._corpus(), self.recipe.fit(), self._start)
        if (coverage := trainer.coverage()) is not None:
            self._say(f"the draft vocabulary covers {coverage:.1%} of held-out answers")
        if self._model.decoder.device.type == "cpu":
            self._say(_forecast(trainer))
        fit(trainer, self._folder / "fit", self._progress, self._say, resume=self._resume)

    def evaluate(self) -> None:
        """Measure the fitted drafter."""
        found = evaluate(self._model, self._checkpoint(), self._corpus(), self._progress)
        _write(self._folder / _EVALUATION, found)
        for row in found["rows"]:
            if row["kind"] == "all":
                way = Setting(row["shape"], row["temperature"], row["shared"])
                self._say(f"{way}: τ {row['tau']:.2f} ({row['low']:.2f}–{row['high']:.2f})")

    def export(self) -> None:
        """Write the drafter's folder."""
        folder, known = self._folder / _DRAFTER, _read(self._folder)
        evaluation = self._folder / _EVALUATION
        learnt = fitted(self._folder / "fit" / STATE)
        text = card(
            target=Path(self._model.source.name).name,
            fitted=learnt,
            recipe=asdict(self.recipe),
            manifest=synthesis.read_manifest(self._folder / "data"),
            curve=read_points(self._folder / "fit" / CURVE),
            evaluation=json.loads(evaluation.read_text()) if evaluation.is_file() else None,
            commands=[_command(self.recipe)],
            stages=known.get("stages", {}),
        )
        export(learnt.checkpoint, folder, text)
        self._say(f"the drafter is in {folder}: alula generate … --drafter {folder}")

    @property
    def _write(self) -> Writer:
        if self._writer is None:
            self._writer = writer(self._model, self.recipe.max_length)
        return self._writer

    def _corpus(self) -> Corpus:
        paths = synthesis.shard_paths(self._folder / "data")
        if not paths:
            raise UsageError(
                f"{self._folder} holds no training data",
                "the stage synthesise has not run",
                "leave --stage out, or run --stage synthesise first",
            )
        return load_corpus(paths)

    def _checkpoint(self) -> Eagle3Checkpoint:
        return fitted(self._folder / "fit" / STATE).checkpoint


def _given(
    recipe: Recipe, model: LoadedModel, say: Callable[[str], None]
) -> list[list[Message]] | None:
    """The user's prompts, None where the model writes its own and can."""
    if recipe.prompts is None:
        Turns(model)
        return None
    given = read_prompts(Path(recipe.prompts))
    say(given.report())
    return given.conversations


def claim(recipe: Recipe, folder: Path, *, resume: bool) -> bool:
    """Make the folder this run's, and say whether it has been before.

    Raises UsageError where it holds something else.
    """
    known = _read(folder)
    wanted = asdict(recipe)
    if not known:
        if folder.is_dir() and any(folder.iterdir()):
            raise UsageError(
                f"{folder} is in use", "it holds files of no training run", "choose an empty --out"
            )
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder / _RUN, {"recipe": wanted})
        return False
    before = {name: known["recipe"].get(name) for name in wanted}
    differing = [name for name in wanted if name not in _FREE and before[name] != wanted[name]]
    if differing:
        was = ", ".join(f"{name} {before[name]}" for name in differing)
        raise UsageError(
            f"{folder} belongs to another run",
            f"that one has {was}",
            "give the same settings, or another --out",
        )
    if not resume:
        raise UsageError(
            f"{folder} holds this run already", "it was begun earlier", "go on with --resume"
        )
    _write(folder / _RUN, known | {"recipe": wanted})
    return True


def _forecast(trainer: Trainer) -> str:
    """How long fitting takes here, from one batch."""
    hours = trainer.rehearse() * len(trainer.plan) / 3600
    return f"fitting {len(trainer.plan)} batches on this CPU takes about {hours:.1f} hours"


def _command(recipe: Recipe) -> str:
    defaults = Recipe(recipe.model)
    parts = [f"alula train {Path(recipe.model).name} --out DIR"]
    for name, value in asdict(recipe).items():
        if name != "model" and value != getattr(defaults, name):
            parts.append(f"--{name.replace('_', '-')} {value}")
    return " ".join(parts)


def _read(folder: Path) -> dict[str, Any]:
    path = folder / _RUN
    if not path.is_file():
        return {}
    content: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return content


def _write(path: Path, content: Any) -> None:
    text = (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()
    with whole_file(path, len(text), "keep the run's record") as file:
        file.write(text)
