"""A model that answers by question and by how often it was asked it, so that the order of arrival decides nothing."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import dspy

from tests.scripted import Model, add, edits, exact, reflects
from tgrpo_dspy import TrainingFreeGRPO
from tgrpo_dspy.records import CompileReport, StepRecord
from tgrpo_dspy.testing import Call

Right = Callable[[str, int, Call], bool]

EASY, HARD, MIXED = "easy", "hard", "mixed"


def questions(*texts: str) -> list[dspy.Example]:
    """Examples whose right answer is the question in capital letters."""
    return [dspy.Example(question=text, answer=text.upper()).with_inputs("question") for text in texts]


def by_kind(question: str, nth: int, call: Call) -> bool:
    """An easy question is always answered right, a hard one never, a mixed one every second time."""
    return question.startswith(EASY) or (question.startswith(MIXED) and nth % 2 == 0)


class Pupil(Model):
    """Answers a question in capital letters when ``right`` says so, and proposes edits when it is to reflect.

    Args:
        right: called with the question, how often it was asked before, and the call.
        proposals: the edits of every reflection.
    """

    def __init__(self, right: Right = by_kind, *proposals: dict[str, Any]) -> None:
        self.right, self.proposals = right, proposals or (add("Be polite to everyone."),)
        self.asked: Counter[str] = Counter()
        super().__init__()
        self._lock = threading.Lock()

    def __call__(self, call: Call) -> Mapping[str, Any]:
        if reflects(call):
            return self.reflect(call)
        question = call.fields["question"]
        with self._lock:
            nth = self.asked[question]
            self.asked[question] += 1
        return {"answer": question.upper() if self.right(question, nth, call) else question}

    def reflect(self, call: Call) -> Mapping[str, Any]:
        return edits(call, *self.proposals)


def learn(
    model: Any, trainset: list[dspy.Example], student: dspy.Module | None = None, **settings: Any
) -> tuple[Any, CompileReport]:
    """The compiled program and the report; ``settings`` of the optimizer and of ``compile`` together."""
    of_compile = {
        name: settings.pop(name)
        for name in ("valset", "initial_library", "run_dir", "budget", "listeners")
        if name in settings
    }
    defaults = {"metric": exact, "epochs": 1, "group_size": 2, "num_threads": 1}
    optimizer = TrainingFreeGRPO(**{**defaults, **settings})
    with dspy.context(lm=model.lm()):
        program = optimizer.compile(
            student or dspy.Predict("question -> answer"), trainset=trainset, verbose=False, **of_compile
        )
    assert optimizer.report is not None
    return program, optimizer.report


def sampled(steps: tuple[StepRecord, ...], field: str = "question") -> list[list[str]]:
    """What the groups of each step were about, sorted."""
    return [sorted(group.inputs[field] for group in step.groups) for step in steps]
