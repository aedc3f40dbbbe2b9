"""Chat messages to the text a model was trained on, by the Jinja template that comes with it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from alula.errors import ModelError, UsageError
from alula.text.huggingface_tokenizer import read_json, read_text, special_text


class _Refusal(jinja2.TemplateError):
    """The template itself refused the messages through `raise_exception`."""


class _GenerationBlock(Extension):
    """`{% generation %}` marks the assistant's part for training; the text inside is unchanged."""

    def __init__(self, environment: jinja2.Environment) -> None:
        super().__init__(environment)
        self.tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class ChatTemplate:
    """A compiled chat template, run in Jinja's sandbox as transformers' `apply_chat_template` does.

    Raises ModelError where the template is not valid Jinja.
    """

    def __init__(self, source: str, bos_token: str | None = None, eos_token: str | None = None):
        named = {"bos_token": bos_token, "eos_token": eos_token}
        self.source = source
        self.special_tokens = {name: text for name, text in named.items() if text is not None}
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ModelError(
                "The model's chat template is broken",
                f"line {error.lineno}: {error.message}",
                "Download the model again, or send a plain prompt instead of messages.",
            ) from error

    @classmethod
    def from_folder(cls, folder: str | Path) -> ChatTemplate | None:
        """The template of a Hugging Face folder (chat_template.jinja before tokenizer_config.json).

        None where the model has none. Raises ModelError where it cannot be used.
        """
        settings = read_json(Path(folder) / "tokenizer_config.json")
        source = read_text(Path(folder) / "chat_template.jinja")
        if source is None:
            source = _default_template(settings.get("chat_template"))
        if source is None:
            return None
        return cls(source, special_text(settings, "bos_token"), special_text(settings, "eos_token"))

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> ChatTemplate | None:
        """The template in a GGUF header (key → Python value); None where there is none."""
        source = metadata.get("tokenizer.chat_template")
        if source is None:
            return None
        tokens = metadata.get("tokenizer.ggml.tokens", ())

        def text(name: str) -> str | None:
            token_id = metadata.get(f"tokenizer.ggml.{name}_token_id")
            known = token_id is not None and 0 <= token_id < len(tokens)
            return str(tokens[token_id]) if known else None

        return cls(source, text("bos"), text("eos"))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The prompt for a conversation.

        Each message has a `role`, and `content` (text or parts) or `tool_calls`; `variables` reach
        the template under their names (`tools`, `enable_thinking`, …). The text holds its own
        beginning-of-text token where the template writes one. Raises UsageError for messages that
        are malformed or that the template refuses, ModelError where the template fails.
        """
        _refuse_malformed(messages)
        defaults = {"tools": None, "documents": None, **self.special_tokens}
        given = {"messages": list(messages), **variables}
        plain = {name: _plain(name, value) for name, value in given.items()}
        try:
            return self._template.render(
                **(defaults | plain), add_generation_prompt=add_generation_prompt
            )
        except _Refusal as error:
            raise UsageError(
                "The model's chat template refuses these messages",
                str(error),
                "Change the messages as the template asks.",
            ) from error
        except Exception as error:  # a template is foreign code: anything may come out of it
            raise ModelError(
                "The model's chat template failed",
                f"{type(error).__name__}: {error}",
                "Give the messages the fields this template reads, or send a plain prompt.",
            ) from error


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON for prompts: unlike Jinja's own filter it escapes nothing for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise _Refusal(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _default_template(named: Any) -> str | None:
    """A template is a string, or one of a list of {"name", "template"}."""
    if named is None or isinstance(named, str):
        return named
    listed = named if isinstance(named, list) else []
    entries = [entry for entry in listed if isinstance(entry, Mapping)]
    templates = {str(entry.get("name")): entry.get("template") for entry in entries}
    default = templates.get("default")
    if not isinstance(default, str):
        raise ModelError(
            "The model has no default chat template",
            f"tokenizer_config.json has templates named {', '.join(templates) or '(none)'}",
            "Put the wanted template beside the model as chat_template.jinja.",
        )
    return default


def _plain(name: str, value: Any) -> Any:
    """A copy made of JSON's types alone: objects with methods have no business in the sandbox."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"The chat template cannot be given {name!r}",
            str(error),
            "Use text, numbers, booleans, None, lists and mappings only.",
        ) from error


def _refuse_malformed(messages: Any) -> None:
    if not isinstance(messages, list | tuple):
        _refuse("The conversation is malformed", f"it is a {type(messages).__name__}, not a list")
    if not messages:
        _refuse("The conversation is empty", "there is no message to answer")
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping):
            _refuse(f"Message {number} is malformed", f"it is a {type(message).__name__}")
        if not isinstance(message.get("role"), str):
            _refuse(f"Message {number} is malformed", "it has no role")
        content = message.get("content")
        if content is None and not message.get("tool_calls"):
            _refuse(f"Message {number} is malformed", "it has neither content nor tool_calls")
        if not isinstance(content, str | list | None):
            _refuse(f"Message {number} is malformed", f"its content is a {type(content).__name__}")


def _refuse(what: str, why: str) -> NoReturn:
    raise UsageError(what, why, 'A message looks like {"role": "user", "content": "Hello"}.')
