"""Without ground truth: agreement takes the place of rewards, and nothing that is known of the answers gets out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dspy
import pytest

from tests.pupil import Pupil, learn
from tests.scripted import RULE, add, edits, reflects
from tgrpo_dspy import ConfigurationError, Reflection, Sampling
from tgrpo_dspy.runs.events import Event, RolloutFinished
from tgrpo_dspy.testing import Call

LABEL, FEEDBACK, VALIDATION, VALIDATION_LABEL = (
    "canary-of-label",
    "canary-of-feedback",
    "canary-val",
    "canary-val-label",
)
NUMBERS = ("7", "7.0", " 7 ", "8")


def train(count: int = 3) -> list[dspy.Example]:
    return [dspy.Example(question=f"sum {n}", answer=f"{LABEL}-{n}").with_inputs("question") for n in range(count)]


def val(count: int = 2) -> list[dspy.Example]:
    return [
        dspy.Example(question=f"{VALIDATION}-{n}", answer=f"{VALIDATION_LABEL}-{n}").with_inputs("question")
        for n in range(count)
    ]


class Counting:
    """Gives rewards and feedback that nobody may see, and counts on which questions it is asked for them."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, gold: dspy.Example, pred: Any, trace: Any = None) -> dspy.Prediction:
        self.asked.append(gold.question)
        return dspy.Prediction(score=float(pred.answer == gold.answer), feedback=f"{FEEDBACK}, it is {gold.answer}")


class Adding(Pupil):
    """Three of four rollouts come to the same number, written in several ways; by the rule all of them do."""

    def __call__(self, call: Call) -> Mapping[str, Any]:
        if "answer" not in call.asks_for:
            return self.reflect(call)
        question = call.fields["question"]
        nth = self.asked[question]
        self.asked[question] += 1
        return {"reasoning": f"way {nth}", "answer": "7" if RULE in call.system else NUMBERS[nth % 4]}


def learn_blindly(model: Pupil, **settings: Any) -> Any:
    student = settings.pop("student", None) or dspy.ChainOfThought("question -> answer")
    defaults = {"trainset": train(), "epochs": 2, "group_size": 4, "metric": Counting()}
    return learn(model, student=student, use_ground_truth=False, **{**defaults, **settings})


class Talkative(Pupil):
    """A model for a program of two steps whose answers are too long to be shown whole."""

    def __call__(self, call: Call) -> Mapping[str, Any]:
        if "summary" in call.asks_for:
            return {"summary": "It wrote a draft and copied it."}
        if "proposals" in call.fields:
            return edits(call, *self.proposals)
        if reflects(call):
            return edits(call, *self.proposals, add(f"Mind the {len(call.fields['attempts'])} points of style."))
        if "draft" in call.fields:
            return {"answer": call.fields["draft"]}
        question = call.fields["question"]
        nth = self.asked[question]
        self.asked[question] += 1
        return {"draft": f"{question} is {7 if nth % 4 else 8} " + "and so on " * 60}


class TwoSteps(dspy.Module):
    def __init__(self) -> None:
        super().__init__()
        self.write = dspy.Predict("question -> draft")
        self.copy = dspy.Predict("draft -> answer")

    def forward(self, question: str) -> dspy.Prediction:
        return self.copy(draft=self.write(question=question).draft)


@pytest.mark.parametrize("long", [False, True], ids=["short", "summarised"])
def test_nothing_that_is_known_of_the_answers_gets_into_a_prompt(long: bool) -> None:
    model: Pupil = Talkative() if long else Adding()
    metric = Counting()
    learn_blindly(
        model,
        metric=metric,
        valset=val(),
        student=TwoSteps() if long else None,
        reflection=Reflection(groups_per_call=2, max_prompt_tokens=300),
    )
    assert len(model.reflections) >= 2
    assert any("summary" in call.asks_for for call in model.engine.calls) is long
    for call in model.engine.calls:
        assert not [canary for canary in (LABEL, FEEDBACK, VALIDATION_LABEL) if canary in call.text]
        of_the_program = call.asks_for[-1] in ("answer", "draft")
        assert VALIDATION not in call.text or of_the_program
    assert any(VALIDATION in call.text for call in model.engine.calls), "the program itself runs on them"
    assert metric.asked and all(question.startswith(VALIDATION) for question in metric.asked)


def test_with_ground_truth_the_same_run_shows_the_label_and_the_feedback() -> None:
    """So the canaries would be seen."""
    model = Adding()
    learn(model, train(), dspy.ChainOfThought("question -> answer"), metric=Counting(), group_size=4)
    assert all(LABEL in call.text and FEEDBACK in call.text for call in model.reflections)


def test_what_a_group_is_told_by_is_agreement_and_what_is_asked_for_never_speaks_of_reward() -> None:
    model = Adding()
    learn_blindly(model)
    assert model.reflections
    for call in model.engine.calls:
        assert "reward" not in call.user.casefold() and "right answer:" not in call.user
    attempts = model.reflections[0].fields["attempts"]
    assert "agreement 0.75: reasoning=way 0; answer=7" in attempts
    assert attempts.index("agreement 0.75") < attempts.index("agreement 0.25: reasoning=way 3; answer=8")
    assert "Nobody knows the right answers." in model.reflections[0].fields["task"]


def test_no_part_of_a_prompt_speaks_of_reward() -> None:
    model = Adding()
    learn_blindly(model)
    assert not [call for call in model.engine.calls if "reward" in call.text.casefold()]


def test_the_rewards_of_a_group_are_its_agreements_and_learning_goes_by_them() -> None:
    model = Adding(Adding().right, add())
    program, report = learn_blindly(model)
    first, second = report.steps
    assert first.rewards == ((0.75, 0.75, 0.75, 0.25),) * 3
    assert (first.informative, second.informative) == (3, 0)
    assert second.rewards == ((1.0,) * 4,) * 3
    assert RULE in program.predict.signature.instructions
    assert [e.rewards for e in report.library["e1"].evidence] == [(0.75, 0.75, 0.75, 0.25)] * 3


def test_a_group_that_agrees_costs_no_reflection_and_is_never_skipped() -> None:
    """Agreement is not success: the example is sampled in every epoch."""

    class Undecided(Pupil):
        """Only about the first sum, where every answer has half of the votes."""

        def __call__(self, call: Call) -> Mapping[str, Any]:
            answer = super().__call__(call)
            question = call.fields["question"]
            return {"answer": str(self.asked[question] % 2)} if question == "sum 0" else answer

    model = Undecided()
    _, report = learn_blindly(model, student=dspy.Predict("question -> answer"), epochs=3)
    assert set(model.asked.values()) == {3 * 4}
    for step in report.steps:
        rewards = {group.inputs["question"]: group.rewards for group in step.groups}
        assert rewards == {"sum 0": (0.5,) * 4, "sum 1": (1.0,) * 4, "sum 2": (1.0,) * 4}
    assert model.reflections == []


def test_a_group_that_fails_throughout_is_not_held_against_a_label_nobody_may_see() -> None:
    model = Pupil()
    model.engine.respond = lambda call: model.reflect(call) if reflects(call) else "no field at all"
    _, report = learn_blindly(model, student=dspy.Predict("question -> answer"), epochs=1)
    assert report.steps[0].rewards == ((0.0,) * 4,) * 3
    assert model.reflections == []


def test_a_rollout_that_fails_agrees_with_none() -> None:
    class Stumbling(Pupil):
        def __call__(self, call: Call) -> Any:
            if reflects(call):
                return self.reflect(call)
            question = call.fields["question"]
            self.asked[question] += call.form == "chat"  # asked again as JSON, it fails again
            return "no field at all" if self.asked[question] % 4 < 2 else {"answer": "7"}

    model = Stumbling()
    _, report = learn_blindly(
        model, student=dspy.Predict("question -> answer"), epochs=1, sampling=Sampling(failure_score=0.9)
    )
    assert [sorted(rewards) for rewards in report.steps[0].rewards] == [[0.0, 0.0, 0.5, 0.5]] * 3
    assert "agreement 0, 2 times: " in model.reflections[0].fields["attempts"]
    assert "failed with AdapterParseError" in model.reflections[0].fields["attempts"]


def test_the_field_to_agree_on_can_be_named() -> None:
    class Scoring(Adding):
        def __call__(self, call: Call) -> Mapping[str, Any]:
            answer = super().__call__(call)
            return {**answer, "confidence": str(self.asked[call.fields["question"]])} if "answer" in answer else answer

    def rewards(**settings: Any) -> Any:
        student = dspy.ChainOfThought("question -> answer, confidence")
        return learn_blindly(Scoring(), student=student, epochs=1, **settings)[1].steps[0].rewards[0]

    assert rewards() == (0.5, 0.5, 0.5, 0.25)
    assert rewards(sampling=Sampling(answer_field="answer")) == (0.75, 0.75, 0.75, 0.25)


def test_a_validation_set_is_scored_by_the_metric_and_only_with_it_the_better_library_is_kept() -> None:
    class Consistent(Adding):
        """The rule makes the rollouts agree, but spoils the answers to the validation questions."""

        def __call__(self, call: Call) -> Mapping[str, Any]:
            if call.fields.get("question", "").startswith(VALIDATION):
                right = f"{VALIDATION_LABEL}-{call.fields['question'][-1]}"
                return {"reasoning": "", "answer": "wrong" if RULE in call.system else right}
            return super().__call__(call)

    _, with_set = learn_blindly(Consistent(Adding().right, add()), valset=val())
    assert (with_set.student.mean, with_set.best_step, len(with_set.library)) == (1.0, 0, 0)
    _, without = learn_blindly(Consistent(Adding().right, add()))
    assert len(without.library) == 1


def test_listeners_hear_of_rollouts_without_a_reward_until_their_group_is_complete() -> None:
    heard: list[Event] = []
    learn_blindly(Adding(), epochs=1, listeners=[heard.append])
    rollouts = [event.rollout for event in heard if isinstance(event, RolloutFinished)]
    assert len(rollouts) == 12 and {rollout.reward for rollout in rollouts} == {None}
    assert {rollout.feedback for rollout in rollouts} == {""}


def test_a_field_to_agree_on_that_no_predictor_writes_is_an_error_before_any_call() -> None:
    model = Adding()
    with pytest.raises(ConfigurationError, match=r"answer_field='anser' cannot work: .* answer, reasoning"):
        learn_blindly(model, sampling=Sampling(answer_field="anser"))
    assert model.engine.calls == []
