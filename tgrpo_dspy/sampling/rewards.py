"""The user's metric, called as DSPy calls it and held to its contract."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any, NamedTuple

import dspy

from tgrpo_dspy.errors import ConfigurationError, MetricError
from tgrpo_dspy.text import whole

_FULL_ARITY = 5


class Reward(NamedTuple):
    """A number and, where the metric gives one, the reason for it."""

    value: float
    feedback: str


class Metric:
    """A user's metric ``(gold, pred, trace=None, pred_name=None, pred_trace=None)``, sync or async.

    It is called with as many arguments as it requires, at least two; ``trace`` is None, so that metrics which turn
    strict when they see a trace stay graded.

    Args:
        function: returns a bool, a number, ``dspy.Prediction(score=…, feedback=…)`` or a dict with those keys.

    Raises:
        ConfigurationError: when ``function`` cannot be called that way.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        if not callable(function):
            raise ConfigurationError(
                f"metric must be a function (gold, pred, trace=None) returning a score, got {function!r}"
            )
        self.function = function
        self.name = getattr(function, "__name__", type(function).__name__)
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 - an object whose __call__ is async
        )
        self._extra = (None,) * (_required_arguments(function, self.name) - 2)

    def call(self, gold: dspy.Example, pred: Any) -> Any:
        """Call the metric; its raw result, or a coroutine when it is async."""
        return self.function(gold, pred, *self._extra)

    def interpret(self, result: Any) -> Reward:
        """The reward in a metric's result.

        Raises:
            MetricError: when the result is not a finite number with an optional text.

        Example:
            >>> Metric(lambda gold, pred: True).interpret(dspy.Prediction(score=0.5, feedback="half right"))
            Reward(value=0.5, feedback='half right')
        """
        score, feedback = result, None
        if isinstance(result, dspy.Prediction | Mapping):
            if "score" not in result:
                raise self._broken(result, "it has no 'score'")
            score, feedback = result["score"], result.get("feedback")
        if hasattr(score, "item") and not isinstance(score, Real):
            score = score.item()
        if not isinstance(score, Real):
            raise self._broken(result, f"{type(score).__name__} is not a number")
        if not math.isfinite(score):
            raise self._broken(result, "a reward must be finite")
        return Reward(float(score), "" if feedback is None else whole(str(feedback)))

    def _broken(self, result: Any, why: str) -> MetricError:
        return MetricError(
            f"metric {self.name!r} returned {result!r}: {why}. Return a bool, a number or "
            "dspy.Prediction(score=<number>, feedback=<text>)."
        )


def _required_arguments(function: Callable[..., Any], name: str) -> int:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin without a signature
        return 2
    for count in range(2, _FULL_ARITY + 1):
        try:
            signature.bind(*(None,) * count)
        except TypeError:
            continue
        return count
    raise ConfigurationError(
        f"metric {name!r} has the signature {signature}, but is called as (gold, pred) or "
        "(gold, pred, trace, pred_name, pred_trace)"
    )
