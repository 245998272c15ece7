"""Learning where there is signal: each rule through ``compile``, and the paper's loop when all are off."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dspy
import pytest

from tests.pupil import EASY, HARD, MIXED, Pupil, by_kind, learn, questions, sampled
from tests.scripted import RULE, add, edits, exact
from tgrpo_dspy import Budget, Reflection, Sampling, Validation
from tgrpo_dspy.testing import Call
from tgrpo_dspy.views.report import report_to_json

SIZE = 2
SILENT = Reflection(learn_from_failures=False)


# Dynamic sampling


def test_a_solved_example_is_left_out_of_one_epoch_then_of_two_then_of_four_and_its_rollouts_are_saved() -> None:
    model = Pupil()
    _, report = learn(model, questions(EASY, HARD), epochs=11, reflection=SILENT)
    epochs = [step.epoch for step in report.steps if EASY in sampled((step,))[0]]
    assert epochs == [1, 3, 6, 11]
    assert model.asked == {EASY: 4 * SIZE, HARD: 11 * SIZE}
    assert report.usage["rollout"].calls == 15 * SIZE == len(model.runs)


def test_the_place_of_a_solved_example_goes_to_a_mixed_one_with_other_rollouts() -> None:
    model = Pupil()
    _, report = learn(
        model, questions(EASY, MIXED, HARD), epochs=3, reflection=SILENT, sampling=Sampling(max_oversample=2)
    )
    assert sampled(report.steps) == [[EASY, HARD, MIXED], [HARD, MIXED, MIXED], [EASY, HARD, MIXED]]
    assert model.asked == {EASY: 2 * SIZE, MIXED: 4 * SIZE, HARD: 3 * SIZE}
    assert report.usage["rollout"].cached == 0, "a further group makes calls of its own"
    keys = [group.key for group in report.steps[1].groups]
    assert len(set(keys)) == 3


def test_an_example_never_gets_more_groups_than_allowed() -> None:
    model = Pupil()
    train = questions("easy 1", "easy 2", "easy 3", MIXED)
    _, report = learn(model, train, epochs=2, reflection=SILENT, sampling=Sampling(max_oversample=3), batch_size=1)
    assert sorted(q for step in sampled(report.steps[4:]) for q in step) == [MIXED, MIXED, MIXED]
    assert model.asked[MIXED] == 4 * SIZE


def test_without_a_solved_score_every_epoch_samples_every_example() -> None:
    model = Pupil()
    train = questions(EASY, MIXED, HARD)
    _, report = learn(model, train, epochs=3, sampling=Sampling(solved_score=None, max_oversample=3))
    assert sampled(report.steps) == [[EASY, HARD, MIXED]] * 3
    assert set(model.asked.values()) == {3 * SIZE}


@pytest.mark.parametrize("batch_size", [None, 1])
@pytest.mark.parametrize(
    ("low", "top", "saved"), [(3.0, 10.0, 1), (0.2, 1.0, 1), (-5.0, -1.0, 0)], ids=["to 10", "to 1", "negative"]
)
def test_a_reward_below_the_top_of_the_metrics_scale_is_not_mistaken_for_solved(
    low: float, top: float, saved: int, batch_size: int | None
) -> None:
    def scaled(gold: dspy.Example, pred: Any, trace: Any = None) -> float:
        return top if exact(gold, pred) else low

    for seed in range(3):
        model = Pupil()
        train = questions(EASY, "hard 1", "hard 2")
        learn(model, train, metric=scaled, epochs=2, batch_size=batch_size, seed=seed, reflection=SILENT)
        assert model.asked == {EASY: (2 - saved) * SIZE, "hard 1": 2 * SIZE, "hard 2": 2 * SIZE}


def test_a_solved_example_that_goes_wrong_when_it_is_due_again_is_sampled_in_every_epoch_from_then_on() -> None:
    model = Pupil(lambda question, nth, call: question == EASY and nth < SIZE)
    _, report = learn(model, questions(EASY, HARD), epochs=5, reflection=SILENT)
    assert [step.epoch for step in report.steps if EASY in sampled((step,))[0]] == [1, 3, 4, 5]


def test_a_run_in_which_everything_is_solved_ends_well() -> None:
    model = Pupil()
    program, report = learn(model, questions("easy 1", "easy 2"), epochs=4, valset=questions("easy 3"))
    assert [step.mean_reward for step in report.steps] == [1.0] * 4
    assert (report.stopped_by, len(report.library), model.reflections) == (None, 0, [])
    assert program.signature.instructions == dspy.Predict("question -> answer").signature.instructions


@pytest.mark.parametrize("stop_after", [5, 11, 14, 20])
def test_a_run_that_was_stopped_goes_on_with_the_same_curriculum(stop_after: int, tmp_path: Path) -> None:
    """Of the epochs 2 and 3 a part is left out or oversampled, whether the epochs before are new or recalled."""

    def run(model: Pupil, **settings: Any) -> Any:
        dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)
        train = questions("easy 1", "easy 2", "mixed 1", "mixed 2", HARD)
        sampling = Sampling(max_oversample=2)
        return learn(model, train, epochs=4, batch_size=2, sampling=sampling, valset=questions("val"), **settings)[1]

    def told(report: Any) -> Any:
        steps = json.loads(report_to_json(report))["steps"]
        return [{k: step[k] for k in ("step", "epoch", "groups", "after", "applied")} for step in steps]

    def without_seconds(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: without_seconds(v) for k, v in value.items() if k != "seconds"}
        return [without_seconds(v) for v in value] if isinstance(value, list) else value

    whole, model = Pupil(), Pupil()
    uninterrupted = run(whole)
    first = run(model, run_dir=tmp_path, budget=Budget(max_rollouts=stop_after))
    assert first.stopped_by is not None and len(model.runs) <= stop_after
    resumed = run(model, run_dir=tmp_path)
    assert without_seconds(told(resumed)) == without_seconds(told(uninterrupted))
    assert resumed.library == uninterrupted.library
    assert model.asked == whole.asked, "nothing is sampled twice"
    later = [question for step in resumed.steps if step.epoch == 2 for question in sampled((step,))[0]]
    assert max(Counter(later).values()) == 2 and "easy 1" not in later


# Failures


class Corrected(Pupil):
    """Never follows the rule by luck; learns it from the answer that stands beside its own, or from feedback."""

    def __init__(self) -> None:
        super().__init__(lambda question, nth, call: RULE in call.system)

    def reflect(self, call: Call) -> Mapping[str, Any]:
        shown = call.fields["attempts"]
        told = "wrong: one  ->  right: ONE" in shown or "grader: use capital letters" in shown
        return edits(call, add(RULE if told else "Try harder next time."))


def test_a_group_that_fails_throughout_teaches_beside_its_label() -> None:
    model = Corrected()
    program, report = learn(model, questions("one", "two"), epochs=2)
    first, second = report.steps
    assert (first.informative, first.mean_reward, second.mean_reward) == (0, 0.0, 1.0)
    assert RULE in program.signature.instructions
    assert len(model.reflections) == 1
    assert "right answer: answer=ONE" in model.reflections[0].fields["attempts"]


def test_a_group_that_fails_throughout_teaches_beside_its_feedback() -> None:
    def told(gold: dspy.Example, pred: Any) -> dspy.Prediction:
        right = pred.answer == gold.question.upper()
        return dspy.Prediction(score=right, feedback="" if right else "use capital letters")

    unlabelled = [dspy.Example(question=text).with_inputs("question") for text in ("one", "two")]
    model = Corrected()
    _, report = learn(model, unlabelled, epochs=2, metric=told)
    assert [step.mean_reward for step in report.steps] == [0.0, 1.0]
    assert "right answer" not in model.reflections[0].fields["attempts"]


@pytest.mark.parametrize("why", ["off", "nothing known", "no ground truth"])
def test_failures_that_have_nothing_to_be_held_against_cost_no_reflection(why: str) -> None:
    settings: dict[str, Any] = {
        "off": {"reflection": Reflection(learn_from_failures=False)},
        "nothing known": {"metric": lambda gold, pred: pred.answer == gold.question.upper()},
        "no ground truth": {"use_ground_truth": False},
    }[why]
    train = questions("one", "two")
    if why == "nothing known":
        train = [example.without("answer").with_inputs("question") for example in train]
    model = Corrected()
    _, report = learn(model, train, epochs=2, **settings)
    assert model.reflections == [] and len(report.library) == 0


def test_an_answer_that_cannot_be_read_teaches_beside_its_label_too() -> None:
    class Unreadable(Corrected):
        def __call__(self, call: Call) -> Any:
            answer = super().__call__(call)
            return answer if "attempts" in call.fields or RULE in call.system else "no field at all"

        def reflect(self, call: Call) -> Mapping[str, Any]:
            shown = call.fields["attempts"]
            assert "failed with AdapterParseError" in shown and "right answer: answer=ONE" in shown
            return edits(call, add())

    _, report = learn(Unreadable(), questions("one"), epochs=2, group_size=3)
    assert [step.mean_reward for step in report.steps] == [0.0, 1.0]


def test_what_fails_throughout_on_a_metric_with_another_scale_teaches_too() -> None:
    """As with what is solved: 3 of 10 is a failure once another example has reached 10."""

    def to_ten(gold: dspy.Example, pred: Any) -> float:
        return 10.0 if exact(gold, pred) else 3.0

    model = Pupil()
    learn(model, questions(EASY, HARD), metric=to_ten, epochs=2)
    assert any("wrong: hard  ->  right: HARD" in call.fields["attempts"] for call in model.reflections)


# Failing alike


def places(*names: str) -> list[dspy.Example]:
    """Examples with two fields to fill; the model gets wrong the one that the name begins with."""
    return [
        dspy.Example(note=name, city=f"CITY OF {name.upper()}", year=f"YEAR OF {name.upper()}").with_inputs("note")
        for name in names
    ]


class Clerk(Pupil):
    """Writes the field that a note begins with in small letters; late in answering some of the notes."""

    def __call__(self, call: Call) -> Mapping[str, Any]:
        if "attempts" in call.fields:
            return edits(call, add("Mind the form of every field."))
        note = call.fields["note"]
        time.sleep(0.003 * (len(note) % 3))
        right = {name: f"{name} of {note}".upper() for name in ("city", "year")}
        wrong = note.split()[0]
        return {**right, wrong: right[wrong].lower()}


def shown_together(threads: int, **reflection: Any) -> tuple[list[str], list[list[str]]]:
    """The notes in batch order, and those that each reflection call shows, in the order of the first of them."""
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=True)
    model = Clerk()
    _, report = learn(
        model,
        places("city a", "city bb", "city ccc", "year d", "year ee", "year fff"),
        dspy.Predict("note -> city, year"),
        metric=lambda gold, pred: gold.city == pred.city and gold.year == pred.year,
        num_threads=threads,
        seed=3,
        reflection=Reflection(groups_per_call=2, **reflection),
    )
    batch = [group.inputs["note"] for group in report.steps[0].groups]
    shown = [[name for name in batch if f"note: {name}\n" in c.fields["attempts"]] for c in model.reflections]
    return batch, sorted(shown, key=lambda names: batch.index(names[0]))


def test_groups_that_fail_in_the_same_fields_share_a_call() -> None:
    batch, shown = shown_together(threads=1)
    assert sorted(map(len, shown)) == [2, 2, 2]
    kinds = [sorted({name.split()[0] for name in names}) for names in shown]
    assert sorted(kinds) == [["city"], ["city", "year"], ["year"]], "one call is for what is left of both"
    assert all(shown_together(threads=threads) == (batch, shown) for threads in (2, 8))


def test_otherwise_groups_are_shown_in_batch_order() -> None:
    batch, shown = shown_together(threads=1, alike_together=False)
    assert shown == [batch[:2], batch[2:4], batch[4:]]
    assert shown != shown_together(threads=1)[1]


# Sampling once more


class Cold(Pupil):
    """Answers one way unless it is sampled at a high temperature; the temperatures are kept by question."""

    def __init__(self, varies_at: float) -> None:
        self.temperatures: dict[str, list[float | None]] = {}

        def right(question: str, nth: int, call: Call) -> bool:
            hot = (call.request.config.temperature or 0.0) >= varies_at
            self.temperatures.setdefault(question, []).append(call.request.config.temperature)
            return (question == MIXED or hot) and nth % 2 == 0

        super().__init__(right)


HOT = Sampling(resample_temperature=1.3)


def test_a_group_whose_rollouts_are_all_the_same_is_sampled_once_more_at_a_higher_temperature() -> None:
    model = Cold(varies_at=1.0)
    _, report = learn(model, questions("one", MIXED), sampling=HOT, group_size=2, reflection=SILENT)
    assert model.temperatures == {"one": [0.7, 0.7, 1.3, 1.3], MIXED: [0.7, 0.7]}
    step = report.steps[0]
    assert step.informative == 2
    assert {g.inputs["question"]: len(g.rollouts) for g in step.groups} == {"one": 4, MIXED: 2}
    assert [r.number for g in step.groups for r in g.rollouts if g.inputs["question"] == "one"] == [0, 1, 2, 3]


def test_it_is_sampled_once_more_only_once() -> None:
    model = Cold(varies_at=9.0)
    learn(model, questions("one"), sampling=HOT, group_size=2, reflection=SILENT)
    assert model.temperatures == {"one": [0.7, 0.7, 1.3, 1.3]}


def test_without_a_resample_temperature_it_is_not() -> None:
    model = Cold(varies_at=1.0)
    learn(model, questions("one"), group_size=2, reflection=SILENT)
    assert model.temperatures == {"one": [0.7, 0.7]}


# The paper


class Learning(Pupil):
    """Every reflection proposes a lesson of its own, and any lesson spoils the answers to the validation questions."""

    def __init__(self) -> None:
        def right(question: str, nth: int, call: Call) -> bool:
            if question.startswith("val"):
                return "<experiences>" not in call.system
            return by_kind(question, nth, call)

        super().__init__(right)

    def reflect(self, call: Call) -> Mapping[str, Any]:
        return edits(call, add(f"Mind rule {'ABCDEFGH'[len(self.reflections) - 1]} of the house style."))


def test_with_everything_off_the_loop_is_the_papers() -> None:
    """Every example in every epoch, a reflection for each informative group alone, and the last library."""
    model = Learning()
    program, report = learn(
        model,
        questions("mixed 1", "mixed 2", "mixed 3", EASY, HARD),
        epochs=2,
        group_size=4,
        valset=questions("val 1", "val 2"),
        sampling=Sampling(solved_score=None),
        reflection=Reflection(learn_from_failures=False, alike_together=False, groups_per_call=1, similarity=100),
        validation=Validation(acceptance="last"),
    )
    roles = {role: usage.calls for role, usage in report.usage.items()}
    assert roles == {"rollout": 2 * 5 * 4, "reflection": 2 * 3, "evaluation": 3 * 2}
    assert model.asked == {**dict.fromkeys(["mixed 1", "mixed 2", "mixed 3", EASY, HARD], 8), "val 1": 3, "val 2": 3}

    batches = [[group.inputs["question"] for group in step.groups] for step in report.steps]
    in_turn = [question for batch in batches for question in batch for _ in range(4)]
    assert [call.fields["question"] for call in model.runs] == [
        *("val 1", "val 2"),
        *in_turn[:20],
        *("val 1", "val 2"),
        *in_turn[20:],
        *("val 1", "val 2"),
    ]
    told = [call.fields["attempts"] for call in model.reflections]
    assert [text.split("\n")[1] for text in told] == [
        f"question: {name}" for batch in batches for name in batch if name.startswith(MIXED)
    ]
    assert all(text.count("### Example") == 1 for text in told)

    first, second = report.steps
    assert (len(first.before), len(first.after), second.before, len(second.after)) == (0, 3, first.after, 6)
    assert report.student is not None and second.evaluation is not None
    assert second.evaluation.mean == 0.0 < report.student.mean == 1.0
    assert (report.best_step, report.library) == (2, second.after)
    assert program.signature.instructions.count("[e") == 6
