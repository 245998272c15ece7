"""Credit: in a program of several predictors a lesson goes to the one that is at fault."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dspy

from tests.pupil import Pupil, learn, questions
from tests.scripted import RULE, edits, exact, reflects
from tgrpo_dspy import Experience, ExperienceLibrary, Reflection, inject, read_library
from tgrpo_dspy.testing import Call

POLITE = ExperienceLibrary((Experience(id="e1", text="Be polite to everyone."),))


class Clerks(dspy.Module):
    """The first predictor finds the name in a note and is never wrong; the second one writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.find = dspy.Predict(dspy.Signature("note -> name", "Find the name in the note."))
        self.write = dspy.Predict(dspy.Signature("name -> answer", "Write the name as the house does."))

    def forward(self, note: str) -> dspy.Prediction:
        return self.write(name=self.find(note=note).name.strip("*"))


def notes(*names: str) -> list[dspy.Example]:
    return [dspy.Example(note=f"Mr {name} called.", answer=name.upper()).with_inputs("note") for name in names]


class Office(Pupil):
    """``write`` follows the rule when it carries it, and is right by luck every second time; ``find`` needs none."""

    def __call__(self, call: Call) -> Mapping[str, Any]:
        if reflects(call):
            return edits(call, *self.proposals)
        if "note" in call.fields:
            return {"name": f"*{call.fields['note'].split()[1]}*"}
        name = call.fields["name"]
        nth = self.asked[name]
        self.asked[name] += 1
        return {"answer": name.upper() if RULE in call.system or nth % 2 == 0 else name}


def lesson(predictor: str, text: str = RULE) -> dict[str, Any]:
    return {"operation": "ADD", "lesson": text, "predictor": predictor}


def office(*proposals: dict[str, Any]) -> Office:
    return Office(lambda question, nth, call: False, *proposals)


def carriers(program: dspy.Module, text: str = RULE) -> list[str]:
    return [name for name, predictor in program.named_predictors() if text in predictor.signature.instructions]


def test_a_lesson_goes_to_the_predictor_it_names_and_to_no_other() -> None:
    program, report = learn(
        office(lesson("write")), notes("adams", "baker"), Clerks(), initial_library=POLITE, epochs=2
    )
    assert carriers(program) == ["write"]
    assert [(e.text, e.target) for e in report.library] == [("Be polite to everyone.", None), (RULE, "write")]
    assert [step.mean_reward for step in report.steps] == [0.5, 1.0]
    assert report.untouched == ()


def test_so_does_the_first_lesson_of_a_run() -> None:
    class First(Office):
        def __call__(self, call: Call) -> Mapping[str, Any]:
            if "rules" in call.asks_for:
                return {"advantage": "capital letters win", "rules": f"write: {RULE}"}
            return super().__call__(call)

    program, _ = learn(First(lambda *_: False, lesson("write")), notes("adams", "baker"), Clerks())
    assert carriers(program) == ["write"]


def test_the_reflection_sees_every_predictors_signature_in_order_and_its_own_inputs_and_outputs() -> None:
    model = office(lesson("write"))
    learn(model, notes("adams"), Clerks(), initial_library=POLITE)
    (call,) = model.reflections
    assert call.fields["task"].startswith(
        "Predictor find: note -> name\nFind the name in the note.\n\n"
        "Predictor write: name -> answer\nWrite the name as the house does.\n\n"
    )
    right, wrong = call.fields["attempts"].split("reward 0: ")
    for attempt, answer in ((right, "ADAMS"), (wrong, "adams")):
        assert f"1. find() -> name=*adams*\n  2. write(name=adams) -> answer={answer}" in attempt
    assert call.fields["lessons"] == "e1: Be polite to everyone."


def test_a_lesson_of_one_predictor_is_listed_with_its_name() -> None:
    model = office(lesson("write", "Mind the house style."))
    start = ExperienceLibrary((Experience(id="e1", text="Skip the title.", target="find"),))
    learn(model, notes("adams"), Clerks(), initial_library=start)
    assert model.reflections[0].fields["lessons"] == "e1: Skip the title. (for find)"


def test_an_edit_for_a_predictor_that_does_not_exist_is_refused_with_the_reason() -> None:
    program, report = learn(office(lesson("typist")), notes("adams"), Clerks(), initial_library=POLITE)
    (refusal,) = report.steps[0].refused
    assert (refusal.edit.target, refusal.reason) == ("typist", "the program has no such predictor, only find, write")
    assert carriers(program) == []


class Branches(dspy.Module):
    """Only one of the two predictors ever runs on the training examples."""

    def __init__(self) -> None:
        super().__init__()
        self.usual = dspy.Predict("question -> answer")
        self.rare = dspy.Predict("question -> answer")

    def forward(self, question: str) -> dspy.Prediction:
        return (self.rare if question.startswith("rare") else self.usual)(question=question)


class Half(Pupil):
    def __init__(self, *proposals: dict[str, Any]) -> None:
        super().__init__(lambda question, nth, call: RULE in call.system or nth % 2 == 0, *proposals)


def test_an_edit_for_a_predictor_that_did_not_run_is_refused_with_the_reason() -> None:
    _, report = learn(
        Half(lesson("rare"), lesson("usual", "Mind the house style.")),
        questions("one"),
        Branches(),
        initial_library=POLITE,
    )
    (refusal,) = report.steps[0].refused
    assert (refusal.edit.target, refusal.reason) == ("rare", "predictor rare did not run in these attempts")
    assert report.steps[0].ran == ("usual",)
    assert [e.target for e in report.library] == [None, "usual"]


def test_what_ran_counts_for_the_step_not_for_the_run() -> None:
    _, report = learn(
        Half(lesson("rare")),
        questions("one", "rare two"),
        Branches(),
        initial_library=POLITE,
        batch_size=1,
        reflection=Reflection(similarity=100),
    )
    ran = [step.ran for step in report.steps]
    assert sorted(ran) == [("rare",), ("usual",)]
    assert [len(step.refused) for step in report.steps] == [int(names == ("usual",)) for names in ran]
    assert report.untouched == ()


def test_a_predictor_that_never_ran_is_left_as_it_was_and_named() -> None:
    student = Branches()
    program, report = learn(Half(), questions("one"), student, initial_library=POLITE)
    assert report.untouched == ("rare",)
    assert program.rare.signature.instructions == student.rare.signature.instructions
    assert carriers(program, "Be polite") == ["usual"]


def test_a_lesson_of_the_initial_library_goes_to_every_predictor_that_runs() -> None:
    program, _ = learn(office(), notes("adams"), Clerks(), initial_library=POLITE)
    assert carriers(program, "Be polite") == ["find", "write"]


def test_a_student_with_a_library_and_a_predictor_that_never_ran_can_be_learned_with_again() -> None:
    update = {"operation": "UPDATE", "ids": ["e1"], "lesson": RULE}
    program, report = learn(Half(update), questions("one"), inject(Branches(), POLITE))
    assert [e.text for e in report.library] == [RULE]
    assert "e1" in read_library(program)


def test_in_a_program_of_one_predictor_every_lesson_is_for_the_whole_program() -> None:
    student = dspy.Predict("question -> answer")
    program, report = learn(Half(lesson("write")), questions("one"), student, initial_library=POLITE)
    assert [e.target for e in report.library] == [None, None] and report.steps[0].refused == ()
    assert RULE in program.signature.instructions


def test_when_no_rollout_tells_what_ran_no_lesson_is_refused_for_it() -> None:
    """A program that calls copies of its predictors: the turns carry no name the program knows."""

    class Copying(Branches):
        def forward(self, question: str) -> dspy.Prediction:
            return dspy.Predict("question -> answer")(question=question)

    program, report = learn(Half(lesson("usual")), questions("one"), Copying(), initial_library=POLITE, metric=exact)
    assert (report.untouched, report.steps[0].refused) == ((), ())
    assert carriers(program) == ["usual"] and carriers(program, "Be polite") == ["usual", "rare"]
