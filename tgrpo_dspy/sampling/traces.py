"""What a rollout did, turned into text at once: live objects may change later."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from hashlib import sha256
from threading import RLock
from typing import Any

import dspy
import pydantic
from dspy.adapters.types.base_type import CUSTOM_TYPE_END_IDENTIFIER, CUSTOM_TYPE_START_IDENTIFIER
from dspy.utils.callback import BaseCallback

from tgrpo_dspy.records import Demonstration, Turn
from tgrpo_dspy.sampling.demos import demonstration
from tgrpo_dspy.text import shorten, whole

MAX_VALUE_CHARS = 4000

# Below this a history is not worth an ellipsis: "question" followed by "question?" is clearer in full.
_SHORT_CHARS = 40
_OVERLAP_CHARS = 100
_DATA_URI = re.compile(r"data:(\w+)/([\w.+-]+)[\w;=.+-]*;base64,([A-Za-z0-9+/=_-]+)")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+(?=>)")
_REACT_KEY = re.compile(r"(thought|tool_name|tool_args|observation)_\d+")


def render_value(value: Any, limit: int = MAX_VALUE_CHARS) -> str:
    """A value as text, shortened in the middle to ``limit`` characters. Never raises.

    Images, audio and files are described, not spelled out; a history is one message a line. The same value gives the
    same text in every process, and the text can be encoded.

    Example:
        >>> render_value(["a", 1]), render_value("x" * 100, limit=30)
        ("['a', 1]", 'xxxxxxxx …[85 more]… xxxxxxx')
        >>> render_value(dspy.Image("data:image/png;base64," + "iVBO" * 4096))
        '<image: png, 12 KB, #c17d9f>'
    """
    return shorten(_full_text(value), limit)


def render_call(name: str, arguments: Mapping[str, str]) -> str:
    """A call with its arguments.

    Example:
        >>> render_call("look", {"where": "there", "times": "2"})
        'look(where=there; times=2)'
    """
    return f"{name}({'; '.join(f'{key}={value}' for key, value in arguments.items())})"


class Recorder(list[Any]):
    """A DSPy trace that renders every entry when it is made, with the tool calls in between.

    Use it as ``dspy.context(trace=recorder, callbacks=[…, recorder.callback])``. Threads of one rollout may share it.
    Modules that try several times under a trace of their own and keep one attempt (BestOfN, Refine) are followed while
    they try; the turns of the attempt they keep are taken over when its entries arrive.

    Args:
        program: the program that runs. Those it does not list (frozen or made on the fly) are named after their class.
        keep_demonstrations: keep what it takes to show the last call of every listed predictor to later runs.
    """

    def __init__(self, program: dspy.Module, *, keep_demonstrations: bool = False) -> None:
        super().__init__()
        self._keeps = keep_demonstrations
        self._last: dict[str, Demonstration | None] = {}
        self._names = _Names(program)
        self._lock = RLock()
        self._turns = _Turns()
        self._attempts: list[tuple[list[Any], _Turns]] = []
        self.callback = _Watcher(self)

    def turns(self) -> tuple[Turn, ...]:
        """The calls so far, in the order in which they ended."""
        with self._lock:
            return tuple(self._turns.shown)

    def demonstrations(self) -> tuple[Demonstration, ...]:
        """The last call of every predictor of which a demonstration can be made."""
        with self._lock:
            return tuple(shown for _, shown in sorted(self._last.items()) if shown is not None)

    def append(self, entry: Any) -> None:
        """Called by DSPy for every call of a predictor."""
        with self._lock:
            super().append(entry)
            self._add(entry, self._turns)
            if self._keeps and _is_call(entry) and (name := self._names.listed(entry[0])) is not None:
                self._last[name] = demonstration(name, *entry)

    def extend(self, entries: Iterable[Any]) -> None:
        """Called by modules that keep one of several attempts."""
        for entry in entries:
            self.append(entry)

    def tool_ended(self, turn: Turn, *, says_nothing: bool) -> None:
        """Called when a tool of the program ended, with full texts."""
        with self._lock:
            self._now().add_tool(turn, says_nothing=says_nothing)

    def module_ended(self) -> None:
        """Called when a module ended: a trace that is not this one may have new entries."""
        with self._lock:
            turns = self._now()
            if turns is not self._turns:
                for entry in dspy.settings.trace[len(turns.ends) :]:
                    self._add(entry, turns)

    def _now(self) -> _Turns:
        """The turns that go with DSPy's current trace."""
        current = dspy.settings.trace
        if current is None or current is self:
            return self._turns
        for trace, turns in self._attempts:
            if trace is current:
                return turns
        self._attempts.append((current, _Turns()))
        return self._attempts[-1][1]

    def _add(self, entry: Any, turns: _Turns) -> None:
        for _, attempt in self._attempts:
            if attempt is not turns and attempt.has(entry):
                return turns.take_over(entry, attempt)
        return turns.add_entry(entry, self._names)


class _Watcher(BaseCallback):
    """Tells a recorder what DSPy's traces leave out."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._started: dict[str, tuple[str, dict[str, str]]] = {}

    def on_tool_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        arguments = inputs.get("kwargs")
        self._started[call_id] = (str(instance.name), _texts(arguments if isinstance(arguments, dict) else inputs))

    def on_tool_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:
        name, arguments = self._started.pop(call_id)
        if exception is None:
            result = {"observation": _full_text(outputs)}
        else:
            result = {"error": f"{type(exception).__name__}: {_full_text(exception)}"}
        self._recorder.tool_ended(
            Turn(name=name, inputs=arguments, outputs=result, kind="tool"),
            says_nothing=exception is None and _only_ends(name, arguments, outputs),
        )

    def on_module_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:
        self._recorder.module_ended()


class _Turns:
    """The turns that go with one trace, without what they repeat.

    Attributes:
        shown: the turns.
        ends: the entries of the trace, each with the number of turns up to and with it.
    """

    def __init__(self) -> None:
        self.shown: list[Turn] = []
        self.ends: list[tuple[Any, int]] = []
        self._tools: list[Turn] = []
        # Hashes, and one full text a field: a history that grows by a step a turn would fill the memory.
        self._told: set[int] = set()
        self._last: dict[str, tuple[str, int]] = {}

    def add_entry(self, entry: Any, names: _Names) -> None:
        """A call of a predictor, as DSPy traces it."""
        if _is_call(entry):
            predictor, inputs, prediction = entry
            signature = getattr(predictor, "signature", None)
            fields = inputs if signature is None else [name for name in signature.input_fields if name in inputs]
            name = names.of(predictor)
            self._add(name, _texts({name: inputs[name] for name in fields}), _texts(_fields_of(prediction)))
        self.ends.append((entry, len(self.shown)))

    def add_tool(self, turn: Turn, *, says_nothing: bool) -> None:
        """A call of a tool."""
        self._told |= {hash(text) for text in turn.outputs.values()}
        turn = replace(turn, inputs=_short(turn.inputs), outputs=_short(turn.outputs))
        self._tools.append(turn)
        if not says_nothing:
            self.shown.append(turn)

    def has(self, entry: Any) -> bool:
        """Whether an entry is of this trace."""
        return any(known is entry for known, _ in self.ends)

    def take_over(self, entry: Any, attempt: _Turns) -> None:
        """Take the turns of another trace that lead to an entry; with its last entry also those that follow."""
        position = next(i for i, (known, _) in enumerate(attempt.ends) if known is entry)
        start = attempt.ends[position - 1][1] if position else 0
        stop = attempt.ends[position][1] if position + 1 < len(attempt.ends) else None
        self.shown += attempt.shown[start:stop]
        attempt.ends[position] = (None, attempt.ends[position][1])
        self.ends.append((entry, len(self.shown)))
        self._told |= attempt._told

    def _add(self, name: str, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> None:
        new = {field: part for field, text in inputs.items() if (part := self._new_part(field, text)) is not None}
        self._told |= {hash((field, text)) for field, text in inputs.items()}
        self._told |= {hash(text) for text in outputs.values()}
        self._last |= {field: (text, len(self._tools)) for field, text in inputs.items()}
        self.shown.append(Turn(name=name, inputs=_short(new), outputs=_short(outputs)))

    def _new_part(self, field: str, text: str) -> str | None:
        """What an input says that no turn has said before; None when that is nothing."""
        if hash((field, text)) in self._told or hash(text) in self._told:
            return None
        if field not in self._last:
            return text
        last, tools_then = self._last[field]
        added = _added(last, text)
        if added is None:
            return text
        # What the tools said in between is told by their turns.
        said = [part for tool in self._tools[tools_then:] for part in (tool.name, *tool.outputs.values()) if part]
        if not added or any(part in added for part in said):
            return None
        return f"… {added}" if len(last) >= _SHORT_CHARS else text


def _added(last: str, text: str) -> str | None:
    """What a text adds to an earlier one that it repeats, in whole or from some point on; None when it does not.

    Example:
        >>> _added("[1, 2]", "[1, 2, 3]"), _added("[1, 2]", "[1, 25]")
        ('3]', None)
    """
    stem = last.rstrip("]}")
    if text.startswith(stem):
        added = text[len(stem) :]
        if stem == last or stem.endswith(("[", "{")) or added.startswith(","):
            return added.lstrip(", \n")
    start = last.find(text[:_OVERLAP_CHARS]) if len(text) > _OVERLAP_CHARS else -1
    if start > 0 and text.startswith(last[start:]):  # a window on a history that has lost its beginning
        return text[len(last) - start :].lstrip(", \n")
    return None


def _only_ends(name: str, arguments: Mapping[str, str], outputs: Any) -> bool:
    """Whether a tool call is how DSPy's agents say that they are done: the turn before it says so too."""
    if name == "finish":
        return not arguments and isinstance(outputs, str) and outputs == "Completed."
    return name == "submit" and isinstance(outputs, dict) and _texts(outputs).items() <= arguments.items()


def _is_call(entry: Any) -> bool:
    """Whether an entry of a trace is a call of a predictor, as DSPy writes it; programs may add anything."""
    return isinstance(entry, tuple) and len(entry) == 3 and isinstance(entry[1], Mapping)


def outputs_of(prediction: Any) -> dict[str, str]:
    """The fields of a prediction as text; a result that is no prediction is one field named ``result``.

    The history that an agent hands out beside its answer is left out: the turns of the rollout tell it.
    """
    return _short(_texts({n: v for n, v in _fields_of(prediction).items() if not _is_history(v)}))


def _fields_of(prediction: Any) -> dict[str, Any]:
    return dict(prediction.items()) if isinstance(prediction, dspy.Prediction) else {"result": prediction}


def _is_history(value: Any) -> bool:
    if isinstance(value, dict) and value:
        return all(isinstance(key, str) and _REACT_KEY.fullmatch(key) for key in value)
    return isinstance(value, dspy.History)


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: _full_text(value) for name, value in values.items()}


def _short(texts: Mapping[str, str]) -> dict[str, str]:
    return {name: shorten(text, MAX_VALUE_CHARS) for name, text in texts.items()}


class _Names:
    """The names of a program's predictors: by the object itself, or by its ``stage``, which survives copies."""

    def __init__(self, program: dspy.Module) -> None:
        predictors = program.named_predictors()
        stages = Counter(predictor.stage for _, predictor in predictors)
        self._by_id: dict[int, str] = {id(predictor): name for name, predictor in predictors}
        self._by_stage: dict[str, str] = {
            predictor.stage: name for name, predictor in predictors if stages[predictor.stage] == 1
        }

    def listed(self, predictor: Any) -> str | None:
        """Its name in the program, if it has one."""
        return self._by_id.get(id(predictor)) or self._by_stage.get(getattr(predictor, "stage", ""))

    def of(self, predictor: Any) -> str:
        """Its name in the program, else that of its class."""
        return self.listed(predictor) or type(predictor).__name__


def _full_text(value: Any) -> str:
    try:
        text = _text(value)
    except Exception as error:  # a user's object may do anything
        return f"<{type(value).__name__} that cannot be shown: {type(error).__name__}>"
    if ";base64," in text:
        text = _DATA_URI.sub(_describe, text)
    return whole(text)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return str(value)
    if isinstance(value, dspy.History):
        return "\n".join("; ".join(f"{k}: {v}" for k, v in _texts(m).items()) for m in value.messages)
    if isinstance(value, dspy.Tool):
        return f"{value.name}: {value.desc}" if value.desc else str(value.name)
    if isinstance(value, dspy.ToolCalls):
        return _tool_calls(value)
    if isinstance(value, dspy.Image):
        return str(value.url)
    if isinstance(value, dspy.Audio):
        return f"data:audio/{value.audio_format};base64,{value.data}"
    if isinstance(value, bytes | bytearray):
        return f"<bytes: {_size(len(value))}, #{_digest(bytes(value))}>"
    if isinstance(value, pydantic.BaseModel):
        return _model(value)
    return _ADDRESS.sub("", _container(value))


def _container(value: Any) -> str:
    """Like ``str``, but what is inside is written as it would be alone where ``repr`` would be long or change."""
    if type(value) is dict:
        return "{" + ", ".join(f"{key!r}: {_inside(item)}" for key, item in value.items()) + "}"
    if type(value) is list:
        return "[" + ", ".join(map(_inside, value)) + "]"
    if type(value) in (set, frozenset) and value:
        return "{" + ", ".join(sorted(map(_inside, value))) + "}"
    return str(value)


def _inside(value: Any) -> str:
    alone = isinstance(value, dspy.Type | dspy.History | bytes | bytearray) or type(value) in (dict, list, set)
    return _full_text(value) if alone else repr(value)


def _model(value: pydantic.BaseModel) -> str:
    content = value.model_dump(mode="json", fallback=str, warnings=False)
    if isinstance(content, str):
        return content.replace(CUSTOM_TYPE_START_IDENTIFIER, "").replace(CUSTOM_TYPE_END_IDENTIFIER, "")
    return value.model_dump_json(fallback=str, warnings=False)


def _tool_calls(calls: Any) -> str:
    texts = [render_call(call.name, _texts(call.args)) for call in calls.tool_calls]
    results = getattr(calls.tool_call_results, "tool_call_results", None) or []
    if len(results) == len(texts):
        texts = [f"{text} -> {_full_text(result.value)}" for text, result in zip(texts, results, strict=True)]
    return "; ".join(texts)


def _describe(uri: re.Match[str]) -> str:
    kind, form, data = uri.groups()
    return f"<{kind}: {form}, {_size(len(data) * 3 // 4)}, #{_digest(data.encode())}>"


def _size(count: int) -> str:
    return f"{count} bytes" if count < 1024 else f"{count / 1024:.0f} KB"


def _digest(data: bytes) -> str:
    """Tells values apart that would read the same, for the reader and for whoever compares texts."""
    return sha256(data).hexdigest()[:6]
