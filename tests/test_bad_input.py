"""Bad input gets a clear error, before any LM call wherever that can be known."""

from __future__ import annotations

from typing import Any

import dspy
import pytest

from tests.scripted import Shouting, exact, examples
from tgrpo_dspy import (
    ConfigurationError,
    LibraryLimits,
    MetricError,
    ProgramError,
    Reflection,
    Sampling,
    TrainingFreeGRPO,
)


class Empty(dspy.Module):
    def forward(self, question: str) -> dspy.Prediction:
        return dspy.Prediction(answer=question)


def student() -> dspy.Module:
    return dspy.Predict("question -> answer")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"trainset": []}, "trainset must be a non-empty list"),
        ({"trainset": None}, "trainset must be a non-empty list"),
        ({"trainset": "abc"}, "trainset must be a non-empty list"),
        ({"trainset": [dspy.Example(question="x", answer="y")]}, r"trainset\[0\] does not say .*with_inputs"),
        ({"trainset": [{"question": "x"}]}, r"trainset\[0\] must be a dspy.Example, got dict"),
        ({"valset": []}, "valset must be a non-empty list"),
        ({"teacher": student()}, "teacher is not used .* reflection_lm"),
    ],
)
def test_sets_and_teacher(arguments: dict[str, Any], says: str) -> None:
    model = Shouting()
    with dspy.context(lm=model.lm()), pytest.raises(ConfigurationError, match=says):
        TrainingFreeGRPO(metric=exact).compile(student(), **{"trainset": examples(1), "verbose": False, **arguments})
    assert model.engine.calls == []


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"group_size": 0}, "group_size=0"),
        ({"epochs": 0}, "epochs=0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"num_threads": 0}, "num_threads=0"),
        ({"metric": 3}, "metric must be a function .* got 3"),
        ({"metric": lambda gold: True}, "signature"),
        ({"metric": lambda a, b, c, d, e, f: True}, "signature"),
    ],
)
def test_settings(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        TrainingFreeGRPO(**{"metric": exact, **settings})


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Sampling(temperature=0.0), "temperature=0.0"),
        (lambda: Sampling(min_spread=-1.0), "min_spread"),
        (lambda: Sampling(max_lm_failures=0), "max_lm_failures"),
        (lambda: Reflection(groups_per_call=0), "groups_per_call=0"),
        (lambda: Reflection(max_prompt_tokens=10), "max_prompt_tokens=10"),
        (lambda: Reflection(attempts=0), "attempts=0"),
        (lambda: Reflection(similarity=101), "similarity=101"),
        (lambda: LibraryLimits(words=0), "words=0"),
        (lambda: LibraryLimits(tokens=-5), "tokens=-5"),
    ],
)
def test_settings_objects(make: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        make()


def test_a_program_without_predictors() -> None:
    with dspy.context(lm=Shouting().lm()), pytest.raises(ProgramError, match="Empty has no predictor"):
        TrainingFreeGRPO(metric=exact).compile(Empty(), trainset=examples(1), verbose=False)


def test_a_student_that_is_no_program() -> None:
    with pytest.raises(ProgramError, match=r"must be a dspy\.Module, got function"):
        TrainingFreeGRPO(metric=exact).compile(exact, trainset=examples(1), verbose=False)  # type: ignore[type-var]


@pytest.mark.parametrize("lm", [None, "openai/gpt-4o-mini"])
@pytest.mark.parametrize("reflection_lm", [None, Shouting().lm()])
def test_no_lm_anywhere(lm: Any, reflection_lm: Any) -> None:
    optimizer = TrainingFreeGRPO(metric=exact, reflection_lm=reflection_lm)
    with dspy.context(lm=lm), pytest.raises(ConfigurationError, match="no LM is configured for predictor self"):
        optimizer.compile(student(), trainset=examples(1), verbose=False)


@pytest.mark.parametrize(
    ("result", "says"),
    [
        (None, "returned None"),
        (float("nan"), "returned nan: a reward must be finite"),
        ("good", "returned 'good'"),
        ((1.0, "good"), r"returned \(1.0, 'good'\)"),
        (dspy.Prediction(feedback="good"), "has no 'score'"),
        ({"reward": 1}, "has no 'score'"),
    ],
)
def test_a_metric_that_returns_no_reward_is_named_at_the_first_rollout(result: Any, says: str) -> None:
    def broken_metric(gold: Any, pred: Any, trace: Any = None) -> Any:
        return result

    model = Shouting()
    with dspy.context(lm=model.lm()), pytest.raises(MetricError, match=f"(?s)'broken_metric' .*{says}"):
        TrainingFreeGRPO(metric=broken_metric, num_threads=1).compile(student(), trainset=examples(3), verbose=False)
    assert len(model.engine.calls) == 1


def test_a_metric_that_always_raises_surfaces_with_its_own_error() -> None:
    def typo(gold: Any, pred: Any) -> float:
        return float(gold.anwser == pred.answer)

    model = Shouting()
    with dspy.context(lm=model.lm()), pytest.raises(MetricError, match="'typo' raised AttributeError") as caught:
        TrainingFreeGRPO(metric=typo, group_size=3, num_threads=1).compile(
            student(), trainset=examples(4), verbose=False
        )
    assert isinstance(caught.value.__cause__, AttributeError)
    assert len(model.engine.calls) == 3


@pytest.mark.parametrize(
    "metric",
    [
        lambda gold, pred: {"score": 0.5, "feedback": "half"},
        lambda gold, pred, trace: dspy.Prediction(score=0.5, feedback="half"),
        lambda gold, pred, trace, pred_name, pred_trace: dspy.Prediction(score=0.5, feedback="half"),
    ],
)
def test_every_form_of_a_dspy_metric_is_taken(metric: Any) -> None:
    optimizer = TrainingFreeGRPO(metric=metric, epochs=1, group_size=2)
    with dspy.context(lm=Shouting().lm()):
        optimizer.compile(student(), trainset=examples(1), verbose=False)
    assert optimizer.report is not None
    assert [(r.reward, r.feedback) for r in optimizer.report.steps[0].groups[0].rollouts] == [(0.5, "half")] * 2
