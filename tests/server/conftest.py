"""Servers that many tests share."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from serving import ServerProcess
from tiny import write_tiny_model

TOOL_TEMPLATE = (
    "{% if tools %}<|im_start|>system\nAnswer with <tool_call> and one of: {{ tools | tojson }}"
    "<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="session")
def tool_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with a chat template that knows tools, as Hermes and Qwen write them."""
    folder = write_tiny_model(tmp_path_factory.mktemp("tools") / "model")
    settings = folder / "tokenizer_config.json"
    known = json.loads(settings.read_text())
    settings.write_text(json.dumps(known | {"chat_template": TOOL_TEMPLATE}))
    return folder


@pytest.fixture(scope="session")
def server(tool_model: Path) -> Iterator[ServerProcess]:
    """A server that no test harms."""
    with ServerProcess(tool_model, "--speculation", "chain:4", "--dtype", "float32") as started:
        yield started


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with server.client() as opened:
        yield opened
