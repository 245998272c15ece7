"""What a person sees of a run: the progress lines and the report."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import dspy
import pytest
from rich.console import Console

from tests.scripted import RULE, Shouting, add, exact, examples, reflects
from tgrpo_dspy import Budget, Reflection, TrainingFreeGRPO
from tgrpo_dspy.records import CompileReport, Rollout
from tgrpo_dspy.runs.events import (
    BudgetSpent,
    EditDecided,
    Event,
    GroupFinished,
    RolloutFinished,
    RunFinished,
    RunStarted,
    StepDecided,
    StepFinished,
    Warned,
)
from tgrpo_dspy.testing import Call
from tgrpo_dspy.views.progress import ProgressBar
from tgrpo_dspy.views.report import report_to_json, report_to_markdown
from tgrpo_dspy.views.run_files import RunFiles


def run(*listeners: object) -> CompileReport:
    optimizer = TrainingFreeGRPO(metric=exact, epochs=2, group_size=3, num_threads=1)
    with dspy.context(lm=Shouting().lm()):
        optimizer.compile(
            dspy.Predict("question -> answer"),
            trainset=examples(3),
            valset=examples(2, "val"),
            listeners=listeners,
            verbose=False,
        )
    assert optimizer.report is not None
    return optimizer.report


def test_every_thing_that_happens_is_told_to_listeners() -> None:
    seen: list[Event] = []
    report = run(seen.append)
    kinds = [type(event) for event in seen]
    assert kinds[0] is RunStarted and kinds[-1] is RunFinished
    started, finished = seen[0], seen[-1]
    assert isinstance(started, RunStarted) and isinstance(finished, RunFinished)
    assert finished.report is report
    # The validation set is not run again for the second step, which leaves the library as it is.
    assert kinds.count(RolloutFinished) == 2 * 3 * 3 + 2 * 2 <= started.program_runs
    assert kinds.count(GroupFinished) == 6
    assert kinds.count(StepFinished) == started.steps == 2


class Forgetful(Shouting):
    """Never finds words for the attempts at the first question."""

    def __call__(self, call: Call) -> Any:
        if reflects(call) and "question number 0" in call.fields["attempts"]:
            return "mumble"
        return super().__call__(call)


class Two(dspy.Module):
    """A part that learns, beside one that was compiled before and one that never runs."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.idle = dspy.ChainOfThought("question -> answer"), dspy.Predict("question -> idea")
        self.before._compiled = True
        self.answer = dspy.Predict("question -> answer")

    def forward(self, question: str) -> Any:
        return self.answer(question=question)


def test_edits_decisions_budget_and_warnings_are_told_in_order(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Event] = []
    long = " ".join(["long"] * 200)
    optimizer = TrainingFreeGRPO(
        metric=exact, epochs=1, group_size=4, num_threads=1, reflection=Reflection(groups_per_call=1)
    )
    with dspy.context(lm=Forgetful(add(), add(long)).lm()):
        optimizer.compile(
            Two(),
            trainset=examples(3),
            run_dir=tmp_path,
            budget=Budget(max_lm_calls=1000, max_rollouts=48, max_cost=1.0),
            listeners=[seen.append],
            verbose=False,
        )
    assert optimizer.report is not None
    (step,) = optimizer.report.steps
    told = [event for event in seen if isinstance(event, EditDecided | StepDecided | StepFinished | BudgetSpent)]
    assert told == [
        *(EditDecided(step=1, edit=edit, refused=None) for edit in step.applied),
        *(EditDecided(step=1, edit=refusal.edit, refused=refusal.reason) for refusal in step.refused),
        StepDecided(step=1, accepted=True, verdict=step.verdict),
        StepFinished(record=step),
        BudgetSpent(bound="max_rollouts", spent=12, most=48),
    ]
    assert [edit.text for edit in step.applied] == [RULE] and [refusal.edit.text for refusal in step.refused] == [long]
    warnings = [event.message for event in seen if isinstance(event, Warned)]
    frozen, lost, price, idle = warnings
    assert "before" in frozen and "_compiled" in frozen
    assert lost.startswith("a reflection was lost: ")
    assert "max_cost=1 " in price
    assert "idle" in idle and "never ran" in idle
    assert [record.message for record in caplog.records if record.name.startswith("tgrpo_dspy")] == warnings
    lines = map(json.loads, (tmp_path / "events.jsonl").read_text(encoding="utf-8").splitlines())
    kept = [line["edit"]["text"] for line in lines if line["event"] == "EditDecided" and line["refused"] is None]
    assert kept == [RULE]


def test_a_listener_that_raises_does_not_harm_the_run() -> None:
    def broken(event: Event) -> None:
        raise RuntimeError("no display")

    seen: list[Event] = []
    report = run(broken, seen.append)
    assert len(report.library) == 1 and isinstance(seen[-1], RunFinished)


def test_progress_prints_one_line_a_step_where_there_is_no_terminal() -> None:
    out = io.StringIO()
    run(ProgressBar(Console(file=out, width=40)))
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("student: validation score 0.")
    assert lines[1].startswith("step 1/2: reward 0.") and ", 3/3 groups differ, 1 edit, validation 1.000, " in lines[1]
    assert lines[2].startswith("step 2/2: reward 1.000, 0/3 groups differ, 0 edits, validation 1.000, ")
    assert len(lines) == 3, "lines are not broken where there is no terminal"
    assert max(map(len, lines)) <= 80


def test_progress_shows_a_bar_in_a_terminal() -> None:
    out = io.StringIO()
    run(ProgressBar(Console(file=out, width=80, force_terminal=True)))
    assert "22/" in out.getvalue() and "left" in out.getvalue()


def test_the_report_tells_all_as_json_and_the_essentials_as_markdown() -> None:
    report = run()
    data = json.loads(report_to_json(report))
    assert data["steps"][0]["groups"][0]["rollouts"][0]["outputs"]["answer"]
    assert data["library"]["experiences"][0]["text"] == RULE
    assert data["usage"]["rollout"]["calls"] == report.usage["rollout"].calls
    text = report_to_markdown(report)
    assert f"[e1] {RULE}" in text
    assert "Returned: step 1." in text
    assert "3 of 3 groups informative" in text
    assert f"| rollout | {report.usage['rollout'].calls} |" in text


def test_an_answer_with_broken_unicode_is_an_event_like_any_other(tmp_path: Path) -> None:
    files = RunFiles(tmp_path)
    rollout = Rollout(number=0, outputs={"answer": "half \ud83d of it"})
    files(RolloutFinished(rollout=rollout, evaluation=False, example="k"))
    files.close()
    (line,) = (tmp_path / "events.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(line)["rollout"]["outputs"] == {"answer": "half \ud83d of it"}
