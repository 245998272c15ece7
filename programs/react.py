"""A ReAct agent that a small model can drive: a slip costs it a turn, and not the run.

Small models name tools that do not exist, and write an argument between Markdown fences, or where JSON should be.
DSPy's ReAct would end the run at most of this, since it fixes the names and the form of the arguments in the types of
its fields. Here such a turn ends in an observation that says what was wrong, or the call is made as it was meant.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, ClassVar

import dspy
from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

_FENCE = re.compile(r"\s*```[ \t]*(?:python|py)?[ \t]*\n(.*?)\n?```\s*", re.DOTALL | re.IGNORECASE)


def forgiving_react(
    signature: type[dspy.Signature], tools: Sequence[Callable[..., Any] | dspy.Tool], *, max_iters: int = 6
) -> dspy.ReAct:
    """A `dspy.ReAct` with these tools; arguments that are a bare text are the first argument of the first tool.

    Args:
        signature: what the agent is to do.
        tools: functions or `dspy.Tool`; one or more.
        max_iters: how often it may act, 1 or more.
    """
    react = dspy.ReAct(signature, tools=list(tools), max_iters=max_iters)
    arguments = tuple(dict.fromkeys(name for tool in react.tools.values() for name in tool.args or {}))
    react.tools = _Tools(react.tools)
    names = ", ".join(f"`{name}`" for name in react.tools)
    fields = {
        "next_thought": (str, dspy.OutputField(default="")),
        "next_tool_name": (ToolName, dspy.OutputField(desc=f"one of {names}")),
        "next_tool_args": (_tool_arguments(arguments), dspy.OutputField(default={})),
    }
    acting = react.react.signature
    for name, (kind, field) in fields.items():
        acting = acting.delete(name).append(name, field, type_=kind)
    react.react.signature = acting
    return react


class _Tools(dict[str, dspy.Tool]):
    """The tools by name; in place of one that is not there, a tool that says which are."""

    def __missing__(self, name: str) -> dspy.Tool:
        message = f"There is no tool {name!r}. The tools are: {', '.join(self)}."
        return dspy.Tool(lambda **arguments: message, name=name or "nameless")


class ToolName(str):
    """A name, without quotes or brackets around it; whether there is such a tool is seen when it is called."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(
            lambda value: str(value).strip(" \n\t'\"`*.()"), core_schema.str_schema()
        )


class ToolArguments(dict[str, Any]):
    """Arguments of a tool: an object, or the first argument alone; Markdown fences around a text are taken off.

    Attributes:
        names: of all arguments of all tools, that of the first tool first.
    """

    names: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        arguments = core_schema.dict_schema(core_schema.str_schema(), core_schema.any_schema())
        return core_schema.no_info_before_validator_function(cls._read, arguments)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        # Named, and not just any object: structured output of some providers knows only properties that are named.
        return {"type": "object", "properties": {name: {"type": "string"} for name in cls.names}}

    @classmethod
    def _read(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {cls.names[0]: _unfenced(value)} if value.strip() else {}
        if not isinstance(value, dict):
            return {"arguments": value}  # which no tool takes, and says so
        return {name: _unfenced(item) if isinstance(item, str) else item for name, item in value.items()}


@cache
def _tool_arguments(names: tuple[str, ...]) -> type[ToolArguments]:
    return type("ToolArguments", (ToolArguments,), {"names": names})


def _unfenced(text: str) -> str:
    match = _FENCE.fullmatch(text)
    return match[1] if match else text
