from pathlib import Path

import pytest

from alula.cli.train import parse_count
from alula.errors import UsageError
from alula.speculation.eagle3_checkpoint import load
from running import Alula

SIZES = {"tokens": 600, "together": 40, "max-length": 128, "draft-vocab": 64, "steps": 2}
SMALL = [str(part) for name, value in SIZES.items() for part in (f"--{name}", value)]
STAGES = ["--stage", "synthesise", "--stage", "fit", "--stage", "export"]


def test_one_command_makes_a_drafter(alula: Alula, tiny_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = alula("train", tiny_model, "--out", out, *SMALL, *STAGES)
    assert done.code == 0, done.err
    assert load(out / "drafter").config.draft_vocab_size == 64
    assert "accuracy" in done.err
    assert "hours" in done.err
    answered = alula(
        *("generate", tiny_model, "--prompt", "Hello", "--max-tokens", 8, "--drafter"),
        *(out / "drafter", "--speculation", "chain:2"),
    )
    assert answered.code == 0, answered.err


def test_own_prompts_are_answered_and_bad_lines_listed(
    alula: Alula, plain_model: Path, tmp_path: Path
) -> None:
    file = tmp_path / "prompts.jsonl"
    good = [f'{{"prompt": "{word} {n}"}}' for n in range(12) for word in ("Tell", "Sum")]
    file.write_text("\n".join([*good, "nonsense", '{"prompt": 3}']))
    arguments = ["--out", tmp_path / "run", "--prompts", file, *SMALL, "--stage", "synthesise"]
    done = alula("train", plain_model, *arguments)
    assert done.code == 0, done.err
    assert "24 prompts, 2 left out (line 25: not JSON" in done.err


def test_prompts_that_are_all_bad_are_refused(
    alula: Alula, tiny_model: Path, tmp_path: Path
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"text": "Hello"}\n')
    done = alula("train", tiny_model, "--out", tmp_path / "run", "--prompts", file)
    assert done.code == 2
    assert "no prompt that can be used" in done.err


def test_a_model_that_cannot_chat_needs_prompts(
    alula: Alula, plain_model: Path, tmp_path: Path
) -> None:
    done = alula("train", plain_model, "--out", tmp_path / "run")
    assert done.code == 2
    assert "without a chat template" in done.err
    assert "--prompts" in done.err


def test_unknown_stages_are_refused_before_loading(alula: Alula, tmp_path: Path) -> None:
    done = alula("train", "nothing", "--out", tmp_path / "run", "--stage", "learn")
    assert done.code == 2
    assert "there is no stage 'learn'" in done.err


@pytest.mark.parametrize(
    ("text", "count"), [("10M", 10_000_000), ("1.5k", 1500), ("12", 12), (" 2G ", 2 * 10**9)]
)
def test_counts_may_have_units(text: str, count: int) -> None:
    assert parse_count(text) == count


@pytest.mark.parametrize("text", ["", "M", "ten", "0", "-3", "1.2", "5T", "10MM"])
def test_other_counts_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not understood"):
        parse_count(text)
