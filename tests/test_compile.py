"""The whole loop, through ``compile``, on the scripted engine."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import dspy
import pytest

from tests.scripted import RULE, Shouting, add, edits, exact, examples, reflects
from tgrpo_dspy import (
    Experience,
    ExperienceLibrary,
    LibraryError,
    Reflection,
    Sampling,
    TrainingFreeGRPO,
    read_library,
)
from tgrpo_dspy.records import Usage
from tgrpo_dspy.testing import Call, ScriptedEngine


def compiled_with(model: Shouting, student: dspy.Module | None = None, **settings: Any) -> tuple[Any, TrainingFreeGRPO]:
    val, start = settings.pop("valset", None), settings.pop("initial_library", None)
    train = settings.pop("trainset", None) or examples(3)
    optimizer = TrainingFreeGRPO(metric=settings.pop("metric", exact), **{"epochs": 1, "num_threads": 1, **settings})
    with dspy.context(lm=model.lm()):
        program = student or dspy.Predict("question -> answer")
        return optimizer.compile(program, trainset=train, valset=val, initial_library=start, verbose=False), optimizer


def test_learns_the_rule_and_puts_it_into_a_copy_of_the_student() -> None:
    student = dspy.Predict("question -> answer")
    before = student.signature
    compiled, _ = compiled_with(Shouting(), student)
    assert RULE in compiled.signature.instructions
    assert compiled.signature.instructions.startswith(before.instructions)
    assert student.signature is before and RULE not in before.instructions
    assert compiled.lm is None


def test_a_group_makes_as_many_distinct_calls_as_it_has_rollouts_and_a_second_run_makes_none() -> None:
    model = Shouting()
    _, optimizer = compiled_with(model, trainset=examples(1), group_size=5)
    assert len(model.runs) == 5
    assert optimizer.report is not None
    assert optimizer.report.usage["rollout"].calls == 5
    total = len(model.engine.calls)
    _, again = compiled_with(model, trainset=examples(1), group_size=5)
    assert len(model.engine.calls) == total
    assert again.report is not None
    assert again.report.usage["rollout"] == Usage(cached=5)
    assert again.report.library == optimizer.report.library


def test_a_rollout_samples_even_when_the_predictor_pins_temperature_and_rollout_id() -> None:
    model = Shouting()
    pinned = dspy.Predict("question -> answer", temperature=0.0, rollout_id=7)
    compiled, _ = compiled_with(model, pinned, trainset=examples(1), group_size=4)
    assert len(model.runs) == 4
    assert compiled.config == {"temperature": 0.0, "rollout_id": 7}


def test_two_predictors_on_two_pinned_lms_are_both_sampled() -> None:
    first, second = Shouting(), Shouting(lucky=3)

    class TwoSteps(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.draft = dspy.Predict("question -> answer")
            self.polish = dspy.Predict("question -> answer")
            self.draft.lm = first.lm(model="test/first")
            self.polish.lm = second.lm(model="test/second")

        def forward(self, question: str) -> dspy.Prediction:
            return self.polish(question=self.draft(question=question).answer)

    student = TwoSteps()
    compiled, _ = compiled_with(Shouting(), student, trainset=examples(1), group_size=3)
    assert len(first.runs) == 3
    assert 1 <= len(second.runs) <= 3  # drafts that agree may share a prompt but never a rollout id
    assert compiled.draft.lm is student.draft.lm and compiled.polish.lm is student.polish.lm


def test_the_last_short_batch_is_used_and_every_epoch_sees_every_example() -> None:
    every = Sampling(solved_score=None)
    _, optimizer = compiled_with(Shouting(), trainset=examples(5), batch_size=2, epochs=2, group_size=2, sampling=every)
    assert optimizer.report is not None
    assert [len(step.groups) for step in optimizer.report.steps] == [2, 2, 1, 2, 2, 1]
    for epoch in (1, 2):
        keys = [g.key for step in optimizer.report.steps if step.epoch == epoch for g in step.groups]
        assert len(set(keys)) == 5
    first, second = ([g.key for s in optimizer.report.steps if s.epoch == e for g in s.groups] for e in (1, 2))
    assert first != second


def test_groups_without_spread_cost_no_reflection() -> None:
    model = Shouting(lucky=1)  # always right
    compiled, optimizer = compiled_with(model)
    assert optimizer.report is not None
    step = optimizer.report.steps[0]
    assert (step.informative, len(step.groups), step.advantages) == (0, 3, ())
    assert model.reflections == []
    assert compiled.signature.instructions == dspy.Predict("question -> answer").signature.instructions


def test_spread_counts_not_correctness() -> None:
    def graded(gold: Any, pred: Any, trace: Any = None) -> float:
        return 10.0 if exact(gold, pred) else 9.5

    model = Shouting()
    _, optimizer = compiled_with(model, metric=graded)
    assert optimizer.report is not None and optimizer.report.steps[0].informative == 3

    _, strict = compiled_with(Shouting(), metric=graded, sampling=Sampling(min_spread=0.5))
    assert strict.report is not None and strict.report.steps[0].informative == 0


def test_the_new_library_is_used_in_the_next_step() -> None:
    model = Shouting()
    _, optimizer = compiled_with(model, epochs=2)
    assert optimizer.report is not None
    first, second = optimizer.report.steps
    assert (len(first.before), len(first.after), second.before) == (0, 1, first.after)
    assert second.mean_reward == 1.0 > first.mean_reward


def test_reflection_sees_attempts_best_first_with_feedback_and_label() -> None:
    def told(gold: Any, pred: Any, trace: Any = None) -> dspy.Prediction:
        right = exact(gold, pred)
        return dspy.Prediction(score=right, feedback="well done" if right else "not in house style")

    model = Shouting()
    compiled_with(model, metric=told, trainset=examples(1))
    shown = model.reflections[0].fields["attempts"]
    assert shown.index("reward 1") < shown.index("reward 0")
    assert shown.index("well done") < shown.index("not in house style")
    assert "right answer: answer=QUESTION NUMBER 0" in shown
    assert "answer:\n  wrong: question number 0  ->  right: QUESTION NUMBER 0" in shown


def test_informative_groups_are_shown_together() -> None:
    model = Shouting()
    compiled_with(model, trainset=examples(5), reflection=Reflection(groups_per_call=2))
    shown = sorted(call.fields["attempts"].count("### Example") for call in model.reflections)
    assert shown == [1, 2, 2]


def test_with_a_valset_a_library_that_scores_below_the_student_is_not_returned() -> None:
    class Harmed(Shouting):
        """Any lesson at all spoils its answers to the validation questions."""

        def __call__(self, call: Call) -> dict[str, str]:
            if reflects(call):
                return edits(call, *self.proposals)
            question = call.fields["question"]
            spoiled = "val" in question and "<experiences>" in call.system
            return {"answer": question if spoiled or (call.number % 2 and "val" not in question) else question.upper()}

    student = dspy.Predict("question -> answer")
    compiled, optimizer = compiled_with(Harmed(), student, valset=examples(2, "val"))
    report = optimizer.report
    assert report is not None and report.student is not None and report.steps[0].evaluation is not None
    assert len(report.steps[0].after) == 1
    assert report.steps[0].evaluation.mean == 0.0 < report.student.mean == 1.0
    assert (report.best_step, len(report.library)) == (0, 0)
    assert compiled.signature.instructions == student.signature.instructions


def test_with_a_valset_the_best_step_is_returned_not_the_last() -> None:
    class Forgetful(Shouting):
        """Learns the rule in the first step and throws it away in the second."""

        def __call__(self, call: Call) -> dict[str, str]:
            if reflects(call):
                return edits(call, {"operation": "DELETE", "ids": ["e1"]} if "lessons" in call.fields else add())
            question = call.fields["question"]
            right = call.number % 2 == 0 or (RULE in call.system and "val" in question)
            return {"answer": question.upper() if right else question}

    model = Forgetful()
    compiled, optimizer = compiled_with(model, epochs=2, valset=examples(4, "val"))
    assert optimizer.report is not None
    assert [len(step.after) for step in optimizer.report.steps] == [1, 0]
    assert optimizer.report.best_step == 1
    assert RULE in compiled.signature.instructions


def test_validation_uses_the_users_own_temperature_and_learning_its_own() -> None:
    seen: list[tuple[str, float | None]] = []

    class Watching(ScriptedEngine):
        def complete(self, request: Any) -> Any:
            seen.append((request.messages[-1].text, request.config.temperature))
            return super().complete(request)

    engine = Watching(Shouting())
    with dspy.context(lm=engine.lm(temperature=0.2)):
        TrainingFreeGRPO(metric=exact, epochs=1, group_size=2).compile(
            dspy.Predict("question -> answer"),
            trainset=examples(1, "train"),
            valset=examples(1, "val"),
            verbose=False,
        )
    assert {t for text, t in seen if "val number" in text} == {0.2}
    assert {t for text, t in seen if "train number" in text and "[[ ## attempts ## ]]" not in text} == {0.7}


def test_a_compiled_program_loads_and_sends_the_same_bytes_where_the_package_is_missing(tmp_path: Path) -> None:
    compiled, _ = compiled_with(
        Shouting(), dspy.ChainOfThought("question -> answer"), metric=lambda g, p: len(p.answer) % 2
    )
    compiled.save(tmp_path / "x.json")
    script = """
import sys, json, dspy
sys.modules["tgrpo_dspy"] = None  # importing it now fails
program = dspy.ChainOfThought("question -> answer")
program.load("x.json")
predictor = program.predict
print(json.dumps(dspy.ChatAdapter().format(predictor.signature, predictor.demos, {"question": "why?"})))
"""
    output = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    predictor = compiled.predict
    assert json.loads(output) == dspy.ChatAdapter().format(predictor.signature, predictor.demos, {"question": "why?"})


def test_an_injected_program_goes_on_from_its_library_and_is_not_stacked() -> None:
    class Deaf(Shouting):
        """Does not follow the rule, so that a program that carries it still has something to learn."""

        def __call__(self, call: Call) -> dict[str, str]:
            if reflects(call):
                return edits(call, *self.proposals)
            question = call.fields["question"]
            return {"answer": question.upper() if call.number % 2 else question}

    once, _ = compiled_with(Shouting())
    better = RULE + " Always."
    twice, optimizer = compiled_with(Deaf({"operation": "UPDATE", "ids": ["e1"], "lesson": better}), once)
    assert twice.signature.instructions.count("<experiences>") == 1
    assert [(e.id, e.text) for e in read_library(twice)] == [("e1", better)]
    assert optimizer.report is not None and len(optimizer.report.steps[0].before) == 1


def test_learning_starts_from_an_initial_library() -> None:
    start = ExperienceLibrary((Experience(id="e4", text="Be polite."),))
    compiled, optimizer = compiled_with(Shouting(), initial_library=start)
    assert optimizer.report is not None
    assert optimizer.report.steps[0].before == start
    assert [(e.id, e.text) for e in read_library(compiled)] == [("e4", "Be polite."), ("e5", RULE)]


def test_an_initial_library_that_scores_below_the_student_is_not_returned() -> None:
    class Misled(Shouting):
        def __call__(self, call: Call) -> dict[str, str]:
            if reflects(call):
                return edits(call, *self.proposals)
            misled = "Whisper." in call.system or call.number % 2
            return {"answer": call.fields["question"] if misled else call.fields["question"].upper()}

    start = ExperienceLibrary((Experience(id="e1", text="Whisper."),))
    compiled, optimizer = compiled_with(Misled(), initial_library=start, valset=examples(4, "val"))
    assert optimizer.report is not None and optimizer.report.best_step == 0
    assert len(read_library(compiled)) == 0


def test_an_initial_library_for_another_program_is_an_error_before_any_call() -> None:
    model = Shouting()
    with pytest.raises(LibraryError, match="is for predictor 'answer', but the program has self"):
        compiled_with(
            model, initial_library=ExperienceLibrary((Experience(id="e1", text="Be polite.", target="answer"),))
        )
    assert model.engine.calls == []


@pytest.mark.parametrize("threads", [1, 8])
def test_report_counts_calls_and_tokens_by_role_as_the_engine_saw_them(threads: int) -> None:
    model = Shouting()
    with dspy.context(track_usage=True):
        _, optimizer = compiled_with(model, valset=examples(2, "val"), epochs=2, num_threads=threads)
    assert optimizer.report is not None
    usage = optimizer.report.usage
    assert usage["reflection"].calls == len(model.reflections)
    assert usage["rollout"].calls + usage["evaluation"].calls == len(model.runs)
    assert sum(u.prompt_tokens for u in usage.values()) == sum(len(c.text) // 4 for c in model.engine.calls)
    by_step = [step.usage.get("rollout", Usage()) for step in optimizer.report.steps]
    assert by_step[0] + by_step[1] == usage["rollout"]


def test_usage_is_also_told_to_a_tracker_of_the_user_and_counted_in_parallel_workers() -> None:
    class Twice(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ask = dspy.Predict("question -> answer")

        def forward(self, question: str) -> dspy.Prediction:
            pairs = [(self.ask, {"question": question}), (self.ask, {"question": question + "?"})]
            return dspy.Parallel(num_threads=2, disable_progress_bar=True)(pairs)[0]

    model = Shouting()
    with dspy.track_usage() as tracker:
        _, optimizer = compiled_with(model, Twice(), trainset=examples(1), group_size=2)
    assert optimizer.report is not None
    assert optimizer.report.usage["rollout"].calls == 4 == len(model.runs)
    total = tracker.get_total_tokens()["test/scripted"]
    assert total["prompt_tokens"] == sum(usage.prompt_tokens for usage in optimizer.report.usage.values())


def test_compile_works_inside_a_running_event_loop_and_acompile_gives_the_same() -> None:
    async def notebook() -> tuple[str, str]:
        with dspy.context(lm=Shouting().lm()):
            program = dspy.Predict("question -> answer")
            optimizer = TrainingFreeGRPO(metric=exact, epochs=1)
            sync = optimizer.compile(program, trainset=examples(3), verbose=False)
            native = await optimizer.acompile(program, trainset=examples(3), verbose=False)
            return sync.signature.instructions, native.signature.instructions

    sync, native = asyncio.run(notebook())
    assert sync == native and RULE in sync


def test_async_only_programs_and_async_metrics_are_awaited() -> None:
    class Native(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.answer = dspy.Predict("question -> answer")

        async def aforward(self, question: str) -> dspy.Prediction:
            return await self.answer.acall(question=question)

    async def metric(gold: Any, pred: Any) -> bool:
        await asyncio.sleep(0)
        return exact(gold, pred)

    compiled, optimizer = compiled_with(Shouting(), Native(), metric=metric)
    assert RULE in compiled.answer.signature.instructions
    assert optimizer.report is not None and optimizer.report.steps[0].informative == 3


class Dice(dspy.Module):
    """A program whose answer depends on its rollout id alone, as a sampling model's would, whatever runs beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = dspy.Predict("question -> answer")

    def forward(self, question: str) -> dspy.Prediction:
        side = dspy.settings.lm.kwargs.get("rollout_id", 0) % 2
        return self.answer(question=f"{question} {side}")


def test_the_order_of_arrival_changes_nothing() -> None:
    class Naming(Shouting):
        """Every reflection gives a lesson of its own, so that a swapped order would show."""

        def __call__(self, call: Call) -> dict[str, str]:
            if reflects(call):
                words = call.fields["attempts"].split()
                return edits(call, add(), add(f"Mind the {sum(map(len, words))} letters of the house style."))
            time.sleep(0.001 * (call.number % 5))
            return {"answer": call.fields["question"]}

    def even(gold: Any, pred: Any) -> bool:
        return bool(pred.answer.endswith("0"))

    saved = []
    for threads in (1, 2, 32):
        dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=True)
        compiled, optimizer = compiled_with(
            Naming(),
            Dice(),
            metric=even,
            trainset=examples(7),
            epochs=2,
            num_threads=threads,
            reflection=Reflection(groups_per_call=2, similarity=100),
        )
        assert optimizer.report is not None and len(optimizer.report.library) > 3
        advantages = [advantage for step in optimizer.report.steps for advantage in step.advantages]
        saved.append((compiled.answer.signature.instructions, optimizer.report.library, advantages))
    assert saved[0] == saved[1] == saved[2]


def test_student_and_settings_are_unchanged_by_compile() -> None:
    model = Shouting()
    lm = model.lm()
    student = dspy.Predict("question -> answer")
    student.lm = lm
    state = (student.signature, dict(student.config), list(student.demos))
    with dspy.context(lm=lm):
        trace_before = len(dspy.settings.trace or [])
        TrainingFreeGRPO(metric=exact, epochs=1).compile(student, trainset=examples(2), verbose=False)
        assert len(dspy.settings.trace or []) == trace_before
        assert dspy.settings.lm is lm
    assert (student.signature, student.config, student.demos) == state
    assert student.lm is lm and "rollout_id" not in lm.kwargs and lm.kwargs["temperature"] == 0.0
