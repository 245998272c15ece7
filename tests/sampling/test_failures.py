"""Failures of a rollout are told apart: some teach, some are left out, and none stops the run before it is hopeless."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy.utils.exceptions import LMAuthError, LMRateLimitError

from tests.scripted import Seen, Shouting, exact, examples, reflects
from tgrpo_dspy import ConfigurationError, LMUnavailableError, Reflection, Sampling, TrainingFreeGRPO
from tgrpo_dspy.records import CompileReport
from tgrpo_dspy.testing import Call


class Failing(Shouting):
    """Fails in every ``every``-th run of the program."""

    def __init__(self, failure: Any, *, every: int = 3) -> None:
        super().__init__()
        self.failure, self.every, self.count = failure, every, 0

    def __call__(self, call: Call) -> Any:
        if reflects(call):
            return super().__call__(call)
        self.count += 1
        if self.count % self.every == 0:
            if isinstance(self.failure, Exception):
                raise self.failure
            return self.failure
        return {"answer": call.fields["question"].upper()}


def learn(
    model: Shouting, student: dspy.Module | None = None, *, listeners: Sequence[Any] = (), **settings: Any
) -> CompileReport:
    settings = {"sampling": Sampling(lm_retries=0), **settings}
    optimizer = TrainingFreeGRPO(metric=exact, epochs=1, num_threads=1, **settings)
    with dspy.context(lm=model.lm(), adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)):
        program = student or dspy.Predict("question -> answer")
        optimizer.compile(program, trainset=examples(2), listeners=listeners, verbose=False)
    assert optimizer.report is not None
    return optimizer.report


def test_an_answer_in_the_wrong_form_gets_the_failure_reward_and_teaches_with_its_raw_text() -> None:
    model = Failing("I will not follow your form.")
    report = learn(model, sampling=Sampling(failure_score=-1.0))
    failed = [r for group in report.steps[0].groups for r in group.rollouts if r.failure]
    assert {(r.failure.kind, r.reward) for r in failed if r.failure} == {("parse", -1.0)}
    assert "I will not follow your form." in model.reflections[0].fields["attempts"]


def test_a_program_that_crashes_gets_the_failure_reward_and_teaches() -> None:
    class Fragile(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.answer = dspy.Predict("question -> answer")

        def forward(self, question: str) -> dspy.Prediction:
            answer = self.answer(question=question)
            if answer.answer == "crash":
                raise ZeroDivisionError("the tool divided by zero")
            return answer

    model, seen = Failing({"answer": "crash"}), Seen()
    learn(model, Fragile(), listeners=[seen])
    failed = [rollout for rollout in seen if rollout.failure]
    assert {(r.failure.kind, r.failure.error, r.reward) for r in failed if r.failure} == {
        ("program", "ZeroDivisionError", 0.0)
    }
    assert all(r.turns[0].outputs == {"answer": "crash"} for r in failed)
    assert "the tool divided by zero" in model.reflections[0].fields["attempts"]


def test_an_lm_failure_is_never_scored() -> None:
    report = learn(Failing(LMRateLimitError("slow down")))
    rollouts = [r for group in report.steps[0].groups for r in group.rollouts]
    failed = [r for r in rollouts if r.failure]
    assert {(r.failure.kind, r.reward) for r in failed if r.failure} == {("lm", None)}
    assert len(failed) == 3 == report.usage["rollout"].failed
    assert report.steps[0].mean_reward == 1.0
    assert report.steps[0].informative == 0


def test_a_model_that_refuses_for_good_stops_the_run_at_once() -> None:
    model = Failing(LMAuthError("no key"), every=1)
    with pytest.raises(LMUnavailableError, match="no key"):
        learn(model)
    assert len(model.engine.calls) == 1


def test_too_many_lm_failures_in_a_row_stop_the_run() -> None:
    model = Failing(LMRateLimitError("slow down"), every=1)
    with pytest.raises(LMUnavailableError, match=r"failed 4 times in a row"):
        learn(model, sampling=Sampling(max_lm_failures=4, lm_retries=0))
    assert len(model.engine.calls) == 4


def test_a_metric_that_fails_now_and_then_leaves_those_rollouts_out() -> None:
    count = iter(range(1000))

    def moody(gold: Any, pred: Any) -> bool:
        if next(count) % 4 == 1:
            raise KeyError("mood")
        return exact(gold, pred)

    optimizer = TrainingFreeGRPO(metric=moody, epochs=1, num_threads=1)
    with dspy.context(lm=Shouting().lm()):
        optimizer.compile(dspy.Predict("question -> answer"), trainset=examples(2), verbose=False)
    assert optimizer.report is not None
    rollouts = [r for group in optimizer.report.steps[0].groups for r in group.rollouts]
    assert [r.failure.kind for r in rollouts if r.failure] == ["metric"] * 3
    assert all(r.reward is None for r in rollouts if r.failure)


def test_feedback_with_half_a_character_is_feedback_like_any_other(tmp_path: Path) -> None:
    def metric(gold: dspy.Example, pred: Any, trace: Any = None) -> dspy.Prediction:
        return dspy.Prediction(score=exact(gold, pred), feedback="cut \ud83d off")

    model = Shouting()
    with dspy.context(lm=model.lm()):
        TrainingFreeGRPO(metric=metric, epochs=1, num_threads=1).compile(
            dspy.Predict("question -> answer"), trainset=examples(2), run_dir=tmp_path / "run", verbose=False
        )
    assert "cut ? off" in model.reflections[0].fields["attempts"]
    with pytest.raises(ConfigurationError, match="learning_objective") as refused:
        Reflection(learning_objective="\ud83d" + "y" * 10_000)
    assert len(str(refused.value)) < 400
