"""A library is scored while the next step goes on from it, where that does not depend on the score."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any

import dspy
import pytest

from tests.scripted import RULE, Shouting, exact, examples, reflects
from tgrpo_dspy import Budget, ExperienceLibrary, Sampling, TrainingFreeGRPO, Validation
from tgrpo_dspy.evaluation.acceptance import Best
from tgrpo_dspy.records import CompileReport
from tgrpo_dspy.testing import Call

PATIENCE = 0.3


class Crossing(Shouting):
    """Holds back the scores of the student, and of the first step, until a step goes on without them, or for a while.

    Every other run of a question without the rule is right.

    Attributes:
        crossed: whether a step went on, for the student and for the library with the rule.
    """

    def __init__(self) -> None:
        super().__init__()
        self.crossed: dict[bool, bool] = {}
        self._rolled_out = defaultdict(threading.Event)
        self._runs: defaultdict[str, int] = defaultdict(int)

    def __call__(self, call: Call) -> dict[str, str]:
        if reflects(call):
            return super().__call__(call)
        question, told = call.fields["question"], RULE in call.system
        if "val" in question:
            self.crossed[told] = self._rolled_out[told].wait(PATIENCE)
            return {"answer": question.upper() if told else question}
        self._rolled_out[told].set()
        self._runs[question] += 1
        return {"answer": question.upper() if told or self._runs[question] % 2 else question}


def texts(library: ExperienceLibrary) -> list[str]:
    return [experience.text for experience in library]


class Mine(Best):
    """An acceptance of the user's own, of which nothing is known."""


def compiled(model: Crossing, **given: Any) -> CompileReport:
    every = Sampling(solved_score=None)
    budget, acceptance = given.pop("budget", None), Validation(acceptance=given.pop("acceptance", "best"))
    optimizer = TrainingFreeGRPO(
        metric=exact, epochs=2, group_size=4, num_threads=4, sampling=every, validation=acceptance
    )
    with dspy.context(lm=model.lm()):
        optimizer.compile(
            dspy.Predict("question -> answer"),
            trainset=examples(2),
            valset=examples(2, "val"),
            budget=budget,
            verbose=False,
        )
    assert optimizer.report is not None
    return optimizer.report


@pytest.mark.parametrize("acceptance", ["best", "last"])
def test_a_step_goes_on_while_the_library_before_it_is_scored(acceptance: str) -> None:
    model = Crossing()
    compiled(model, acceptance=acceptance)
    assert model.crossed == {False: True, True: True}


@pytest.mark.parametrize(
    "given", [{"acceptance": "gate"}, {"acceptance": Mine()}, {"budget": Budget(max_tokens=10**6)}]
)
def test_a_step_waits_where_the_score_may_change_what_it_does(given: dict[str, Any]) -> None:
    model = Crossing()
    compiled(model, **given)
    assert model.crossed == {False: False, True: False}


def test_the_report_is_the_same_whether_a_step_waits_or_not() -> None:
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)
    beside, waiting = compiled(Crossing()), compiled(Crossing(), budget=Budget(max_tokens=10**6))
    for one, other in zip(beside.steps, waiting.steps, strict=True):
        # Every step is billed for its own rollouts and its own score, whatever ran beside it.
        assert {role: used.calls for role, used in one.usage.items()} == {"rollout": 8} | (
            {"reflection": 1, "evaluation": 2} if one.step == 1 else {}
        )
        assert one.usage == other.usage
        assert list(map(sorted, one.rewards)) == list(map(sorted, other.rewards))
        assert (texts(one.after), one.evaluation) == (texts(other.after), other.evaluation)
        assert (one.accepted, one.verdict) == (other.accepted, other.verdict)
    assert beside.usage == waiting.usage
    assert (beside.student, beside.best_step) == (waiting.student, waiting.best_step)
    assert texts(beside.library) == texts(waiting.library) == [RULE]
