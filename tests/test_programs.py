"""Programs of many kinds, with the three adapters that ask for text: every rollout is its own, and lessons arrive."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import dspy
import pytest

from tests.scripted import RULE, Shouting, add, edits, examples, reflects
from tgrpo_dspy import TrainingFreeGRPO
from tgrpo_dspy.testing import Call

SIGNATURE = "question -> answer"


class Versatile(Shouting):
    """Answers whatever a program asks for: with the rule in its prompt always right, without it half of the time.

    It counts by question, so that the order in which calls arrive changes nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()

    def __call__(self, call: Call) -> dict[str, Any]:
        if reflects(call):
            return edits(call, add())
        question = call.fields.get("question", "")
        self.asked[question] += 1
        right = RULE in call.system or random.Random(f"{question} {self.asked[question]}").random() < 0.5
        values: dict[str, Any] = {
            "answer": question.upper() if right else question,
            "next_thought": "look it up" if "observation_0" not in call.user else "done",
            "next_tool_name": "look" if "observation_0" not in call.user else "finish",
            "next_tool_args": {"where": "there"} if "observation_0" not in call.user else {},
        }
        return {name: values.get(name, "because") for name in call.asks_for}


def look(where: str) -> str:
    """Look somewhere."""
    return f"nothing {where}"


class Loop(dspy.Module):
    """Calls one predictor three times, and the last one counts."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = [dspy.Predict(SIGNATURE)]
        self.lock = threading.Lock()

    def forward(self, question: str) -> dspy.Prediction:
        for _ in range(2):
            self.steps[0](question=question)
        return self.steps[0](question=question)


class Branch(dspy.Module):
    """Uses one of two predictors and never the other."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = dspy.ChainOfThought(SIGNATURE), dspy.ChainOfThought(SIGNATURE)

    def forward(self, question: str) -> dspy.Prediction:
        return self.used(question=question) if question else self.spare(question=question)


class Parallel(dspy.Module):
    """Asks twice at once and takes the first."""

    def __init__(self) -> None:
        super().__init__()
        self.ask = dspy.Predict(SIGNATURE)
        self.parallel = dspy.Parallel(num_threads=2, disable_progress_bar=True)

    def forward(self, question: str) -> dspy.Prediction:
        return self.parallel([(self.ask, {"question": question}), (self.ask, {"question": question + "?"})])[0]


class Compare(dspy.Module):
    """Three attempts, compared by a module that pins its temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.attempt = dspy.ChainOfThought(SIGNATURE)
        self.compare = dspy.MultiChainComparison(SIGNATURE, M=2)

    def forward(self, question: str) -> dspy.Prediction:
        attempts = [self.attempt(question=question) for _ in range(2)]
        return self.compare(attempts, question=question)


class Frozen(dspy.Module):
    """One part was compiled before and is left alone."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.answer = dspy.ChainOfThought(SIGNATURE), dspy.Predict(SIGNATURE)
        self.before._compiled = True

    def forward(self, question: str) -> dspy.Prediction:
        self.before(question=question)
        return self.answer(question=question)


def long_enough(args: Any, pred: Any) -> float:
    return float(len(pred.answer) > 3)


PROGRAMS: dict[str, Callable[[], dspy.Module]] = {
    "Predict": lambda: dspy.Predict(SIGNATURE),
    "ChainOfThought": lambda: dspy.ChainOfThought(SIGNATURE),
    "ReAct": lambda: dspy.ReAct(SIGNATURE, tools=[look], max_iters=3),
    "BestOfN": lambda: dspy.BestOfN(dspy.Predict(SIGNATURE), N=2, reward_fn=long_enough, threshold=2.0),
    "Refine": lambda: dspy.Refine(dspy.Predict(SIGNATURE), N=1, reward_fn=long_enough, threshold=0.5),
    "MultiChainComparison": Compare,
    "Parallel": Parallel,
    "Loop": Loop,
    "Branch": Branch,
    "Frozen": Frozen,
}
ADAPTERS = {"chat": dspy.ChatAdapter, "json": dspy.JSONAdapter, "xml": dspy.XMLAdapter}


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("kind", PROGRAMS)
def test_any_program_with_any_adapter(kind: str, adapter: str) -> None:
    model, student = Versatile(), PROGRAMS[kind]()
    names = [name for name, _ in student.named_predictors()]
    before = {name: p.signature.instructions for name, p in student.named_predictors()}
    optimizer = TrainingFreeGRPO(metric=lambda g, p: p.answer == g.answer, epochs=2, group_size=3, num_threads=1)
    with dspy.context(lm=model.lm(), adapter=ADAPTERS[adapter]()):
        compiled = optimizer.compile(student, trainset=examples(2), verbose=False)
        assert optimizer.report is not None
        runs = len(model.runs)
        optimizer.compile(student, trainset=examples(2), verbose=False)
    first, second = optimizer.report.steps
    rollouts = [r for step in (first, second) for group in step.groups for r in group.rollouts]
    assert [r.failure for r in rollouts] == [None] * len(rollouts)
    assert all(r.turns and {t.name for t in r.turns} & {*names, "Predict"} for r in rollouts)
    assert first.informative > 0 and second.mean_reward == 1.0
    assert all(RULE in p.signature.instructions for _, p in compiled.named_predictors())
    assert [name for name, _ in compiled.named_predictors()] == names
    assert {name: p.signature.instructions for name, p in student.named_predictors()} == before
    assert len(model.runs) == runs, "a second run must come from the cache"


def test_a_part_that_was_compiled_before_is_left_alone() -> None:
    optimizer = TrainingFreeGRPO(metric=lambda g, p: p.answer == g.answer, epochs=1, num_threads=1)
    with dspy.context(lm=Versatile().lm()):
        compiled = optimizer.compile(Frozen(), trainset=examples(2), verbose=False)
    assert RULE in compiled.answer.signature.instructions
    assert RULE not in compiled.before.predict.signature.instructions


def test_an_lm_that_the_program_holds_outside_a_predictor_is_sampled_too() -> None:
    held = Versatile()

    class Holding(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.answer = dspy.Predict(SIGNATURE)
            self.strong = held.lm(model="test/strong")

        def forward(self, question: str) -> dspy.Prediction:
            with dspy.context(lm=self.strong):
                return self.answer(question=question)

    model = Versatile()
    optimizer = TrainingFreeGRPO(metric=lambda g, p: p.answer == g.answer, epochs=1, group_size=4, num_threads=1)
    with dspy.context(lm=model.lm()):
        optimizer.compile(Holding(), trainset=examples(1), verbose=False)
    assert len(held.engine.calls) == 4
    assert model.runs == []
