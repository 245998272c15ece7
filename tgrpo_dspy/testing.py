"""A scripted language model for offline tests: an engine under a real ``dspy.LM``.

DSPy's own cache, retries, history and usage stay in place; only the answer comes from a function.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import dspy
from dspy.lm15 import Message, Request, Response
from dspy.lm15 import Usage as ProviderUsage

_HEADER = re.compile(r"^\[\[ ## (\w+) ## \]\]\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Call:
    """A prompt as the model sees it: the system text, the last user text, and everything as one string."""

    system: str
    user: str
    text: str
    number: int

    @property
    def fields(self) -> Mapping[str, str]:
        """The input fields of the last user message, in ChatAdapter's form."""
        parts = _HEADER.split(self.user)
        return {
            name: value.split("\n\nRespond with")[0].strip()
            for name, value in zip(parts[1::2], parts[2::2], strict=True)
        }

    @property
    def asks_for(self) -> tuple[str, ...]:
        """The output fields asked for, in ChatAdapter's form."""
        return tuple(re.findall(r"`\[\[ ## (\w+) ## \]\]`", self.user.rsplit("Respond with", 1)[-1]))[:-1]


class ScriptedEngine:
    """Answers every request by a function of the prompt; counts and keeps the requests it saw.

    Args:
        respond: called with a ``Call``; returns the completion as text, or a mapping of output fields that is written
            in ChatAdapter's form. What it raises is the engine's failure.

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
        text = answer if isinstance(answer, str) else chat_completion(answer)
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


def chat_completion(fields: Mapping[str, Any]) -> str:
    """Output fields in ChatAdapter's form."""
    parts = [f"[[ ## {name} ## ]]\n{value}" for name, value in fields.items()]
    return "\n\n".join([*parts, "[[ ## completed ## ]]"])


def _unscripted(call: Call) -> str:
    raise RuntimeError("this engine was loaded from a file and has no script; set the program's LM again")
