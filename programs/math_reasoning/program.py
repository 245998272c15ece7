"""The programs: reasoning alone, and an agent with a Python tool."""

from __future__ import annotations

from collections.abc import Callable

import dspy

from programs.react import forgiving_react


class SolveProblem(dspy.Signature):
    """Solve the problem. The answer is the final number or expression alone."""

    question: str = dspy.InputField()
    answer: str = dspy.OutputField()


def chain_of_thought() -> dspy.Module:
    """A fresh student that reasons and answers."""
    return dspy.ChainOfThought(SolveProblem)


def agent(tool: Callable[[str], str] | dspy.Tool, max_iters: int = 6) -> dspy.Module:
    """A fresh student that may run Python before it answers.

    Args:
        tool: ``python(code: str) -> str``, which returns what the code printed, or its error.
        max_iters: how often it may act.
    """
    return forgiving_react(SolveProblem, [tool], max_iters=max_iters)
