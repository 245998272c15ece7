"""What a rollout did, turned into text at once: live objects may change later."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import dspy
import pydantic

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


def turns_of(trace: Iterable[tuple[Any, dict[str, Any], Any]], program: dspy.Module) -> tuple[Turn, ...]:
    """The calls of a DSPy trace in order, by the predictor's name in ``program``.

    Predictors are recognised by ``stage``, which survives copies; those the program does not list (frozen or made on
    the fly) are named after their class.
    """
    names = _names_by_stage(program)
    return tuple(
        Turn(
            predictor=names.get(predictor.stage, type(predictor).__name__),
            inputs={name: render_value(inputs[name]) for name in predictor.signature.input_fields if name in inputs},
            outputs=outputs_of(prediction),
        )
        for predictor, inputs, prediction in trace
    )


def outputs_of(prediction: Any) -> dict[str, str]:
    """The fields of a prediction as text; a result that is no prediction is one field named ``result``."""
    if isinstance(prediction, dspy.Prediction):
        return {name: render_value(value) for name, value in prediction.items()}
    return {"result": render_value(prediction)}


def _names_by_stage(program: dspy.Module) -> dict[str, str]:
    predictors = program.named_predictors()
    stages = Counter(predictor.stage for _, predictor in predictors)
    return {predictor.stage: name for name, predictor in predictors if stages[predictor.stage] == 1}
