"""Rounds with random weights, measured on the CPU: plain, drafted, and with forced acceptance."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from alula.bench import rounds as module
from alula.bench import watched
from alula.bench.anatomy import Kernel
from alula.bench.random_engine import random_network
from alula.bench.random_weights import SMOLLM2, random_decoder
from alula.bench.rounds import Measured, RoundPlan, measure
from alula.bench.rounds_command import main, run, told
from alula.bench.shapes import Subject, drafter_matrices, matrices, subject
from alula.bench.simulated import EXPLAINED
from alula.bench.watched import NotedRounds
from alula.engine.core import Engine
from alula.engine.lines import Lines
from alula.engine.rounds import CapturedRounds, Compute, Flight, Rounds, Size
from alula.errors import UsageError

TINY = Subject(
    "tiny",
    replace(
        SMOLLM2,
        vocab_size=300,
        hidden_size=32,
        intermediate_size=48,
        layers=3,
        heads=4,
        kv_heads=2,
        head_dim=8,
        max_positions=2048,
    ),
    100,
)
CONFIG = {
    "model_type": "llama",
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}


def plan(**changes: object) -> RoundPlan:
    few = RoundPlan(TINY, ("chain:2", "tree:2x2:4", "ngram"), context=20, rounds=3, repeats=2)
    return replace(few, **changes)


def test_all_shapes_are_timed_against_plain_steps() -> None:
    measured = measure(plan(batch=2), torch.device("cpu"), torch.float32)
    assert [times.shape for times in measured.times] == ["off", "chain:2", "tree:2x2:4", "ngram"]
    plain = measured.times[0]
    assert plain.of_plain == 1.0
    assert plain.tokens_per_round == 1.0
    for times in measured.times:
        assert times.of_plain == pytest.approx(times.round_ms / plain.round_ms)
        tokens = 2 * times.tokens_per_round
        assert times.tokens_per_second == pytest.approx(1e3 * tokens / times.round_ms)
        assert times.simulation_us is None and times.graph_ms is None


@pytest.mark.parametrize("batch", [1, 3])
def test_forced_acceptance_is_what_comes_out(batch: int) -> None:
    every = measure(plan(simulated=(1.0, 1.0), batch=batch), torch.device("cpu"), torch.float32)
    taus = {times.shape: times.tokens_per_round for times in every.times}
    assert taus["off"] == 1.0
    assert taus["chain:2"] == taus["tree:2x2:4"] == 3.0
    none = measure(plan(simulated=(0.0,), batch=batch), torch.device("cpu"), torch.float32)
    assert all(times.tokens_per_round == 1.0 for times in none.times)


def test_more_levels_than_a_draft_has_are_refused() -> None:
    with pytest.raises(UsageError, match="names 3 levels"):
        RoundPlan(TINY, ("chain:2",), simulated=(0.5, 0.5, 0.5))
    assert RoundPlan(TINY, ("chain:2", "chain:3"), simulated=(0.5,) * 3).simulated


def test_acceptance_is_forced_in_rounds_laid_out_for_capture(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = module.full_engine

    def dense(*arguments: object) -> Engine:
        engine = made(*arguments)  # type: ignore[arg-type]
        engine._runner.rounds = Rounds(engine._runner.lines, engine._runner._round)
        return engine

    monkeypatch.setattr(module, "full_engine", dense)
    few = plan(simulated=(1.0, 0.5), batch=3, rounds=30)
    times = {each.shape: each for each in measure(few, torch.device("cpu"), torch.float32).times}
    assert times["chain:2"].launches["captured"] > 60
    for shape in ("chain:2", "tree:2x2:4"):
        assert times[shape].tokens_per_round == pytest.approx(2.5, abs=0.15)


class FakeEvent:
    """Its time is the number of events that were recorded before it, in milliseconds."""

    recorded = 0

    def __init__(self, **_options: bool) -> None:
        self.at = -1.0

    def record(self) -> None:
        FakeEvent.recorded += 1
        self.at = float(FakeEvent.recorded)

    def synchronize(self) -> None:
        assert self.at > 0

    def elapsed_time(self, later: FakeEvent) -> float:
        assert later.at > self.at > 0
        return later.at - self.at


class FakeCaptured(CapturedRounds):
    """Rounds that claim to be captured; each is recorded as it is launched."""

    def __init__(self, lines: Lines, compute: Compute) -> None:
        Rounds.__init__(self, lines, compute)

    def _launch(self, lines: list[int], size: Size) -> Flight:
        flight = super(CapturedRounds, self)._launch(lines, size)
        landed: Any = FakeEvent()
        landed.record()
        return flight._replace(landed=landed)

    def replay_deepest(self) -> Callable[[], object]:
        return lambda: None


class FakeNoted(NotedRounds):
    """The same, kept."""

    def __init__(self, lines: Lines, compute: Compute) -> None:
        Rounds.__init__(self, lines, compute)
        self.flights = []

    _launch = FakeCaptured._launch


@pytest.mark.parametrize("rounds", [1, 6])
def test_captured_rounds_are_timed_by_their_events_and_taken_apart(
    rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = module.full_engine

    def captured(*arguments: object) -> Engine:
        engine = made(*arguments)  # type: ignore[arg-type]
        engine._runner.rounds = FakeCaptured(engine._runner.lines, engine._runner._round)
        return engine

    kernels = [Kernel("linear_kernel", 0.0, 40.0), Kernel("walk_kernel", 50.0, 30.0)]
    monkeypatch.setattr(module, "full_engine", captured)
    monkeypatch.setattr(watched, "CapturedRounds", FakeCaptured)
    monkeypatch.setattr(module, "NotedRounds", FakeNoted)
    monkeypatch.setattr(module, "watch", lambda _replay: [kernels, kernels])
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _device=None: None)
    decoder = random_decoder(TINY.shape, torch.device("cpu"), dtype=torch.float32)
    network = partial(random_network, TINY, decoder)
    contender = module._Contender(plan(simulated=(1.0, 1.0)), decoder, "chain:2", network)
    contender.run(4)
    contender.watch(4)
    contender.forget()
    contender.run(rounds)
    contender.watch(rounds)
    assert [len(kept) for kept in (contender._periods, contender._idle)] == [rounds] * 2
    times = contender.times(plain=0.5)
    # Rounds as they are have one event, watched ones also their graph's first node and its last.
    assert times.round_ms == 1.0
    assert times.of_plain == 2.0
    assert times.tokens_per_round == 3.0
    assert times.graph_ms == 1.0
    assert times.idle_us == times.mean_idle_us == times.most_idle_us == 2000.0
    anatomy = contender.anatomy(limit_us=25.0)
    assert (anatomy.us, anatomy.of_limit) == (1000.0, 0.025)
    shares = {part.kind: part.us for part in anatomy.parts}
    assert shares == {"linear": 40.0, "walk and commit": 30.0, "launch gaps": 930.0}
    found = told(Measured([times], 0.025, 4.0, [anatomy]))
    assert any("reaches 2 %" in line for line in found)
    assert any("tiny, batch 1, chain:2" in line for line in found)


def test_a_result_says_what_was_simulated(tmp_path: Path) -> None:
    said: list[str] = []
    asked = plan(speculation=("chain:2",), simulated=(0.5, 0.5))
    out = tmp_path / "found.json"
    record = run(asked, said.append, device="cpu", dtype="float32", out=out)
    assert json.loads(out.read_text()) == json.loads(json.dumps(record))
    assert record["settings"]["simulated_acceptance"] == (0.5, 0.5)
    assert record["settings"]["note"] == EXPLAINED
    assert EXPLAINED in said
    assert any(line.startswith("chain:2 ") for line in said)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"batch": 0}, "batch cannot be 0"),
        ({"speculation": ("auto",)}, "auto"),
        ({"speculation": ("sometimes",)}, "draft shape"),
        ({"context": 2000}, "too long"),
        ({"speculation": (), "simulated": (0.5,)}, "no draft"),
    ],
)
def test_what_cannot_be_measured_is_refused(changes: dict[str, object], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        plan(**changes)


def test_a_shape_is_read_from_a_configuration(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    for text in (folder, folder / "config.json"):
        found = subject(str(text))
        assert (found.shape.hidden_size, found.shape.kv_heads) == (32, 2)
        assert found.draft_vocabulary == 300
    with pytest.raises(UsageError, match="no shape 'llama-9b'"):
        subject("llama-9b")


def test_matrices_are_those_of_the_decoder_and_its_drafter() -> None:
    sizes = {(m.name, m.outputs, m.inner) for m in matrices(subject("llama-8b").shape)}
    assert sizes == {
        ("qkv", 6144, 4096),
        ("out", 4096, 4096),
        ("gate up", 28672, 4096),
        ("down", 4096, 14336),
        ("head", 128256, 4096),
    }
    drafter = {(m.outputs, m.inner) for m in drafter_matrices(subject("llama-8b"))}
    assert drafter == {(4096, 12288), (4096, 8192), (2048, 8192), (32000, 4096)}


def test_the_module_runs_without_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG))
    sizes = ["--context", "20", "--rounds", "2", "--repeats", "1"]
    asked = ["--shape", str(config), "--device", "cpu", "--speculation", "chain:2", *sizes]
    assert main(asked) == 2
    assert "add --random-weights" in capsys.readouterr().err
    assert main([*asked, "--random-weights", "--profile"]) == 2
    assert "only be taken apart on a GPU" in capsys.readouterr().err
    assert main([*asked, "--random-weights", "--dtype", "float32"]) == 0
    assert "chain:2" in capsys.readouterr().out
