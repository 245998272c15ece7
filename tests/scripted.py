"""A toy task on the scripted engine: answer in the house style, which the model follows only when a lesson says so.

The right answer to a question is the question in capital letters. Without the rule in its prompt the model gets it
right in some rollouts only, so that groups are informative; with the rule it always does.
"""

from __future__ import annotations

import json
from typing import Any

import dspy

from tgrpo_dspy.records import Rollout
from tgrpo_dspy.runs.events import Event, RolloutFinished
from tgrpo_dspy.testing import Call, ScriptedEngine

RULE = "Write the answer in capital letters."


def examples(count: int, prefix: str = "question") -> list[dspy.Example]:
    return [
        dspy.Example(question=f"{prefix} number {i}", answer=f"{prefix} number {i}".upper()).with_inputs("question")
        for i in range(count)
    ]


def exact(gold: dspy.Example, pred: Any, trace: Any = None) -> bool:
    return bool(gold.answer == pred.answer)


def reflects(call: Call) -> bool:
    """Whether a call asks for lessons, not for an answer of the program."""
    return "attempts" in call.fields


def edits(call: Call, *proposals: dict[str, Any]) -> dict[str, str]:
    """A reflection answer with these edits, in the form the call asks for."""
    if "rules" in call.asks_for:
        return {"advantage": "capital letters win", "rules": "\n".join(p["lesson"] for p in proposals)}
    return {"advantage": "capital letters win", "edits": json.dumps(list(proposals))}


def add(lesson: str = RULE) -> dict[str, Any]:
    return {"operation": "ADD", "lesson": lesson}


class Seen(list[Rollout]):
    """A listener that keeps the rollouts of the learning, with their turns."""

    def __call__(self, event: Event) -> None:
        if isinstance(event, RolloutFinished) and not event.evaluation:
            self.append(event.rollout)


class Model:
    """A scripted model with an engine of its own, which keeps what it was asked."""

    def __init__(self) -> None:
        self.engine = ScriptedEngine(self)

    def __call__(self, call: Call) -> Any:
        raise NotImplementedError

    def lm(self, **kwargs: Any) -> dspy.LM:
        return self.engine.lm(**kwargs)

    @property
    def reflections(self) -> list[Call]:
        return [call for call in self.engine.calls if reflects(call)]

    @property
    def runs(self) -> list[Call]:
        return [call for call in self.engine.calls if not reflects(call)]


class Shouting(Model):
    """The model of the toy task. ``lucky`` decides by call number whether a run without the rule is right."""

    def __init__(self, *proposals: dict[str, Any], lucky: int = 2) -> None:
        self.proposals = proposals or (add(),)
        self.lucky = lucky
        super().__init__()

    def __call__(self, call: Call) -> dict[str, str]:
        if reflects(call):
            return edits(call, *self.proposals)
        question = call.fields["question"]
        right = RULE in call.system or call.number % self.lucky == 0
        return {"answer": question.upper() if right else question}
