"""`alula generate`: text and JSON from one prompt and from files."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from alula.cli import generate
from running import Alula

FLOAT32 = ("--dtype", "float32")


def objects(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def test_text_goes_to_standard_output_and_remarks_to_standard_error(
    alula: Alula, tiny_model: Path
) -> None:
    asked = ("generate", tiny_model, "--prompt", "Hello", "--max-tokens", "20", *FLOAT32)
    code, out, err = alula(*asked)
    (found,) = objects(alula(*asked, "--json").out)
    assert code == 0
    assert out == found["text"] + "\n"
    assert "20 tokens" in err and "tok/s" in err and "speculation:" in err
    assert "seed" not in err


def test_json_holds_what_a_program_needs(alula: Alula, tiny_model: Path) -> None:
    code, out, err = alula(
        "generate", tiny_model, "--prompt", "Hello", "--max-tokens", "50", "--json", *FLOAT32
    )
    (found,) = objects(out)
    assert (code, err) == (0, "")
    assert len(found["token_ids"]) == 50
    assert found["finish_reason"] == "length"
    assert isinstance(found["seed"], int)
    assert found["tokens_per_round"] == pytest.approx(49 / found["rounds"])
    assert all(0 <= share <= 1 for share in found["acceptance"])
    assert 0 < found["first_token_seconds"] < found["seconds"]
    assert found["prompt"] == "Hello"
    assert (found["device"], found["dtype"]) == ("cpu", "float32")


def test_a_stopped_answer_ends_its_line_and_says_so(
    alula: Alula, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []

    def stream(_request: object, delta: Any) -> None:
        if len(shown) == 3:
            raise KeyboardInterrupt
        shown.append(delta.text)
        sys.stdout.write(delta.text)

    monkeypatch.setattr(generate, "_stream", stream)
    code, out, err = alula("generate", tiny_model, "--prompt", "Hello", *FLOAT32)
    assert code == 130
    assert out == "".join(shown) + "\n"
    assert "stopped" in err


def test_speculation_changes_no_token(alula: Alula, tiny_model: Path) -> None:
    asked = ("generate", tiny_model, "--prompt", "Hello", "--max-tokens", "60", "--json", *FLOAT32)
    texts = {
        shape: objects(alula(*asked, "--speculation", shape).out)[0]["token_ids"]
        for shape in ("off", "ngram", "chain:2")
    }
    assert texts["off"] == texts["ngram"] == texts["chain:2"]


def test_a_file_of_prompts_is_answered_in_order(
    alula: Alula, tiny_model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "prompts.jsonl"
    talk = [{"role": "user", "content": "two"}]
    path.write_text(json.dumps({"prompt": "one"}) + "\n" + json.dumps({"messages": talk}))
    asked = ("generate", tiny_model, "--max-tokens", "5", *FLOAT32)
    found = objects(alula(*asked, "--prompts", path, "--json").out)
    assert [entry["number"] for entry in found] == [0, 1]
    assert found[0]["prompt"] == "one" and found[1]["messages"] == talk
    alone = objects(alula(*asked, "--prompt", "two", "--json").out)
    assert found[1]["token_ids"] == alone[0]["token_ids"]
    text = alula(*asked, "--prompts", path).out
    assert text == f"[1] one\n{found[0]['text']}\n\n[2] two\n{found[1]['text']}\n\n"


def test_samples_are_drawn_apart_and_again_with_the_same_seed(
    alula: Alula, tiny_model: Path
) -> None:
    asked = ("generate", tiny_model, "--prompt", "Hello", "--max-tokens", "8", "--json", *FLOAT32)
    sampled = (*asked, "--temperature", "1", "--n", "2", "--seed", "7")
    first, second = objects(alula(*sampled).out)
    assert (first["sample"], second["sample"], first["seed"]) == (0, 1, 7)
    assert first["token_ids"] != second["token_ids"]
    assert objects(alula(*sampled).out)[1]["token_ids"] == second["token_ids"]


def test_the_seed_of_a_sampled_answer_is_named(alula: Alula, tiny_model: Path) -> None:
    _, _, err = alula(
        "generate", tiny_model, "--prompt", "a", "--max-tokens", "3", "--temperature", "1", *FLOAT32
    )
    assert "· seed " in err


@pytest.mark.parametrize(("count", "said"), [(3, r"seeds \d+, \d+, \d+"), (9, "9 seeds")])
def test_the_seeds_of_several_answers_are_named(
    count: int, said: str, alula: Alula, tiny_model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("".join(f"prompt {number}\n" for number in range(count)))
    asked = ("generate", tiny_model, "--prompts", path, "--max-tokens", "3", *FLOAT32)
    assert re.search(rf"· {said}", alula(*asked, "--temperature", "1").err)
    assert "· seed 7\n" in alula(*asked, "--temperature", "1", "--seed", "7").err


def test_raw_leaves_the_template_out(alula: Alula, tiny_model: Path, plain_model: Path) -> None:
    asked = ("--prompt", "Hello", "--max-tokens", "3", "--json", *FLOAT32)
    templated = objects(alula("generate", tiny_model, *asked).out)[0]
    raw = objects(alula("generate", tiny_model, *asked, "--raw").out)[0]
    without = objects(alula("generate", plain_model, *asked).out)[0]
    assert raw["prompt_tokens"] < templated["prompt_tokens"]
    assert raw["token_ids"] == without["token_ids"]


def test_raw_messages_are_refused(alula: Alula, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "a"}]}')
    code, _, err = alula("generate", "no-such-model", "--prompts", path, "--raw")
    assert code == 2
    assert "messages cannot be taken raw" in err


def test_standard_input_is_a_prompt(alula: Alula, tiny_model: Path) -> None:
    asked = ("generate", tiny_model, "--max-tokens", "3", "--json", *FLOAT32)
    piped = objects(alula(*asked, "--prompt", "-", stdin="Grüße\n".encode()).out)[0]
    given = objects(alula(*asked, "--prompt", "Grüße").out)[0]
    assert piped["prompt"] == "Grüße"
    assert piped["token_ids"] == given["token_ids"]
    assert alula(*asked, "--prompt", "-", stdin=b"caf\xe9").code == 2


def test_logprobs_are_given_for_every_token(alula: Alula, tiny_model: Path) -> None:
    (found,) = objects(
        alula(
            *("generate", tiny_model, "--prompt", "Hello", "--max-tokens", "4"),
            *("--json", "--logprobs", "2", *FLOAT32),
        ).out
    )
    assert [entry["token_id"] for entry in found["logprobs"]] == found["token_ids"]
    for entry in found["logprobs"]:
        assert entry["logprob"] == entry["top"][0]["logprob"] < 0
        assert len(entry["top"]) == 2


def test_a_prompt_beyond_the_context_is_refused(alula: Alula, tiny_model: Path) -> None:
    code, out, err = alula(
        "generate", tiny_model, "--prompt", "long " * 100, "--max-length", "64", *FLOAT32
    )
    assert (code, out) == (2, "")
    assert "context" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--speculation", "sometimes"], "'sometimes' is not understood"),
        (
            ["--speculation", "foo"],
            "off, ngram, auto, chain:K or tree:DEPTHxWIDTH:NODES",
        ),
        (["--speculation", "tree:2x2:4"], "needs a drafter"),
        (["--speculation", "off", "--drafter", "somewhere"], "no use for a drafter"),
        (["--speculation", "ngram", "--drafter", "somewhere"], "no use for a drafter"),
    ],
)
def test_speculation_that_cannot_be_is_refused(
    arguments: list[str], said: str, alula: Alula, tiny_model: Path
) -> None:
    code, out, err = alula("generate", tiny_model, "--prompt", "a", *FLOAT32, *arguments)
    assert (code, out) == (2, "")
    assert said in err
