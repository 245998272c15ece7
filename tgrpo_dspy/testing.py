"""A scripted language model for offline tests: an engine under a real ``dspy.LM``.

DSPy's own cache, retries, history and usage stay in place; only the answer comes from a function.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias
from xml.sax.saxutils import escape

import dspy
from dspy.lm15 import Message, Request, Response, TextPart, ToolCallPart, ToolResultPart
from dspy.lm15 import Usage as ProviderUsage

_HEADER = re.compile(r"^\[\[ ## (\w+) ## \]\]\s*$", re.MULTILINE)
_TAG = re.compile(r"<(\w+)>\n(.*?)\n</\1>", re.DOTALL)
_REQUEST = "Respond with"


@dataclass(frozen=True, slots=True)
class Call:
    """A prompt as the model sees it: the system text, the last user text, and everything as one string.

    ``fields`` and ``asks_for`` read the forms of DSPy's chat, JSON and XML adapters. ``request`` is what the engine
    got, with the temperature in its ``config`` and natively offered tools in ``tools``.
    """

    system: str
    user: str
    text: str
    number: int
    request: Request = field(repr=False)

    @classmethod
    def of(cls, request: Request, number: int) -> Call:
        """The call that a request makes."""
        system = request.system if isinstance(request.system, str) else _text_of(request.system or ())
        texts = [_text_of(message.parts) for message in request.messages]
        return cls(system, texts[-1], "\n".join([system, *texts]), number, request)

    @property
    def form(self) -> Literal["chat", "json", "xml"]:
        """The form in which the answer is asked for."""
        if f"{_REQUEST} a JSON object" in self.user:
            return "json"
        return "xml" if f"{_REQUEST} the corresponding output fields wrapped in XML" in self.user else "chat"

    @property
    def fields(self) -> Mapping[str, str]:
        """The input fields of the last user message."""
        given = self.user.rsplit(f"\n\n{_REQUEST}", 1)[0]
        if self.form == "xml":
            return dict(_TAG.findall(given))
        parts = _HEADER.split(given)
        return {name: value.strip() for name, value in zip(parts[1::2], parts[2::2], strict=True)}

    @property
    def asks_for(self) -> tuple[str, ...]:
        """The output fields asked for."""
        request = self.user.rsplit(_REQUEST, 1)[-1]
        pattern = {"chat": r"`\[\[ ## (\w+) ## \]\]`", "json": r"`(\w+)`", "xml": r"`<(\w+)>`"}[self.form]
        return tuple(name for name in re.findall(pattern, request) if name != "completed")


Answer: TypeAlias = str | Mapping[str, Any] | Message


class ScriptedEngine:
    """Answers every request by a function of the prompt; counts and keeps the requests it saw.

    Args:
        respond: called with a ``Call``; returns the completion as text, a mapping of output fields that is written in
            the form the call asks for, or a ``dspy.lm15.Message`` such as ``tool_call`` makes. What it raises is the
            engine's failure.
        native_tools: whether the model can be offered tools natively, by adapters that use this. Otherwise they write
            the tools into the prompt and read the calls from the completion.

    It can be pickled when ``respond`` can; the copy has seen no calls. A copied program shares it.

    Example:
        >>> engine = ScriptedEngine(lambda call: {"answer": call.fields["question"].upper()})
        >>> with dspy.context(lm=engine.lm()):
        ...     dspy.Predict("question -> answer")(question="why?").answer
        'WHY?'
        >>> len(engine.calls)
        1
    """

    def __init__(self, respond: Callable[[Call], Answer], *, native_tools: bool = False) -> None:
        self.respond = respond
        self.supports_function_calling = native_tools  # DSPy reads it
        self.calls: list[Call] = []
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "calls": [], "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock())

    def __deepcopy__(self, memo: dict[int, Any]) -> ScriptedEngine:
        return self

    def lm(self, model: str = "test/scripted", **kwargs: Any) -> dspy.LM:
        """A ``dspy.LM`` on this engine; keyword arguments as for ``dspy.LM``."""
        kwargs.setdefault("temperature", 0.0)
        kwargs.setdefault("num_retries", 0)
        return dspy.LM(model, engine=self, async_engine=_AsyncEngine(self), **kwargs)

    def complete(self, request: Request) -> Response:
        """DSPy's engine protocol: one request, one response."""
        with self._lock:
            call = Call.of(request, len(self.calls))
            self.calls.append(call)
        message = _message(self.respond(call), call.form)
        usage = ProviderUsage(input_tokens=len(call.text) // 4, output_tokens=len(_text_of(message.parts)) // 4)
        finish: Literal["tool_call", "stop"] = "tool_call" if message.first(ToolCallPart) else "stop"
        return Response(id=None, model="scripted", message=message, finish_reason=finish, usage=usage)

    def dump_state(self) -> dict[str, Any]:
        """Nothing of a script is saved; a loaded program needs its LM set again."""
        return {}

    @classmethod
    def load_state(cls, state: dict[str, Any]) -> ScriptedEngine:
        """An engine that refuses to answer."""
        return cls(_unscripted)


class _AsyncEngine:
    def __init__(self, engine: ScriptedEngine) -> None:
        self._engine = engine

    async def complete(self, request: Request) -> Response:
        return self._engine.complete(request)

    def dump_state(self) -> dict[str, Any]:
        return {}

    @classmethod
    def load_state(cls, state: dict[str, Any]) -> _AsyncEngine:
        return cls(ScriptedEngine(_unscripted))


def completion(fields: Mapping[str, Any], form: Literal["chat", "json", "xml"] = "chat") -> str:
    """Output fields in the form of one of DSPy's adapters; values that are no text are written as JSON.

    Example:
        >>> completion({"answer": "42"}, "xml")
        '<answer>\\n42\\n</answer>'
    """
    if form == "json":
        return json.dumps(dict(fields), ensure_ascii=False)
    texts = {k: v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for k, v in fields.items()}
    if form == "xml":
        return "\n\n".join(f"<{name}>\n{escape(text)}\n</{name}>" for name, text in texts.items())
    parts = [f"[[ ## {name} ## ]]\n{text}" for name, text in texts.items()]
    return "\n\n".join([*parts, "[[ ## completed ## ]]"])


def tool_call(name: str, **arguments: Any) -> Message:
    """An answer that calls a tool natively.

    Example:
        >>> tool_call("look", where="there").parts[0].input
        {'where': 'there'}
    """
    return Message.assistant(ToolCallPart(id=f"call_{name}", name=name, input=arguments))


def _message(answer: Answer, form: Literal["chat", "json", "xml"]) -> Message:
    if isinstance(answer, Message):
        return answer
    text = answer if isinstance(answer, str) else completion(answer, form)
    return Message.assistant(text or " ")


def _text_of(parts: Iterable[Any]) -> str:
    """The text of message parts, with the results of tools, without images and calls."""
    results = (part.content if isinstance(part, ToolResultPart) else [part] for part in parts)
    return "".join(part.text for content in results for part in content if isinstance(part, TextPart))


def _unscripted(call: Call) -> str:
    raise RuntimeError("this engine was loaded from a file and has no script; set the program's LM again")
