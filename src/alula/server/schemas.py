"""The bodies of requests, strictly: a field that is not here is refused by its name.

Fields that alula cannot honour are here with the one value that asks for nothing.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from alula.sampling.params import MOST_LOGPROBS, MOST_SAMPLES, SEEDS

MOST_STOPS = 16
MOST_PROMPTS, MOST_MESSAGES, MOST_TOOLS = 4096, 16384, 1024
"""In one body; reading more of them would hold everybody up."""
MOST_INTEGER = 2**31 - 1
"""Of what has no smaller bound; more fits into no vocabulary and no context."""

T = TypeVar("T")

Whole = Annotated[int, Field(ge=1, le=MOST_INTEGER)]
TokenId = Annotated[int, Field(ge=0, le=MOST_INTEGER)]
_NUMBER = r"^(0|[1-9][0-9]{0,8})$"
TokenNumber = Annotated[str, Field(pattern=_NUMBER)]
"""A token id as JSON's keys are written."""
Several = Annotated[list[T], Field(fail_fast=True)]
"""A list of which the first fault is told: a million of them would hold everybody up."""
TokenIds = Several[TokenId]


class Strict(BaseModel):
    """No conversions and no unknown fields."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _one_stranger_is_enough(cls, given: Any) -> Any:
        """Of many unknown fields the first is told, for the same reason."""
        if not isinstance(given, dict):
            return given
        known = {field.alias or name for name, field in cls.model_fields.items()}
        stranger = next((name for name in given if name not in known), None)
        return {name: given[name] for name in given if name in known or name == stranger}


def _is_text(value: Any) -> str:
    return TEXT if isinstance(value, str) else PARTS


def _first_wrong_bias(given: Any) -> Any:
    """Only the first wrong one where there are any, for the same reason."""
    for token, bias in given.items() if isinstance(given, dict) else ():
        right = isinstance(bias, int | float) and not isinstance(bias, bool) and abs(bias) <= 100
        if not right or re.match(_NUMBER, str(token)) is None:
            return {token: bias}
    return given


def _kind_of_prompt(value: Any) -> str:
    """By the first element, so that a million others are read once."""
    if isinstance(value, str) or not isinstance(value, list) or not value:
        return TEXT if isinstance(value, str) else TOKENS
    kinds: dict[type, str] = {str: PARTS, list: TOKEN_LISTS}
    return kinds.get(type(value[0]), TOKENS)


TEXT, PARTS, TOKENS, TOKEN_LISTS = "(text)", "(parts)", "(token ids)", "(lists of token ids)"
"""Forms of one field; errors do not name them."""
FORMS = frozenset((TEXT, PARTS, TOKENS, TOKEN_LISTS))


class StreamOptions(Strict):
    """How to stream."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    """With `include_usage`: the usage so far in every chunk, as in vLLM."""
    include_obfuscation: Literal[False] | None = None


class Sampling(Strict):
    """What both kinds of completions share."""

    model: str
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MOST_SAMPLES)] | None = 1
    temperature: Annotated[float, Field(ge=0, le=2)] | None = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] | None = 1.0
    top_k: Annotated[int, Field(ge=-1, le=MOST_INTEGER)] | None = 0
    min_p: Annotated[float, Field(ge=0, le=1)] | None = 0.0
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = 1.0
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = 0.0
    logit_bias: (
        Annotated[
            dict[TokenNumber, Annotated[float, Field(ge=-100, le=100)]],
            BeforeValidator(_first_wrong_bias),
        ]
        | None
    ) = None
    seed: Annotated[int, Field(ge=0, lt=SEEDS)] | None = None
    stop: (
        Annotated[
            Annotated[str, Tag(TEXT)]
            | Annotated[list[str], Field(max_length=MOST_STOPS), Tag(PARTS)],
            Discriminator(_is_text),
        ]
        | None
    ) = None
    stop_token_ids: TokenIds | None = None
    ignore_eos: bool | None = False
    return_drafted: bool | None = False
    """Streamed: say of every token whether it had been drafted."""
    guided_regex: str | None = None
    guided_grammar: str | None = None
    user: str | None = None
    """Appears in the server's log."""

    @model_validator(mode="after")
    def _needs_a_stream(self) -> Sampling:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is only allowed with stream: true")
        if self.return_drafted and not self.stream:
            raise ValueError("return_drafted is only allowed with stream: true")
        return self


class CompletionRequest(Sampling):
    """The body of /v1/completions."""

    prompt: Annotated[
        Annotated[str, Tag(TEXT)]
        | Annotated[Several[str], Field(max_length=MOST_PROMPTS), Tag(PARTS)]
        | Annotated[TokenIds, Field(min_length=1), Tag(TOKENS)]
        | Annotated[Several[TokenIds], Field(max_length=MOST_PROMPTS), Tag(TOKEN_LISTS)],
        Discriminator(_kind_of_prompt),
    ]
    max_tokens: Whole | None = 16
    logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = None
    best_of: Whole | None = None
    echo: Literal[False] | None = None
    suffix: Literal[""] | None = None

    @model_validator(mode="after")
    def _best_of_all(self) -> CompletionRequest:
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise ValueError("best_of is not supported, unless it equals n")
        return self


class FunctionCall(Strict):
    """A call that the model made."""

    name: str
    arguments: str


class ToolCall(Strict):
    """A call with its id."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None = None


class TextPart(Strict):
    """The only kind of content that a text model reads."""

    type: Literal["text"]
    text: str


class Message(Strict):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: (
        Annotated[
            Annotated[str, Tag(TEXT)] | Annotated[Several[TextPart], Tag(PARTS)],
            Discriminator(_is_text),
        ]
        | None
    ) = None
    name: str | None = None
    tool_calls: Several[ToolCall] | None = None
    tool_call_id: str | None = None
    refusal: Literal[""] | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Message:
        if self.content is None and not self.tool_calls:
            raise ValueError("a message needs content")
        return self


class Function(Strict):
    """What a tool does and takes."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict):
    """Something that the model may call."""

    type: Literal["function"]
    function: Function


class NamedFunction(Strict):
    """A function by its name."""

    name: str


class NamedTool(Strict):
    """The one tool to call."""

    type: Literal["function"]
    function: NamedFunction


class JsonSchema(Strict):
    """A schema with its name."""

    name: str
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Strict):
    """What the answer has to look like."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _schema_where_named(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema goes with type json_schema, and is needed there")
        return self


class ChatRequest(Sampling):
    """The body of /v1/chat/completions."""

    messages: Annotated[Several[Message], Field(min_length=1, max_length=MOST_MESSAGES)]
    max_tokens: Whole | None = None
    max_completion_tokens: Whole | None = None
    logprobs: bool | None = False
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[Several[Tool], Field(max_length=MOST_TOOLS)] | None = None
    tool_choice: (
        Annotated[
            Annotated[Literal["none", "auto", "required"], Tag(TEXT)]
            | Annotated[NamedTool, Tag(PARTS)],
            Discriminator(_is_text),
        ]
        | None
    ) = None
    parallel_tool_calls: Literal[True] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    modalities: Several[Literal["text"]] | None = None
    service_tier: Literal["auto", "default"] | None = None
    store: Literal[False] | None = None

    @model_validator(mode="after")
    def _belong_together(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs is only allowed with logprobs: true")
        if self.tool_choice not in (None, "none", "auto") and not self.tools:
            raise ValueError("tool_choice is only allowed with tools")
        return self
