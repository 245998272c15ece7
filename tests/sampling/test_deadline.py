"""A deadline for a rollout: it frees the place, the rollout runs once, and what runs on ends by itself."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import dspy

from tests.scripted import Shouting, exact, examples
from tgrpo_dspy import Sampling, TrainingFreeGRPO
from tgrpo_dspy.records import CompileReport, Rollout
from tgrpo_dspy.testing import Call

SLOW = "question number 0"


class Stuck(dspy.Module):
    """Never ends on one of the questions, and asks the model again and again while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = dspy.Predict("question -> answer")
        self.started = [0]

    def __deepcopy__(self, memo: dict[int, Any]) -> Stuck:
        copied = Stuck()
        memo[id(self)] = copied
        copied.answer, copied.started = self.answer.deepcopy(), self.started
        return copied

    def forward(self, question: str) -> dspy.Prediction:
        if question == SLOW:
            self.started[0] += 1
            for turn in range(10_000):
                self.answer(question=f"{question} again {turn}")
        return self.answer(question=question)


class Waiting(dspy.Module):
    """Async-only, and waits for ever on one of the questions."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = dspy.Predict("question -> answer")

    async def aforward(self, question: str) -> dspy.Prediction:
        if question == SLOW:
            await asyncio.sleep(3600)
        return await self.answer.acall(question=question)


class Slow(Shouting):
    def __call__(self, call: Call) -> Any:
        if "again" in call.user:
            time.sleep(0.02)
        return super().__call__(call)


def learned(model: Shouting, student: dspy.Module, metric: Any = exact, **sampling: Any) -> CompileReport:
    optimizer = TrainingFreeGRPO(
        metric=metric,
        epochs=1,
        group_size=3,
        num_threads=1,
        sampling=Sampling(rollout_timeout=0.15, failure_score=-1.0, **sampling),
    )
    with dspy.context(lm=model.lm()):
        optimizer.compile(student, trainset=examples(3), verbose=False)
    assert optimizer.report is not None
    return optimizer.report


def of_the_slow_question(report: CompileReport) -> list[Rollout]:
    (group,) = (g for g in report.steps[0].groups if g.inputs["question"] == SLOW)
    return list(group.rollouts)


def test_a_rollout_past_its_deadline_is_scored_as_a_failure_and_frees_its_only_place() -> None:
    model, student = Slow(), Stuck()
    report = learned(model, student)
    late = of_the_slow_question(report)
    assert [(r.failure and r.failure.kind, r.reward) for r in late] == [("timeout", -1.0)] * 3
    assert student.started == [3], "a slow rollout runs exactly once"
    others = [r for g in report.steps[0].groups for r in g.rollouts if g.inputs["question"] != SLOW]
    assert len(others) == 6 and all(r.failure is None for r in others)
    calls = len(model.engine.calls)
    time.sleep(0.3)
    assert len(model.engine.calls) - calls <= 1, "an abandoned rollout ends with the call it is in"


def test_an_async_rollout_past_its_deadline_is_cancelled() -> None:
    late = of_the_slow_question(learned(Slow(), Waiting()))
    assert [(r.failure and r.failure.kind, r.reward) for r in late] == [("timeout", -1.0)] * 3


def test_a_metric_past_the_deadline_is_a_metric_failure() -> None:
    asked: list[str] = []

    def slow_judge(gold: dspy.Example, pred: Any, trace: Any = None) -> bool:
        asked.append(gold.question)
        if gold.question == SLOW and asked.count(SLOW) > 1:
            time.sleep(0.4)
        return exact(gold, pred)

    late = of_the_slow_question(learned(Shouting(), dspy.Predict("question -> answer"), slow_judge))
    assert [(r.failure and r.failure.kind, r.reward is None) for r in late] == [
        (None, False),
        ("metric", True),
        ("metric", True),
    ]
