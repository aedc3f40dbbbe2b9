"""From the body of a request to prompts and sampling parameters."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from alula.errors import ModelError
from alula.sampling.params import SamplingParams
from alula.server.grammar_trial import GrammarTrial
from alula.server.grammars import grammar_of
from alula.server.messages import Ready
from alula.server.refusals import RequestError
from alula.server.schemas import ChatRequest, CompletionRequest, Message, Sampling
from alula.text.chat_template import ChatTemplate
from alula.text.tokenizer import Tokenizer
from alula.text.tools import ToolForm, tool_form

_LONG = 2048
"""Characters from which on a prompt is read in a thread, beside the streams."""


_RESERVED = frozenset(("self", "messages", "tools", "add_generation_prompt"))
"""What the chat template gets from elsewhere."""


class Served(NamedTuple):
    """The model that is being served."""

    ready: Ready
    tokenizer: Tokenizer
    template: ChatTemplate | None
    trial: GrammarTrial


class Asked(NamedTuple):
    """What the engine is asked for."""

    prompts: list[list[int]]
    params: SamplingParams
    tools: ToolForm | None
    """How to read tool calls in the answer; None where there are none to expect."""


async def completion(body: CompletionRequest, served: Served) -> Asked:
    """Raises RequestError or UsageError for what cannot be answered."""
    prompts = await _encoded(given_prompts(body), served, add_bos=None)
    grammar = await grammar_of(body, served.trial, served.ready.vocabulary)
    params = _params(body, served, prompts, body.max_tokens, body.logprobs, grammar)
    return Asked(prompts, params, None)


async def chat(body: ChatRequest, served: Served) -> Asked:
    """Raises RequestError or UsageError for what cannot be answered."""
    template = served.template
    if template is None:
        raise RequestError(
            400,
            f"{served.ready.model} has no chat template, so it cannot chat; use /v1/completions",
            param="messages",
        )
    tools = None if body.tool_choice == "none" or not body.tools else _form(template, served)
    text = await _rendered(template, body, tools)
    # The template writes the beginning-of-sequence token itself, where the model wants one.
    prompts = await _encoded([text], served, add_bos=False)
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise RequestError(
            400, "max_tokens and max_completion_tokens exclude each other", param="max_tokens"
        )
    most = body.max_completion_tokens or body.max_tokens
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    grammar = await grammar_of(body, served.trial, served.ready.vocabulary, tools)
    params = _params(body, served, prompts, most, logprobs, grammar)
    return Asked(prompts, params, tools)


def _form(template: ChatTemplate, served: Served) -> ToolForm:
    form = tool_form(template)
    if form is None:
        message = f"tools are not supported: the chat template of {served.ready.model} has none"
        raise RequestError(400, message, param="tools", code="unsupported_parameter")
    return form


async def _rendered(template: ChatTemplate, body: ChatRequest, tools: ToolForm | None) -> str:
    variables = body.chat_template_kwargs or {}
    for name in _RESERVED & variables.keys():
        message = f"chat_template_kwargs cannot set {name}"
        raise RequestError(400, message, param="chat_template_kwargs")
    messages = [_for_template(message) for message in body.messages]
    if tools is not None:
        variables = variables | {
            "tools": [tool.model_dump(exclude_none=True) for tool in body.tools or ()]
        }
    try:
        if sum(len(str(message)) for message in messages) < _LONG:
            return template.render(messages, **variables)
        return await asyncio.to_thread(template.render, messages, **variables)
    except ModelError as error:
        # The template has rendered other conversations: it is this one that it cannot.
        raise RequestError(400, f"{error.what}: {error.why}", param="messages") from error


def _for_template(message: Message) -> dict[str, Any]:
    """Templates want plain text, the roles they know, and arguments as objects."""
    found = message.model_dump(exclude_none=True, exclude={"refusal"})
    if message.role == "developer":
        found["role"] = "system"
    if isinstance(message.content, list):
        found["content"] = "".join(part.text for part in message.content)
    found.setdefault("content", "")
    # Templates ask whether there are calls by whether the field is there.
    for call in found.get("tool_calls") or found.pop("tool_calls", ()):
        call.pop("index", None)
        try:
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        except ValueError as error:
            raise RequestError(
                400, f"the arguments of a tool call are no JSON: {error}", param="messages"
            ) from error
    return found


def given_prompts(body: CompletionRequest) -> Sequence[str | list[int]]:
    """One prompt or several, each as text or as token ids."""
    prompt: Any = body.prompt
    one = isinstance(prompt, str) or isinstance(prompt[0], int)
    return [prompt] if one else prompt


async def _encoded(
    prompts: Sequence[str | list[int]], served: Served, add_bos: bool | None
) -> list[list[int]]:
    def encoded() -> list[list[int]]:
        encode = served.tokenizer.encode
        return [encode(p, add_bos=add_bos) if isinstance(p, str) else p for p in prompts]

    size = sum(len(prompt) for prompt in prompts)
    return encoded() if size < _LONG else await asyncio.to_thread(encoded)


def _params(
    body: Sampling,
    served: Served,
    prompts: list[list[int]],
    max_tokens: int | None,
    logprobs: int | None,
    grammar: str | None,
) -> SamplingParams:
    room = served.ready.max_length - max(len(prompt) for prompt in prompts)
    if room < 1 or (max_tokens is not None and max_tokens > room):
        raise _too_long(served.ready.max_length, room, max_tokens)
    given = {name: value for name in _SAME if (value := getattr(body, name)) is not None}
    return SamplingParams(
        **given,
        stop_token_ids=body.stop_token_ids or (),
        logit_bias=None if body.logit_bias is None else _bias(body.logit_bias),
        max_tokens=max_tokens or room,
        logprobs=logprobs,
        grammar=grammar,
    )


_SAME = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "stop",
    "ignore_eos",
)


def _bias(bias: dict[str, float]) -> dict[int, float]:
    return {int(token): value for token, value in bias.items()}


def _too_long(context: int, room: int, max_tokens: int | None) -> RequestError:
    prompt = context - room
    wanted = "at least 1" if max_tokens is None else str(max_tokens)
    return RequestError(
        400,
        f"the context holds {context} tokens, of which the prompt takes {prompt}; {wanted} more "
        "are asked for",
        param="max_tokens" if room >= 1 else "messages",
        code="context_length_exceeded",
    )
