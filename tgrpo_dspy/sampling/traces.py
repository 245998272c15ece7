"""What a rollout did, turned into text at once: live objects may change later."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import dspy
import pydantic
from dspy.utils.callback import BaseCallback

from tgrpo_dspy.records import Turn

MAX_VALUE_CHARS = 4000


def render_value(value: Any, limit: int = MAX_VALUE_CHARS) -> str:
    """A value as text, shortened in the middle to ``limit`` characters.

    Example:
        >>> render_value(["a", 1]), render_value("x" * 100, limit=30)
        ("['a', 1]", 'xxxxxxxx …[85 more]… xxxxxxx')
    """
    text = value.model_dump_json() if isinstance(value, pydantic.BaseModel) else str(value)
    return shorten(text, limit)


def shorten(text: str, limit: int) -> str:
    """Cut the middle out of a text longer than ``limit`` characters, saying how much is gone."""
    if len(text) <= limit:
        return text
    keep = max(0, limit - 15)
    head, tail = keep - keep // 2, keep // 2
    return f"{text[:head]} …[{len(text) - keep} more]… {text[len(text) - tail :]}"


class Recorder(list[Any]):
    """A DSPy trace that renders every entry when it is made, with the tool calls in between.

    Use it as ``dspy.context(trace=recorder, callbacks=[…, recorder.callback])``.

    Args:
        program: the program that runs. Its predictors are recognised by ``stage``, which survives copies; those it does
            not list (frozen or made on the fly) are named after their class.
    """

    def __init__(self, program: dspy.Module) -> None:
        super().__init__()
        self._names = _names_by_stage(program)
        self._turns: list[Turn] = []
        self.callback = _ToolRecorder(self._turns)

    def turns(self) -> tuple[Turn, ...]:
        """The calls so far, in order."""
        return tuple(self._turns)

    def append(self, entry: Any) -> None:
        """Called by DSPy for every call of a predictor."""
        super().append(entry)
        self._record(entry)

    def extend(self, entries: Iterable[Any]) -> None:
        """Called by modules that keep one of several attempts."""
        for entry in entries:
            self.append(entry)

    def _record(self, entry: tuple[Any, dict[str, Any], Any]) -> None:
        predictor, inputs, prediction = entry
        self._turns.append(
            Turn(
                name=self._names.get(predictor.stage, type(predictor).__name__),
                inputs={n: render_value(inputs[n]) for n in predictor.signature.input_fields if n in inputs},
                outputs=outputs_of(prediction),
            )
        )


class _ToolRecorder(BaseCallback):
    """Adds the tool calls of a rollout to its turns."""

    def __init__(self, turns: list[Turn]) -> None:
        self._turns = turns
        self._started: dict[str, tuple[str, dict[str, str]]] = {}

    def on_tool_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        self._started[call_id] = (instance.name, {n: render_value(v) for n, v in inputs.get("kwargs", inputs).items()})

    def on_tool_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:
        name, arguments = self._started.pop(call_id)
        result = {"observation": render_value(outputs)} if exception is None else {"error": render_value(exception)}
        self._turns.append(Turn(name=name, inputs=arguments, outputs=result, kind="tool"))


def outputs_of(prediction: Any) -> dict[str, str]:
    """The fields of a prediction as text; a result that is no prediction is one field named ``result``."""
    if isinstance(prediction, dspy.Prediction):
        return {name: render_value(value) for name, value in prediction.items()}
    return {"result": render_value(prediction)}


def _names_by_stage(program: dspy.Module) -> dict[str, str]:
    predictors = program.named_predictors()
    stages = Counter(predictor.stage for _, predictor in predictors)
    return {predictor.stage: name for name, predictor in predictors if stages[predictor.stage] == 1}
