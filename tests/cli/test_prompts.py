"""Prompts are read as they are written, and refused by line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alula.cli.prompts import read
from alula.errors import UsageError


def file(folder: Path, content: bytes, name: str = "prompts.jsonl") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def test_a_text_file_holds_a_prompt_on_each_line(tmp_path: Path) -> None:
    path = file(tmp_path, "\ufeffone\r\ntwo ü\n{not json}".encode(), "prompts.txt")
    assert read(None, path) == ["one", "two ü", "{not json}"]


def test_json_lines_hold_prompts_and_conversations(tmp_path: Path) -> None:
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    lines = [{"prompt": "one\ntwo"}, {"messages": talk}]
    path = file(tmp_path, "\n".join(map(json.dumps, lines)).encode())
    assert read(None, path) == ["one\ntwo", talk]


@given(st.lists(st.text(min_size=1).filter(str.strip), min_size=1, max_size=5))
def test_json_lines_keep_every_character(prompts: list[str]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        text = "\n".join(json.dumps({"prompt": p}) for p in prompts)
        assert read(None, file(Path(folder), text.encode())) == prompts


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.txt", b"one\n\nthree\n", "line 2 is empty"),
        ("a.txt", b"one\ntwo \xff\n", "line 2 is not valid UTF-8"),
        ("a.txt", b"", "holds no prompts"),
        ("a.jsonl", b'{"prompt": "a"}\n{"prompt": \n', "line 2 is not understood: not valid JSON"),
        ("a.jsonl", b'{"prompt": "a"}\n\n{"prompt": "b"}', "line 2 is empty"),
        ("a.jsonl", b'"text"\n', "line 1 is not understood: it is not an object"),
        ("a.jsonl", b'{"prompt": "a", "seed": 1}\n', "it has 'prompt', 'seed'"),
        ("a.jsonl", b'{"prompt": 3}\n', "prompt is 3"),
        ("a.jsonl", b'{"prompt": "  "}\n', "line 1 is empty"),
        ("a.jsonl", b'{"prompt": ' + b"[" * 100_000, "line 1 is not understood: maximum recursion"),
        ("a.jsonl", b'{"prompt": ' + b"1" * 5000 + b"}", "line 1 is not understood: Exceeds"),
        ("a.jsonl", b'{"messages": []}\n', "not empty"),
        ("a.jsonl", b'{"messages": [{"role": "user"}]}\n', "message 1"),
        ("a.jsonl", b'{"messages": [{"role": "user", "content": 1}]}\n', "message 1"),
    ],
)
def test_a_bad_line_is_named(name: str, content: bytes, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        read(None, file(tmp_path, content, name))
    assert said in str(refused.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        read(None, tmp_path / "none.txt")


def test_an_argument_that_is_no_utf8_is_refused() -> None:
    with pytest.raises(UsageError, match="--prompt is not valid UTF-8"):
        read(b"caf\xe9".decode("utf-8", "surrogateescape"), None)
