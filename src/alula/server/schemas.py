"""The bodies of requests, strictly: a field that is not here is refused by its name.

Fields that alula cannot honour are here with the one value that asks for nothing.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from alula.sampling.params import MOST_LOGPROBS, MOST_SAMPLES, SEEDS
from alula.server.strict import (
    MOST_INTEGER,
    PARTS,
    TEXT,
    LogitBias,
    Prompt,
    Several,
    Strict,
    TokenIds,
    Whole,
    is_text,
)

MOST_STOPS = 16
MOST_MESSAGES, MOST_TOOLS = 16384, 1024
"""In one body; to read more of them would hold everybody up."""


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
    logit_bias: LogitBias | None = None
    seed: Annotated[int, Field(ge=0, lt=SEEDS)] | None = None
    stop: (
        Annotated[
            Annotated[str, Tag(TEXT)]
            | Annotated[list[str], Field(max_length=MOST_STOPS), Tag(PARTS)],
            Discriminator(is_text),
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

    prompt: Prompt
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
            Discriminator(is_text),
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
            Discriminator(is_text),
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
