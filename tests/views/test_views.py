"""What a person sees of a run: the progress lines and the report."""

from __future__ import annotations

import io
import json
from pathlib import Path

import dspy
from rich.console import Console

from tests.scripted import RULE, Shouting, exact, examples
from tgrpo_dspy import TrainingFreeGRPO
from tgrpo_dspy.records import CompileReport, Rollout
from tgrpo_dspy.runs.events import Event, GroupFinished, RolloutFinished, RunFinished, RunStarted, StepFinished
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
