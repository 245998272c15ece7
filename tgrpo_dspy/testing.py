"""A scripted language model for offline tests: an engine under a real ``dspy.LM``.

DSPy's own cache, retries, history and usage stay in place; only the answer comes from a function.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from xml.sax.saxutils import escape

import dspy
from dspy.lm15 import Message, Request, Response
from dspy.lm15 import Usage as ProviderUsage

_HEADER = re.compile(r"^\[\[ ## (\w+) ## \]\]\s*$", re.MULTILINE)
_TAG = re.compile(r"<(\w+)>\n(.*?)\n</\1>", re.DOTALL)
_REQUEST = "Respond with"


@dataclass(frozen=True, slots=True)
class Call:
    """A prompt as the model sees it: the system text, the last user text, and everything as one string.

    ``fields`` and ``asks_for`` read the forms of DSPy's chat, JSON and XML adapters.
    """

    system: str
    user: str
    text: str
    number: int

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


class ScriptedEngine:
    """Answers every request by a function of the prompt; counts and keeps the requests it saw.

    Args:
        respond: called with a ``Call``; returns the completion as text, or a mapping of output fields that is written
            in the form the call asks for. What it raises is the engine's failure.

    Example:
        >>> engine = ScriptedEngine(lambda call: {"answer": call.fields["question"].upper()})
        >>> with dspy.context(lm=engine.lm()):
        ...     dspy.Predict("question -> answer")(question="why?").answer
        'WHY?'
        >>> len(engine.calls)
        1
    """

    def __init__(self, respond: Callable[[Call], str | Mapping[str, Any]]) -> None:
        self.respond = respond
        self.calls: list[Call] = []
        self._lock = threading.Lock()

    def lm(self, model: str = "test/scripted", **kwargs: Any) -> dspy.LM:
        """A ``dspy.LM`` on this engine; keyword arguments as for ``dspy.LM``."""
        kwargs.setdefault("temperature", 0.0)
        kwargs.setdefault("num_retries", 0)
        return dspy.LM(model, engine=self, async_engine=_AsyncEngine(self), **kwargs)

    def complete(self, request: Request) -> Response:
        """DSPy's engine protocol: one request, one response."""
        system = request.system if isinstance(request.system, str) else "".join(p.text for p in request.system or ())
        texts = [message.text or "" for message in request.messages]
        with self._lock:
            call = Call(system, texts[-1], "\n".join([system, *texts]), len(self.calls))
            self.calls.append(call)
        answer = self.respond(call)
        text = answer if isinstance(answer, str) else completion(answer, call.form)
        usage = ProviderUsage(input_tokens=len(call.text) // 4, output_tokens=len(text) // 4)
        return Response(
            id=None, model="scripted", message=Message.assistant(text or " "), finish_reason="stop", usage=usage
        )

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


def _unscripted(call: Call) -> str:
    raise RuntimeError("this engine was loaded from a file and has no script; set the program's LM again")
