"""What becomes of a step's library, through ``compile``: kept, rolled back, returned; and repeated validation runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dspy
import pytest

from tests.pupil import Pupil, learn, questions
from tests.scripted import edits, exact, reflects
from tgrpo_dspy import Budget, ConfigurationError, ExperienceLibrary, Sampling, TrainingFreeGRPO, Validation
from tgrpo_dspy.evaluation.acceptance import Candidate, Verdict
from tgrpo_dspy.records import CompileReport
from tgrpo_dspy.runs.events import Event, RolloutFinished, RunStarted
from tgrpo_dspy.testing import Call, ScriptedEngine

GOOD, HARMFUL, IDLE = "Write in capital letters.", "Write in small letters.", "Mind the house style."
VAL = [f"val {n}" for n in range(6)]


def lesson(text: str) -> dict[str, Any]:
    return {"operation": "ADD", "lesson": text}


class Scripted(Pupil):
    """Proposes the next edits at every step. Half of the validation questions go right by themselves, all of them with
    the good lesson, and none with the harmful one; the training questions stay mixed whatever it learns.
    """

    def __init__(self, *steps: list[dict[str, Any]], fixed: int = 3) -> None:
        self.steps = list(steps)

        def right(question: str, nth: int, call: Call) -> bool:
            if question not in VAL:
                return nth % 2 == 0
            return HARMFUL not in call.system and (GOOD in call.system or question in VAL[:fixed])

        super().__init__(right)

    def __call__(self, call: Call) -> Mapping[str, Any]:
        answer = super().__call__(call)
        question = call.fields.get("question", VAL[0])
        # No two groups are the same, so that no reflection is answered from the cache.
        return answer if question in VAL else {"answer": f"{answer['answer']} {self.asked[question]}"}

    def reflect(self, call: Call) -> Mapping[str, Any]:
        return edits(call, *self.steps[len(self.reflections) - 1])


def starts_right(gold: dspy.Example, pred: Any) -> bool:
    return bool(pred.answer.startswith(gold.answer))


def run(*steps: list[dict[str, Any]], acceptance: Any = "best", fixed: int = 3, **settings: Any) -> CompileReport:
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=True)
    return learn(
        settings.pop("model", None) or Scripted(*steps, fixed=fixed),
        questions("one"),
        metric=starts_right,
        epochs=len(steps),
        valset=questions(*VAL),
        validation=Validation(acceptance=acceptance),
        **settings,
    )[1]


def means(report: CompileReport) -> list[float | None]:
    return [step.evaluation and step.evaluation.mean for step in report.steps]


def texts(library: ExperienceLibrary) -> list[str]:
    return [e.text for e in library]


def test_best_returns_the_best_library_and_learning_goes_on_from_every_step() -> None:
    report = run([lesson(GOOD)], [lesson(HARMFUL)], [lesson(IDLE)])
    assert means(report) == [1.0, 0.0, 0.0]
    assert [step.accepted for step in report.steps] == [True, True, True]
    assert [step.before for step in report.steps[1:]] == [step.after for step in report.steps[:-1]]
    assert (report.best_step, texts(report.library)) == (1, [GOOD])
    assert "the best so far: +0.500" in report.steps[0].verdict
    assert "below the student: -0.500" in report.steps[1].verdict


def test_when_nothing_helps_the_student_is_returned() -> None:
    report = run([lesson(IDLE)], [lesson("Be polite to everyone.")])
    assert means(report) == [0.5, 0.5]
    assert (report.best_step, len(report.library)) == (0, 0)
    assert report.student is not None and report.student.mean == 0.5


def test_among_equals_the_shorter_library_is_returned() -> None:
    report = run([lesson(GOOD), lesson(IDLE)], [{"operation": "DELETE", "ids": ["e1"]}])
    assert means(report) == [1.0, 1.0]
    assert [texts(step.after) for step in report.steps] == [[IDLE, GOOD], [GOOD]]
    assert (report.best_step, texts(report.library)) == (2, [GOOD])
    longer = run([lesson(GOOD)], [lesson(IDLE)])
    assert (longer.best_step, texts(longer.library)) == (1, [GOOD])


def test_the_gate_rolls_a_harmful_step_back_and_the_next_one_starts_from_the_library_before() -> None:
    report = run([lesson(GOOD)], [lesson(HARMFUL)], [lesson(IDLE)], acceptance="gate")
    good, harmful, idle = report.steps
    assert [step.accepted for step in report.steps] == [True, False, True]
    assert "rolled back, worse than the library it started from: -1.000" in harmful.verdict
    assert texts(harmful.after) == [GOOD, HARMFUL], "the record keeps what was rolled back"
    assert idle.before.experiences == good.after.experiences and texts(idle.after) == [GOOD, IDLE]
    assert means(report) == [1.0, 0.0, 1.0]
    assert (report.best_step, texts(report.library)) == (1, [GOOD])


def test_the_gate_rolls_back_only_what_can_hardly_be_chance() -> None:
    three_lost = run([lesson(HARMFUL)], [lesson(IDLE)], acceptance="gate", fixed=3)
    assert [step.accepted for step in three_lost.steps] == [True, True]
    assert (three_lost.best_step, texts(three_lost.steps[1].before)) == (0, [HARMFUL])
    four_lost = run([lesson(HARMFUL)], [lesson(GOOD)], acceptance="gate", fixed=4)
    assert [step.accepted for step in four_lost.steps] == [False, True]
    assert (texts(four_lost.steps[1].before), texts(four_lost.library)) == ([], [GOOD])


def test_a_run_that_goes_on_goes_on_from_what_was_rolled_back(tmp_path: Path) -> None:
    steps = [lesson(GOOD)], [lesson(HARMFUL)], [lesson(IDLE)]
    model = Scripted(*steps)
    budget = Budget(max_rollouts=6 + 2 * 8 + 6)
    first = run(*steps, acceptance="gate", model=model, run_dir=tmp_path, budget=budget)
    assert [step.accepted for step in first.steps] == [True, False] and first.stopped_by is not None
    whole = run(*steps, acceptance="gate", model=model, run_dir=tmp_path)
    assert [step.accepted for step in whole.steps] == [True, False, True]
    assert texts(whole.steps[2].before) == [GOOD] and whole.stopped_by is None
    assert len(model.runs) == 6 + 3 * 8


def test_what_was_rolled_back_is_not_tried_again() -> None:
    class Stubborn(Scripted):
        """Its rollouts are the same in every step, and so is what it draws from them."""

        def __call__(self, call: Call) -> Mapping[str, Any]:
            return Pupil.__call__(self, call)

        def reflect(self, call: Call) -> Mapping[str, Any]:
            return edits(call, lesson(HARMFUL))

    report = run([], [], [], acceptance="gate", model=Stubborn(fixed=6))
    assert [texts(step.after) for step in report.steps].count([HARMFUL]) == 1


def test_last_returns_the_last_library_even_when_it_is_worse() -> None:
    report = run([lesson(GOOD)], [lesson(HARMFUL)], acceptance="last")
    assert means(report) == [1.0, 0.0]
    assert (report.best_step, texts(report.library)) == (2, [GOOD, HARMFUL])


def test_an_acceptance_of_ones_own_hears_of_every_candidate_and_decides() -> None:
    heard: list[tuple[int, int, int, int]] = []

    class Second:
        """Rolls every step back but the second, and returns that one."""

        def decide(self, *, student: Candidate, current: Candidate, new: Candidate, best: Candidate) -> Verdict:
            heard.append((student.step, current.step, new.step, best.step))
            assert new.scores is not None and [len(repeats) for repeats in new.scores] == [1] * 6
            chosen = new.step == 2
            return Verdict(
                continue_with="new" if chosen else "current", best=new if chosen else best, reason=f"step {new.step}"
            )

    report = run([lesson(GOOD)], [lesson(IDLE)], [lesson(HARMFUL)], acceptance=Second())
    assert heard == [(0, 0, 1, 0), (0, 0, 2, 0), (0, 2, 3, 2)]
    assert [(step.accepted, step.verdict) for step in report.steps] == [
        (False, "step 1"),
        (True, "step 2"),
        (False, "step 3"),
    ]
    assert (report.best_step, texts(report.library)) == (2, [IDLE])


@pytest.mark.parametrize("choice", ["majority", None, Validation])
def test_another_name_is_an_error_before_anything_starts(choice: Any) -> None:
    with pytest.raises(ConfigurationError, match="use 'best', 'gate', 'last', or an object with decide"):
        TrainingFreeGRPO(metric=exact, validation=Validation(acceptance=choice))


# Repeats


class Noisy:
    """Answers a validation question right two times of three; keeps the temperatures it was asked at."""

    def __init__(self) -> None:
        self.temperatures: dict[str, list[float | None]] = {}
        self.reflections = 0
        self.engine = ScriptedEngine(self)

    def __call__(self, call: Call) -> Mapping[str, Any]:
        if reflects(call):
            self.reflections += 1
            return edits(call, lesson(f"Mind rule {'ABCDEFGHI'[self.reflections - 1]} of the house style."))
        question = call.fields["question"]
        asked = self.temperatures.setdefault(question, [])
        asked.append(call.request.config.temperature)
        return {"answer": question.upper() if len(asked) % 3 else question}


def repeated(model: Noisy, temperature: float | None = 0.2, epochs: int = 1, **of_compile: Any) -> CompileReport:
    every = Sampling(solved_score=None)
    repeats = Validation(repeats=3)
    optimizer = TrainingFreeGRPO(
        metric=exact, epochs=epochs, group_size=3, num_threads=1, sampling=every, validation=repeats
    )
    with dspy.context(lm=model.engine.lm(temperature=temperature)):
        optimizer.compile(
            dspy.Predict("question -> answer"),
            trainset=questions("one"),
            valset=questions("val 1", "val 2"),
            verbose=False,
            **of_compile,
        )
    assert optimizer.report is not None
    return optimizer.report


@pytest.mark.parametrize("temperature", [None, 0.2])
def test_every_validation_example_runs_as_often_as_asked_at_the_users_own_temperature(
    temperature: float | None,
) -> None:
    model = Noisy()
    report = repeated(model, temperature)
    assert model.temperatures["val 1"] == model.temperatures["val 2"] == [temperature] * 6
    assert model.temperatures["one"] == [0.7] * 3
    assert report.usage["evaluation"].calls == 2 * 2 * 3 and report.usage["evaluation"].cached == 0
    for evaluation in (report.student, report.steps[0].evaluation):
        assert evaluation is not None
        assert evaluation.repeats == ((1.0, 1.0, 0.0), (1.0, 1.0, 0.0))
        assert evaluation.scores == (2 / 3, 2 / 3) and evaluation.mean == pytest.approx(2 / 3)


def test_repeats_at_temperature_0_cause_no_warning() -> None:
    report = repeated(Noisy(), 0.0)
    assert report.usage["evaluation"].failed == 0


def test_a_second_run_repeats_from_the_cache() -> None:
    model = Noisy()
    first = repeated(model)
    calls = len(model.engine.calls)
    second = repeated(model)
    assert len(model.engine.calls) == calls
    assert second.student == first.student and second.usage["evaluation"].cached == 12


def test_repeats_are_compared_by_their_means() -> None:
    class Steadier(Noisy):
        """With a lesson all three runs are right."""

        def __call__(self, call: Call) -> Mapping[str, Any]:
            answer = super().__call__(call)
            return {"answer": call.fields["question"].upper()} if "Mind rule A" in call.system else answer

    report = repeated(Steadier())
    assert (report.best_step, len(report.library)) == (1, 1)
    assert report.steps[0].verdict == "the best so far: +0.333 ± 0.000 on 2 examples (2 better, 0 equal, 0 worse)"


def test_a_budget_sets_aside_all_the_repeats_of_an_evaluation() -> None:
    report = repeated(Noisy(), epochs=9, budget=Budget(max_rollouts=6 + 2 * (3 + 6) - 1))
    assert report.stopped_by is not None
    assert [step.evaluation is not None for step in report.steps] == [True, True]


def test_a_run_announces_all_its_repeats() -> None:
    heard: list[Event] = []
    repeated(Noisy(), listeners=[heard.append])
    (started,) = (event for event in heard if isinstance(event, RunStarted))
    assert started.program_runs == sum(isinstance(event, RolloutFinished) for event in heard) == 3 + 2 * 6
