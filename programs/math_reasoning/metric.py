"""The reward: whether an answer is mathematically equal to the label."""

from __future__ import annotations

import atexit
import os
from functools import cache
from typing import Any

import dspy

from programs.math_reasoning.answers import readings
from programs.math_reasoning.equality import Equality, TooHardError

_SHOWN = 200  # characters of an answer


def math_accuracy(
    gold: dspy.Example, pred: Any, trace: Any = None, pred_name: str | None = None, pred_trace: Any = None
) -> dspy.Prediction:
    """1.0 when ``pred.answer`` says the same as ``gold.answer``, else 0.0; the feedback shows both.

    Raises:
        CheckerError: when math-verify is missing or fails.
    """
    label, value = str(gold.answer).strip(), getattr(pred, "answer", None)
    written = "" if value is None else str(value).strip()
    if not written:
        return dspy.Prediction(score=0.0, feedback=f"no answer, expected {label!r}")
    both = f"wrote {_shown(written)}, expected {label!r}"
    if written.casefold() == label.casefold():
        return dspy.Prediction(score=1.0, feedback=f"right: {both}")
    labels, answers = readings(label), readings(written)
    if not answers:
        return dspy.Prediction(score=0.0, feedback=f"wrong: {both}. Only one number or expression is an answer.")
    try:
        equal = bool(labels) and _equality(os.getpid())(labels, answers)
    except TooHardError as error:
        return dspy.Prediction(score=0.0, feedback=f"wrong: {both}. They could not be compared: {error}.")
    return dspy.Prediction(score=float(equal), feedback=f"{'right' if equal else 'wrong'}: {both}")


@cache
def _equality(pid: int) -> Equality:
    """One for a process: a fork must not share the pipes of its parent."""
    equality = Equality()
    atexit.register(equality.close)
    return equality


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")
