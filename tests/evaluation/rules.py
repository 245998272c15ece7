"""A model that follows hidden rules: what each lesson in its prompt does to its answers is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

import dspy

from tests.scripted import add, edits, reflects
from tgrpo_dspy import Experience, ExperienceLibrary
from tgrpo_dspy.testing import Call, ScriptedEngine

GOOD = {f"Mind rule {name}.": 0.05 for name in ("one", "two", "three", "four", "five")}
PLANTED = {f"Trust hunch {name}.": -0.15 for name in ("one", "two", "three", "four", "five")}
BASE = 0.75
"""Without a lesson; 1.0 with the good ones, 0.0 with the planted ones, 0.25 with both."""


def library_of(*lessons: str) -> ExperienceLibrary:
    return ExperienceLibrary(tuple(Experience(id=f"e{n}", text=text) for n, text in enumerate(lessons, 1)))


class Ruled:
    """Answers "yes", which is right, with a chance of ``base`` plus what every lesson in its prompt is worth.

    Args:
        worth: by lesson.
        base: the chance without any.
        seed: other luck.
        alike: whether the first answer to a question has the same luck whatever the lessons, as from a model that keeps
            to what it is sure of; else every prompt has luck of its own.
        proposals: what its reflections propose: the first of these lists that is not in the library yet.
    """

    def __init__(
        self,
        worth: Mapping[str, float],
        *,
        base: float = BASE,
        seed: int = 0,
        alike: bool = False,
        proposals: Sequence[Sequence[str]] = (),
    ) -> None:
        self.worth, self.base, self.seed, self.alike = worth, base, seed, alike
        self.proposals = proposals
        self.asked: Counter[str] = Counter()
        self.engine = ScriptedEngine(self)

    def __call__(self, call: Call) -> str | dict[str, str]:
        if reflects(call):
            new = (lessons for lessons in self.proposals if not any(lesson in call.text for lesson in lessons))
            return edits(call, *map(add, next(new, ())))
        answer = "yes" if self.luck(call) < self.chance(call.text) else "no"
        return {"answer": answer} if call.fields else answer

    def chance(self, prompt: str) -> float:
        return self.base + sum(worth for lesson, worth in self.worth.items() if lesson in prompt)

    def luck(self, call: Call) -> float:
        times = self.asked[call.text]
        self.asked[call.text] += 1
        question = call.fields.get("question") or call.user.rsplit("\n", 1)[-1]
        drawn = f"{self.seed}/{times}/{question if self.alike else call.text}"
        return int.from_bytes(sha256(drawn.encode()).digest()[:6], "big") / 2**48

    def lm(self, **kwargs: Any) -> dspy.LM:
        return self.engine.lm(**kwargs)

    @property
    def runs(self) -> int:
        return sum(not reflects(call) for call in self.engine.calls)


class Direct(dspy.Module):
    """Asks the LM without an adapter, which halves the time of a run; many runs are needed to see a distribution."""

    def __init__(self) -> None:
        super().__init__()
        self.predict = dspy.Predict("question -> answer")

    def forward(self, question: str) -> dspy.Prediction:
        answers = dspy.settings.lm(f"{self.predict.signature.instructions}\n\n{question}")
        return dspy.Prediction(answer=answers[0])


def questions(count: int, seed: int = 0) -> list[dspy.Example]:
    return [dspy.Example(question=f"question {seed}/{n}", answer="yes").with_inputs("question") for n in range(count)]


def right(gold: dspy.Example, pred: Any, trace: Any = None) -> bool:
    return bool(gold.answer == pred.answer)
