"""The paper's switches and ablations by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dspy
import pytest

from tests.pupil import EASY, HARD, MIXED, Pupil, learn, questions
from tests.scripted import RULE, add
from tgrpo_dspy import (
    ConfigurationError,
    Experience,
    ExperienceLibrary,
    LibraryError,
    LibraryLimits,
    ProgramError,
    Reflection,
    generate_library,
    inject,
    read_library,
    retarget,
)
from tgrpo_dspy.testing import Call, ScriptedEngine

OBJECTIVE = "Answers that a typesetter can print as they are."


def obedient(question: str, nth: int, call: Call) -> bool:
    return RULE in call.system


# No group computation


@pytest.mark.parametrize("failures", [True, False])
def test_a_single_attempt_is_shown_and_teaches_whatever_its_reward(failures: bool) -> None:
    model = Pupil(lambda question, nth, call: question == EASY or RULE in call.system, add())
    _, report = learn(
        model, questions(EASY, HARD), group_size=1, epochs=2, reflection=Reflection(learn_from_failures=failures)
    )
    shown = model.reflections[0].fields["attempts"]
    assert "reward 1: answer=EASY" in shown and "reward 0: answer=hard" in shown
    first, second = report.steps
    assert (first.informative, first.advantages[0].groups, first.mean_reward) == (0, 2, 0.5)
    assert second.mean_reward == 1.0
    assert model.asked == {EASY: 1, HARD: 2}, "what is solved is skipped here too"


def test_a_single_attempt_without_ground_truth_is_shown_without_what_is_right() -> None:
    model = Pupil(obedient, add())
    _, report = learn(model, questions(HARD), group_size=1, use_ground_truth=False)
    assert "agreement 1: answer=hard" in model.reflections[0].fields["attempts"]
    assert "HARD" not in model.reflections[0].text
    assert len(report.library) == 1


# Directly generated experiences


class Imagining(Pupil):
    """Follows the rule, and writes it down when it is asked for rules before anybody has tried the program."""

    def __call__(self, call: Call) -> Mapping[str, Any]:
        if "count" in call.fields:
            return {
                "rules": f"1. {RULE}\n2. Be polite to everyone.\n3. Mind the house style.\nToo short\n- One too many."
            }
        return super().__call__(call)


def test_a_library_can_be_written_from_the_task_alone_without_a_rollout() -> None:
    model = Imagining(obedient)
    with dspy.context(lm=model.lm()):
        library = generate_library(dspy.Predict("question -> answer"), count=2, learning_objective=OBJECTIVE)
    assert [(e.id, e.text, e.target, e.evidence) for e in library] == [
        ("e1", RULE, None, ()),
        ("e2", "Be polite to everyone.", None, ()),
    ]
    (call,) = model.engine.calls
    assert call.fields["task"].startswith("question -> answer\nGiven the fields `question`")
    assert OBJECTIVE in call.fields["task"] and call.fields["count"] == "2"


def test_a_generated_library_is_where_learning_can_start() -> None:
    model = Imagining(obedient)
    library = generate_library(dspy.Predict("question -> answer"), lm=model.lm())
    program, report = learn(model, questions("one", "two"), initial_library=library, valset=questions("val"))
    assert report.steps[0].before == library and report.steps[0].mean_reward == 1.0
    assert report.student is not None and report.student.mean == 0.0
    assert RULE in program.signature.instructions


def test_of_a_generated_library_the_first_rules_stay_within_the_limits() -> None:
    lm, student = Imagining().lm(), dspy.Predict("question -> answer")

    def texts(**limits: int) -> list[str]:
        return [e.text for e in generate_library(student, lm=lm, limits=LibraryLimits(**limits))]

    polite, style, surplus = "Be polite to everyone.", "Mind the house style.", "One too many."
    assert texts() == [RULE, polite, style, surplus]
    assert texts(experiences=2) == [RULE, polite]
    assert texts(words=4) == [polite, style, surplus]


def test_a_library_is_written_for_the_bare_task_also_when_the_program_carries_one() -> None:
    model = Imagining()
    carrying = inject(dspy.Predict("question -> answer"), ExperienceLibrary((Experience(id="e1", text="Be bold."),)))
    generate_library(carrying, lm=model.lm())
    assert "Be bold." not in model.engine.calls[0].text


def test_what_cannot_be_generated_from_is_an_error_before_any_call() -> None:
    model = Imagining()
    with dspy.context(lm=model.lm()):
        with pytest.raises(ConfigurationError, match="count=0"):
            generate_library(dspy.Predict("question -> answer"), count=0)
        with pytest.raises(ProgramError):
            generate_library(dspy.Module())
    with pytest.raises(ConfigurationError, match="no LM is configured"):
        generate_library(dspy.Predict("question -> answer"))
    assert model.engine.calls == []


def test_a_student_that_has_an_lm_of_its_own_is_asked_with_it() -> None:
    student = dspy.Predict("question -> answer")
    student.lm = Imagining().lm()
    assert len(generate_library(student)) == 4


# Bounds and aims of the reflection


def test_a_group_may_propose_a_bounded_number_of_edits_and_the_surplus_is_counted() -> None:
    lessons = [add(f"Mind rule {letter} of the house style.") for letter in "ABCDE"]
    model = Pupil(lambda question, nth, call: question == MIXED and nth % 2 == 0, *lessons)
    settings = Reflection(experiences_per_group=1, similarity=100)
    _, report = learn(model, questions(MIXED, "one", "two"), reflection=settings)
    (advantage,) = report.steps[0].advantages
    assert (len(advantage.edits or ()), advantage.surplus, advantage.groups) == (3, 2, 3)
    assert [e.text[10] for e in report.library] == ["A", "B", "C"]
    assert "at most 1 lessons for each example" in model.reflections[0].fields["task"]

    _, unbounded = learn(Pupil(model.right, *lessons), questions(MIXED), reflection=Reflection(similarity=100))
    assert (len(unbounded.library), unbounded.steps[0].advantages[0].surplus) == (5, 0)


def test_the_learning_objective_is_part_of_every_reflection_and_of_nothing_else() -> None:
    model = Pupil()
    program, report = learn(
        model,
        questions("mixed 1", "mixed 2"),
        epochs=2,
        reflection=Reflection(learning_objective=OBJECTIVE, groups_per_call=1),
    )
    assert len(model.reflections) == 4
    assert all(OBJECTIVE in call.fields["task"] for call in model.reflections)
    assert not [call for call in model.runs if OBJECTIVE in call.text]
    assert OBJECTIVE not in str(program.dump_state()) and OBJECTIVE not in str(report.library)


# Another LM reflects, another program uses what was learned


def test_another_lm_reflects_and_sees_nothing_else() -> None:
    model, mind = Pupil(), Pupil(lambda question, nth, call: False, add())
    program, report = learn(
        model,
        questions(MIXED, HARD),
        valset=questions("val"),
        epochs=2,
        reflection_lm=mind.lm(model="test/mind", temperature=0.3),
    )
    assert model.reflections == [] and mind.runs == [] and len(mind.reflections) == 2
    assert {call.request.config.temperature for call in mind.reflections} == {0.3}
    assert report.usage["reflection"].calls == 2
    assert report.usage["rollout"].calls + report.usage["evaluation"].calls == len(model.runs)
    assert program.lm is None


class Answering(dspy.Module):
    """Another program for the same task: its predictors are called otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.think = dspy.Predict("question -> thought")
        self.say = dspy.Predict("question, thought -> answer")

    def forward(self, question: str) -> dspy.Prediction:
        return self.say(question=question, thought=self.think(question=question).thought)


def test_a_library_learned_by_one_program_serves_another() -> None:
    _, report = learn(Pupil(obedient, add()), questions("one", "two"))
    model = Pupil(obedient)

    def answer(call: Call) -> Mapping[str, Any]:
        return {"thought": "…"} if "thought" in call.asks_for else model(call)

    other = inject(Answering(), report.library)
    with dspy.context(lm=ScriptedEngine(answer).lm()):
        assert Answering()(question="why?").answer == "why?"
        assert other(question="why?").answer == "WHY?"
    assert [e.text for e in read_library(other)] == [RULE]


def test_lessons_for_one_predictor_are_retargeted() -> None:
    learned = ExperienceLibrary(
        (Experience(id="e1", text=RULE, target="answer"), Experience(id="e2", text="Be polite."))
    )
    with pytest.raises(LibraryError, match="for predictor 'answer'"):
        inject(Answering(), learned)
    moved = inject(Answering(), retarget(learned, {"answer": "say"}))
    assert RULE in moved.say.signature.instructions and RULE not in moved.think.signature.instructions
    assert read_library(moved)["e1"].target == "say"
    program, report = learn(
        _Thinking(), questions("one"), Answering(), initial_library=retarget(learned, {"answer": "say"})
    )
    assert report.steps[0].mean_reward == 1.0
    assert RULE in program.say.signature.instructions and RULE not in program.think.signature.instructions


class _Thinking(Pupil):
    def __init__(self) -> None:
        super().__init__(obedient)

    def __call__(self, call: Call) -> Mapping[str, Any]:
        return {"thought": "…"} if "thought" in call.asks_for else super().__call__(call)
