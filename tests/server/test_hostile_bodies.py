"""Bodies meant to break the server: refused by name, and it goes on for everyone else."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pydantic
import pytest

from alula.server.schemas import ChatRequest, CompletionRequest
from serving import ServerProcess

HUGE = 10**30
CHAT: Any = {"model": "model", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
TEXT: Any = {"model": "model", "prompt": "Hi", "max_tokens": 2}


def chain_of_references(length: int) -> dict[str, Any]:
    links = {
        f"d{n}": {"type": "array", "items": {"$ref": f"#/$defs/d{n + 1}"}} for n in range(length)
    }
    return {"$defs": {**links, f"d{length}": {"type": "null"}}, "$ref": "#/$defs/d0"}


def chain_of_rules(length: int) -> str:
    rules = [f'r{n}: "a" r{n + 1}' for n in range(length)]
    return "\n".join(["start: r0", *rules, f'r{length}: "b"'])


def schema(wanted: Any) -> dict[str, Any]:
    named = {"name": "x", "schema": wanted}
    return CHAT | {"response_format": {"type": "json_schema", "json_schema": named}}


ENDLESS = "start: A\nA: " + " & ".join(f"/(x{{{n}}})*/" for n in (7, 11, 13, 17, 19, 23, 29))


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (TEXT | {"top_k": HUGE}, "top_k"),
        (TEXT | {"stop_token_ids": [HUGE]}, "stop_token_ids"),
        (TEXT | {"stop_token_ids": [2**31 - 1]}, "stop_token_ids"),
        (TEXT | {"prompt": [HUGE]}, "prompt"),
        (TEXT | {"prompt": [[1], [HUGE]]}, "prompt"),
        (TEXT | {"prompt": []}, "prompt"),
        (TEXT | {"prompt": [[]]}, "prompt"),
        (TEXT | {"logit_bias": {"9" * 30: 1}}, "logit_bias"),
        (TEXT | {"logit_bias": {"1_0": 1}}, "logit_bias"),
        (TEXT | {"logit_bias": {"\N{ARABIC-INDIC DIGIT THREE}": 1}}, "logit_bias"),
        (TEXT | {"logit_bias": {"05": 1}}, "logit_bias"),
        (TEXT | {"max_tokens": HUGE}, "max_tokens"),
        (TEXT | {"n": 1024, "prompt": [[1]] * 3000}, "samples"),
        (TEXT | {"guided_regex": "\ud800"}, "Unicode"),
        (TEXT | {"guided_grammar": "\ud800"}, "Unicode"),
        (schema({"const": "\ud800"}), "Unicode"),
        (TEXT | {"guided_regex": r"[^\s\S]"}, "nothing matches"),
        (schema({"$ref": "#"}), "nothing matches"),
        (schema({"enum": []}), "response_format"),
        (schema(chain_of_references(20_000)), "too deep"),
        (TEXT | {"guided_grammar": chain_of_rules(20_000)}, "too deep"),
        (TEXT | {"guided_grammar": ENDLESS}, "longer than"),
        (TEXT | {"guided_regex": "a{1000000000}", "max_tokens": 99}, "too complex"),
        (CHAT | {"chat_template_kwargs": {"self": 1}}, "chat_template_kwargs"),
        (CHAT | {"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        (
            CHAT | {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            r"messages\.0\.content\.0\.type: only 'text'",
        ),
        (CHAT | {"tool_choice": "always"}, "tool_choice: only"),
    ],
)
def test_it_is_refused_by_name_and_nobody_else_notices(
    server: ServerProcess, body: dict[str, Any], named: str
) -> None:
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    engine = server.engine.pid
    found = httpx.post(server.url + path, content=json.dumps(body), headers=JSON, timeout=30)
    assert found.status_code == 400, found.text
    message = found.json()["error"]["message"]
    assert re.search(named, message), message
    after = httpx.post(server.url + "/v1/completions", json=TEXT, timeout=30)
    assert after.status_code == 200
    assert server.engine.pid == engine


JSON = {"Content-Type": "application/json"}


def test_other_content_types_are_told_so(server: ServerProcess) -> None:
    for kind in ({"Content-Type": "text/plain"}, {}):
        found = httpx.post(server.url + "/v1/completions", content=json.dumps(TEXT), headers=kind)
        assert found.status_code == 400
        assert "application/json" in found.json()["error"]["message"]


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (CompletionRequest, TEXT | {"prompt": [1.5] * 100_000}),
        (CompletionRequest, TEXT | {"prompt": ["a", *[1] * 100_000]}),
        (CompletionRequest, TEXT | {"prompt": [[1], *["a"] * 100_000]}),
        (CompletionRequest, TEXT | {"stop_token_ids": ["a"] * 100_000}),
        (CompletionRequest, TEXT | {"logit_bias": {str(n): True for n in range(100_000)}}),
        (CompletionRequest, TEXT | {f"field{n}": 1 for n in range(100_000)}),
        (ChatRequest, CHAT | {"messages": [1] * 100_000}),
        (ChatRequest, CHAT | {"messages": [{"role": "user", "content": [1] * 100_000}]}),
        (ChatRequest, CHAT | {"tools": [1] * 100_000}),
        (ChatRequest, CHAT | {"modalities": ["audio"] * 100_000}),
    ],
)
def test_of_many_faults_one_is_told(kind: type[pydantic.BaseModel], fields: dict[str, Any]) -> None:
    """A million told faults hold the whole server up and take gigabytes."""
    with pytest.raises(pydantic.ValidationError) as caught:
        kind.model_validate(fields)
    assert caught.value.error_count() <= 2
