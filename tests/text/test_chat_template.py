"""Rendered conversations equal transformers' `apply_chat_template`, and bad ones are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from alula.errors import ModelError, UsageError
from alula.text.chat_template import ChatTemplate

CHATML = """{%- for message in messages %}
    {%- if loop.first and message['role'] != 'system' %}
        {{- '<|im_start|>system\\nBe kind.<|im_end|>\\n' }}
    {%- endif %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

LLAMA3 = """{{- bos_token }}
{%- set ns = namespace(seen=0) %}
{%- for message in messages %}
{{- '<|start|>' + message.role + '<|end|>\\n\\n' + message.content | trim + '<|eot|>' }}
{%- set ns.seen = ns.seen + 1 %}
{%- endfor %}
Turns: {{ ns.seen }}, {{ strftime_now('%Y') }}
{% if add_generation_prompt %}
<|start|>assistant<|end|>

{% else %}
{{ eos_token }}
{% endif %}
"""

TOOLS = """{% if tools %}
  {% for tool in tools %}
{{ tool | tojson }}
{{ tool | tojson(indent=2) }}
  {% endfor %}
{% endif %}
{% for message in messages %}
    {% if message.role == 'skip' %}{% continue %}{% endif %}
    {% if message.role == 'end' %}{% break %}{% endif %}
    {% generation %}
    {% if message.content is string %}
{{ message.content }}
    {% elif message.content %}
        {% for part in message.content if part.type == 'text' %}
{{ part.text }}
        {% endfor %}
    {% endif %}
    {% endgeneration %}
    {% for call in message.tool_calls or [] %}
{{ call.function.name }}({{ call.function.arguments | tojson }})
    {% endfor %}
{% endfor %}
{{ style | default('plain') }}
"""

HELLO = [
    {"role": "user", "content": "  Grüße <b>&'\" 🙂\n"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "more"},
]
CALLS = [
    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image", "url": "x"}]},
    {"role": "skip", "content": "never"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"é": [1]}}}],
    },
    {"role": "tool", "content": "2"},
    {"role": "end", "content": "never"},
]
TOOL = {
    "type": "function",
    "function": {"name": "add", "description": "<é> & 'x'", "parameters": {"type": "object"}},
}


@pytest.mark.parametrize("generate", [True, False])
@pytest.mark.parametrize(
    ("source", "messages", "variables"),
    [
        (CHATML, HELLO, {}),
        (CHATML, [{"role": "system", "content": "s"}, *HELLO], {}),
        (LLAMA3, HELLO, {}),
        (TOOLS, CALLS, {"tools": [TOOL]}),
        (TOOLS, HELLO, {"style": "rich"}),
    ],
)
def test_equals_transformers(
    backend: tokenizers.Tokenizer,
    source: str,
    messages: list[dict[str, Any]],
    variables: dict[str, Any],
    generate: bool,
) -> None:
    from transformers import PreTrainedTokenizerFast

    theirs = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<|im_start|>", eos_token="<|im_end|>"
    )
    expected = theirs.apply_chat_template(
        messages,
        chat_template=source,
        tokenize=False,
        add_generation_prompt=generate,
        **variables,
    )
    ours = ChatTemplate(source, bos_token="<|im_start|>", eos_token="<|im_end|>")
    rendered = ours.render(messages, add_generation_prompt=generate, **variables)
    assert rendered == expected
    assert "never" not in rendered and len(rendered) > 10


def test_the_date_is_today() -> None:
    rendered = ChatTemplate("{{ strftime_now('%Y') }}").render(HELLO)
    assert abs(int(rendered) - datetime.now().year) <= 1


@pytest.mark.parametrize(
    ("messages", "evidence"),
    [
        ([], "no message"),
        (["hello"], "Message 0 is malformed: it is a str"),
        ([HELLO[0], {"content": "x"}], "Message 1 is malformed: it has no role"),
        ([{"role": "user"}], "neither content nor tool_calls"),
        ([{"role": "user", "content": 3}], "its content is a int"),
        ([{"role": "user", "content": "x", "image": b"x"}], "'messages'.*bytes"),
    ],
)
def test_malformed_messages_are_refused(messages: Any, evidence: str) -> None:
    with pytest.raises(UsageError, match=evidence):
        ChatTemplate(CHATML).render(messages)


def test_a_variable_that_is_no_plain_data_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match=r"'tools'.*function"):
        ChatTemplate(TOOLS).render(HELLO, tools=[lambda: None])


def test_what_the_template_refuses_is_told_in_its_words() -> None:
    template = ChatTemplate("{{ raise_exception('Roles must alternate') }}")
    with pytest.raises(UsageError, match="Roles must alternate"):
        template.render(HELLO)


def test_a_template_that_is_no_jinja_is_refused_with_its_line() -> None:
    with pytest.raises(ModelError, match=r"line 2: .*endfor"):
        ChatTemplate("a\n{% for x in messages %}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].nothing.at_all }}",
        "{{ messages[0]['content'] + 1 }}",
        "{{ 1 // 0 }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{% for x in range(999999999) %}{% endfor %}",
    ],
)
def test_a_template_that_fails_or_leaves_its_sandbox_is_told(source: str) -> None:
    with pytest.raises(ModelError, match="chat template failed"):
        ChatTemplate(source).render(HELLO)


def test_messages_are_not_changed() -> None:
    before = json.dumps(CALLS)
    ChatTemplate(TOOLS).render(CALLS)
    assert json.dumps(CALLS) == before


def write(folder: Path, settings: Any, file: str | None = None) -> Path:
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    if file is not None:
        (folder / "chat_template.jinja").write_text(file, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("settings", "file", "expected"),
    [
        ({"chat_template": "é{{ bos_token }}", "bos_token": "<s>"}, None, "é<s>"),
        ({"chat_template": "a{{ eos_token }}", "eos_token": {"content": "</s>"}}, None, "a</s>"),
        ({"chat_template": "old"}, "né{{ bos_token }}w", "néw"),
        ({"chat_template": [{"name": "default", "template": "d"}, {"name": "x"}]}, None, "d"),
    ],
)
def test_the_template_of_a_folder(
    tmp_path: Path, settings: Any, file: str | None, expected: str
) -> None:
    template = ChatTemplate.from_folder(write(tmp_path, settings, file))
    assert template is not None and template.render(HELLO) == expected


def test_a_model_without_template_has_none(tmp_path: Path) -> None:
    assert ChatTemplate.from_folder(tmp_path) is None
    assert ChatTemplate.from_folder(write(tmp_path, {"bos_token": "<s>"})) is None
    assert ChatTemplate.from_gguf({}) is None


@pytest.mark.parametrize("named", [[{"name": "rag", "template": "x"}], [3], 3])
def test_a_folder_without_default_template_is_refused(tmp_path: Path, named: Any) -> None:
    with pytest.raises(ModelError, match="no default chat template"):
        ChatTemplate.from_folder(write(tmp_path, {"chat_template": named}))


def test_the_template_of_a_gguf_header(header: Callable[..., dict[str, Any]]) -> None:
    metadata = header() | {"tokenizer.chat_template": "{{ bos_token }}x{{ eos_token }}"}
    template = ChatTemplate.from_gguf(metadata)
    assert template is not None
    assert template.render(HELLO) == "<|im_start|>x<|im_end|>"
