"""Reflection: answers of every kind are read, asked again or counted as lost, and never stop a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import dspy
import pytest

from tests.scripted import RULE, Shouting, add, edits, exact, examples, reflects
from tgrpo_dspy import Experience, ExperienceLibrary, Reflection, TrainingFreeGRPO, inject
from tgrpo_dspy.records import CompileReport
from tgrpo_dspy.testing import Call


class Answering(Shouting):
    """Gives these answers, in turn, when it is asked to reflect."""

    def __init__(self, *answers: str | Mapping[str, Any] | Exception) -> None:
        super().__init__()
        self.answers = list(answers)

    def __call__(self, call: Call) -> Any:
        if not reflects(call):
            question = call.fields["question"]
            return {"answer": question.upper() if call.number % 2 else question}
        answer = self.answers[min(len(self.reflections), len(self.answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer


def learn(model: Shouting, student: dspy.Module | None = None, **settings: Any) -> CompileReport:
    optimizer = TrainingFreeGRPO(metric=exact, **{"epochs": 1, "num_threads": 1, **settings})
    with dspy.context(lm=model.lm()):
        optimizer.compile(student or dspy.Predict("question -> answer"), trainset=examples(2), verbose=False)
    assert optimizer.report is not None
    return optimizer.report


def experienced() -> dspy.Module:
    return inject(
        dspy.Predict("question -> answer"),
        ExperienceLibrary((Experience(id="e1", text="Be polite."), Experience(id="e2", text="Be brief."))),
    )


def test_an_answer_that_does_not_parse_is_asked_again_under_a_new_rollout_id() -> None:
    model = Answering("no fields at all", {"advantage": "a", "rules": RULE})
    report = learn(model)
    assert [e.text for e in report.library] == [RULE]
    assert len(model.reflections) == 2
    assert report.steps[0].lost == 0


def test_the_last_attempt_asks_for_plain_rules() -> None:
    model = Answering("nothing", "still nothing", {"advantage": "a", "rules": f"1. {RULE}\n2. Mind the house style."})
    report = learn(model, experienced())
    assert ["edits" in call.asks_for for call in model.reflections] == [True, True, False]
    assert {e.text for e in report.library} == {"Be polite.", "Be brief.", RULE, "Mind the house style."}


def test_groups_whose_reflection_cannot_be_read_are_counted_as_lost_and_the_run_goes_on() -> None:
    report = learn(Answering("nothing"), epochs=2)
    assert [step.lost for step in report.steps] == [2, 2]
    assert len(report.library) == 0


def test_a_reflection_call_that_fails_is_lost_not_fatal() -> None:
    report = learn(Answering(RuntimeError("boom")))
    assert report.steps[0].lost == 2
    assert report.usage["reflection"].failed == 1


@pytest.mark.parametrize(
    "raw",
    [
        f'[[ ## edits ## ]]\n[{{"operation": "ADD", "lesson": "{RULE}"}}]',  # a field is missing
        f'Here you are:\n```json\n[{{"operation": "ADD", "lesson": "{RULE}"}}]\n```',
        f'{{"advantage": "a", "edits": [{{"operation": "add", "ids": null, "lesson": "{RULE}",}}]}}',
        f'[[ ## advantage ## ]]\na\n\n[[ ## edits ## ]]\n[{{"operation": "NEW", "lesson": "{RULE}"',  # cut off
        f'[[ ## advantage ## ]]\na\n\n[[ ## edits ## ]]\n["{RULE}"]',
    ],
)
def test_edits_are_read_from_answers_in_other_forms(raw: str) -> None:
    model = Answering(raw)
    report = learn(model, experienced())
    assert [e.text for e in report.library] == ["Be polite.", "Be brief.", RULE]
    assert len(model.reflections) == 1


def test_operations_reach_the_library_and_refusals_the_report() -> None:
    proposals = [
        {"operation": "DELETE", "ids": ["e1"]},
        {"operation": "UPDATE", "ids": ["[E2]"], "lesson": "Be very brief."},
        {"operation": "UPDATE", "ids": ["e9"], "lesson": "Of no use."},
        {"operation": "ADD", "lesson": "word " * 40},
    ]
    report = learn(Answering({"advantage": "a", "edits": json.dumps(proposals)}), experienced())
    assert [(e.id, e.text) for e in report.library] == [("e2", "Be very brief.")]
    assert sorted(refusal.reason for refusal in report.steps[0].refused) == [
        "has 40 words, more than 32",
        "there is no experience e9",
    ]


@pytest.mark.parametrize("operation", [{}, {"operation": "REWORD"}])
def test_a_lesson_that_names_an_experience_updates_it_also_when_the_operation_is_missing(
    operation: dict[str, str],
) -> None:
    proposal = {**operation, "ids": ["e1"], "lesson": RULE}
    report = learn(Answering({"advantage": "a", "edits": json.dumps([proposal])}), experienced())
    assert [(e.id, e.text) for e in report.library] == [("e1", RULE), ("e2", "Be brief.")]


def test_deleting_several_at_once_is_deleting_each() -> None:
    report = learn(
        Answering({"advantage": "a", "edits": json.dumps([{"operation": "DELETE", "ids": ["e1", "e2"]}])}),
        experienced(),
    )
    assert (len(report.library), report.steps[0].refused) == (0, ())


def test_a_lesson_for_one_of_several_predictors_goes_there_and_an_unknown_one_is_refused() -> None:
    class TwoSteps(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.draft = dspy.Predict("question -> answer")
            self.polish = dspy.Predict("question -> answer")

        def forward(self, question: str) -> dspy.Prediction:
            return self.polish(question=self.draft(question=question).answer)

    class Aiming(Shouting):
        def __call__(self, call: Call) -> dict[str, str]:
            if reflects(call) and "lessons" in call.fields:
                return edits(
                    call, {**add("Draft in short."), "predictor": "draft"}, {**add("Sing."), "predictor": "choir"}
                )
            return super().__call__(call)

    student = inject(TwoSteps(), ExperienceLibrary((Experience(id="e1", text="Be polite."),)))
    optimizer = TrainingFreeGRPO(metric=exact, epochs=1, num_threads=1)
    model = Aiming(lucky=3)
    with dspy.context(lm=model.lm()):
        compiled = optimizer.compile(student, trainset=examples(3), verbose=False)
    assert optimizer.report is not None
    assert "Draft in short." in compiled.draft.signature.instructions
    assert "Draft in short." not in compiled.polish.signature.instructions
    assert "no such predictor, only draft, polish" in optimizer.report.steps[0].refused[0].reason
    assert "Predictor draft: question -> answer" in model.reflections[0].fields["task"]


def test_a_module_of_the_users_own_can_reflect() -> None:
    class Own(dspy.Module):
        def forward(self, task: str, lessons: str, attempts: str) -> dspy.Prediction:
            from tgrpo_dspy.reflection import ProposedEdit

            return dspy.Prediction(advantage="own", edits=[ProposedEdit(lesson=RULE)])

    model = Shouting()
    report = learn(model, reflection=Reflection(advantage=Own()))
    assert [e.text for e in report.library] == [RULE]
    assert model.reflections == []


def test_the_reflection_lm_reflects_and_the_programs_lm_does_not() -> None:
    model, mind = Shouting(), Shouting()
    report = learn(model, reflection_lm=mind.lm(model="test/mind"))
    assert (len(model.reflections), len(mind.runs)) == (0, 0)
    assert len(mind.reflections) == 1 and len(report.library) == 1


def test_the_attempts_shown_are_bounded() -> None:
    class Verbose(Shouting):
        def __call__(self, call: Call) -> dict[str, str]:
            answer = super().__call__(call)
            return answer if reflects(call) else {"answer": answer["answer"] + " and so on" * 2000}

    model = Verbose()
    optimizer = TrainingFreeGRPO(
        metric=lambda g, p: p.answer.startswith(g.answer),
        epochs=1,
        num_threads=1,
        reflection=Reflection(max_prompt_tokens=400),
    )
    with dspy.context(lm=model.lm()):
        optimizer.compile(dspy.Predict("question -> answer"), trainset=examples(4), verbose=False)
    assert model.reflections
    assert all(len(call.fields["attempts"]) <= 1600 for call in model.reflections)
