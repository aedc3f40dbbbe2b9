"""What an answer has to look like, as a grammar that llguidance reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llguidance import LLMatcher

from alula.server.grammar_trial import GrammarTrial
from alula.server.messages import Vocabulary
from alula.server.refusals import RequestError
from alula.server.schemas import ChatRequest, Function, NamedTool, Sampling
from alula.text.tools import ToolForm, forced_grammar, free_grammar

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

_LAYOUT: JsonCompileOptions = {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{0,40}"}
"""Weak models would write white space for ever."""
_ANY_OBJECT = {"type": "object"}


async def grammar_of(
    body: Sampling, trial: GrammarTrial, vocabulary: Vocabulary, tools: ToolForm | None = None
) -> str | None:
    """The grammar that a request asks for, None where it asks for none.

    Raises RequestError where it asks for several, or for one that cannot be compiled.
    """
    try:
        asked = _asked(body, tools)
    except ValueError as error:
        raise RequestError(400, f"the grammar is no Unicode text: {error}") from error
    if not asked:
        return None
    if len(asked) > 1:
        names = " and ".join(asked)
        raise RequestError(400, f"{names} exclude each other", param=next(iter(asked)))
    ((param, grammar),) = asked.items()
    if (fault := await trial.fault(grammar, vocabulary)) is not None:
        raise RequestError(400, f"{param} cannot be used: {fault}", param=param)
    return grammar


def _asked(body: Sampling, tools: ToolForm | None) -> dict[str, str]:
    found = {}
    if body.guided_regex is not None:
        found["guided_regex"] = LLMatcher.grammar_from_regex(body.guided_regex)
    if body.guided_grammar is not None:
        found["guided_grammar"] = LLMatcher.grammar_from_lark(body.guided_grammar)
    if isinstance(body, ChatRequest):
        if (schema := _schema(body)) is not None:
            found["response_format"] = LLMatcher.grammar_from_json_schema(schema, _LAYOUT)
        if tools is not None and "response_format" in found:
            raise RequestError(400, "response_format and tools exclude each other", param="tools")
        if tools is not None and body.tool_choice not in (None, "auto"):
            found["tool_choice"] = LLMatcher.grammar_from_lark(_forced(body, tools))
        elif tools is not None and any(tool.function.strict for tool in body.tools or ()):
            found["tools"] = LLMatcher.grammar_from_lark(_free(body, tools))
    return found


def _schema(body: ChatRequest) -> dict[str, Any] | None:
    wanted = body.response_format
    if wanted is None or wanted.type == "text":
        return None
    if wanted.json_schema is None:
        return _ANY_OBJECT
    return _ANY_OBJECT if wanted.json_schema.schema_ is None else wanted.json_schema.schema_


def _free(body: ChatRequest, tools: ToolForm) -> str:
    """Calls of a strict function keep its schema, those of another have any arguments."""
    functions = [tool.function for tool in body.tools or ()]
    return free_grammar(
        tools, [(each.name, _arguments(each) if each.strict else _ANY_OBJECT) for each in functions]
    )


def _forced(body: ChatRequest, tools: ToolForm) -> str:
    functions = {tool.function.name: _arguments(tool.function) for tool in body.tools or ()}
    choice = body.tool_choice
    if isinstance(choice, NamedTool):
        name = choice.function.name
        if name not in functions:
            raise RequestError(
                400, f"tool_choice names {name!r}, which is not in tools", param="tool_choice"
            )
        functions = {name: functions[name]}
    return forced_grammar(tools, list(functions.items()))


def _arguments(function: Function) -> dict[str, Any]:
    """The schema of a function's arguments, which are an object even where it does not say so."""
    schema = function.parameters or {}
    if schema.get("type", "object") != "object":
        message = f"the parameters of {function.name} are no object"
        raise RequestError(400, message, param="tools")
    return schema if "$ref" in schema else _ANY_OBJECT | schema
