"""Two sets of reasoning-gym: problems made by a program, checked by its own scorer, with harder ones out-of-domain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import dspy

from programs.task import HELD_OUT, MissingDataError, Sizes, Splits, Task, halves, take

_RIGHT = 0.99  # below it, reasoning-gym pays for an answer that has more in it than the right one
_SEED, _MADE = 2025, 400


@dataclass(frozen=True)
class _Problems:
    """A set of reasoning-gym, and how its out-of-domain problems are harder."""

    name: str
    harder: Mapping[str, int]
    difference: str


_SETS = (
    _Problems("word_sorting", {"min_words": 11, "max_words": 14}, "lists of 11 to 14 words, not of 3 to 10"),
    _Problems(
        "family_relationships", {"min_family_size": 9, "max_family_size": 12}, "families of 9 to 12, not of 4 to 8"
    ),
)


class SolveProblem(dspy.Signature):
    """Solve the problem."""

    problem: str = dspy.InputField()
    answer: str = dspy.OutputField()


def tasks() -> list[Task]:
    """The tasks; reasoning-gym is imported when their data is asked for."""
    return [_task(problems) for problems in _SETS]


def _task(problems: _Problems) -> Task:
    def splits(seed: int, sizes: Sizes) -> Splits:
        test, rest = halves(_examples(_made(problems.name)), HELD_OUT)
        train, val = halves(rest, seed)
        return Splits(
            train=take(train, sizes.train, seed),
            val=take(val, sizes.val, seed),
            test=take(test, sizes.test, HELD_OUT),
            ood=take(_examples(_made(problems.name, **problems.harder)), sizes.ood, HELD_OUT),
        )

    def metric(
        gold: dspy.Example, pred: Any, trace: Any = None, pred_name: str | None = None, pred_trace: Any = None
    ) -> dspy.Prediction:
        made = {**_made(problems.name), **_made(problems.name, **problems.harder)}
        written = str(getattr(pred, "answer", "")).strip()
        if _gym().get_score_answer_fn(problems.name)(written, made[gold.problem]) >= _RIGHT:
            return dspy.Prediction(score=1.0, feedback="right")
        return dspy.Prediction(score=0.0, feedback=f"answer: wrote {written!r}, expected {gold.answer!r}")

    return Task(
        name=problems.name,
        source=f"reasoning-gym {problems.name} (Apache-2.0); out-of-domain: {problems.difference}",
        student=lambda: dspy.Predict(SolveProblem),
        metric=metric,
        splits=splits,
    )


@cache
def _made(name: str, **settings: int) -> Mapping[str, Mapping[str, Any]]:
    """What reasoning-gym makes, by the text of the problem: its scorers want the whole item."""
    made = _gym().create_dataset(name, seed=_SEED, size=_MADE, **settings)
    return {item["question"]: item for item in made}


def _examples(made: Mapping[str, Mapping[str, Any]]) -> list[dspy.Example]:
    return [dspy.Example(problem=text, answer=item["answer"]).with_inputs("problem") for text, item in made.items()]


def _gym() -> Any:
    try:
        import reasoning_gym
    except ImportError as error:
        raise MissingDataError("reasoning-gym is not installed: pip install 'tgrpo_dspy[reasoning]'") from error
    return reasoning_gym
