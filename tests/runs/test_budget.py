"""A budget bounds a run: it ends with what it has, says why, and a larger budget goes on from there."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import dspy
import pytest

from tests.scripted import RULE, Shouting, exact, examples
from tgrpo_dspy import Budget, ConfigurationError, Sampling, TrainingFreeGRPO
from tgrpo_dspy.records import CompileReport
from tgrpo_dspy.runs.events import RunStopped
from tgrpo_dspy.testing import Call

STEPS, GROUPS, SIZE, VAL = 4, 3, 4, 2
EVERY = Sampling(solved_score=None)
STEP = GROUPS * SIZE
WHOLE = STEPS * STEP + (STEPS + 1) * VAL


def learned(
    model: Shouting, budget: Budget | None, run_dir: Path | None = None, *, threads: int = 2, valset: bool = True
) -> tuple[dspy.Module, CompileReport]:
    optimizer = TrainingFreeGRPO(metric=exact, epochs=STEPS, group_size=SIZE, num_threads=threads, sampling=EVERY)
    with dspy.context(lm=model.lm()):
        program = optimizer.compile(
            dspy.Predict("question -> answer"),
            trainset=examples(GROUPS),
            valset=examples(VAL, "val") if valset else None,
            run_dir=run_dir,
            budget=budget,
            verbose=False,
        )
    assert optimizer.report is not None
    return program, optimizer.report


@pytest.mark.parametrize("threads", [1, 8])
@pytest.mark.parametrize("limit", [3, 9, 15, 22, 40])
def test_no_more_runs_of_the_program_than_allowed(limit: int, threads: int) -> None:
    model = Shouting()
    _, report = learned(model, Budget(max_rollouts=limit), threads=threads)
    assert len(model.runs) <= limit
    assert report.stopped_by == f"budget: max_rollouts={limit}"


def test_the_step_is_finished_from_what_is_there_and_its_library_is_scored() -> None:
    limit = VAL + STEP // 2 + VAL
    model = Shouting()
    program, report = learned(model, Budget(max_rollouts=limit))
    assert [sum(len(g.rollouts) for g in step.groups) for step in report.steps] == [STEP // 2]
    assert report.steps[0].evaluation is not None and report.best_step == 1
    assert len(model.runs) == limit
    assert RULE in program.signature.instructions


class Slow(Shouting):
    """Takes its time, so that as many calls are under way as there are threads."""

    def __call__(self, call: Call) -> Any:
        time.sleep(0.05)
        return super().__call__(call)


@pytest.mark.parametrize("threads", [1, 4, 16])
@pytest.mark.parametrize("most", [10, 20])
def test_lm_calls_are_bounded_however_many_runs_are_under_way(most: int, threads: int) -> None:
    model = Slow()
    program, report = learned(model, Budget(max_lm_calls=most), threads=threads)
    assert most - VAL - 1 <= len(model.engine.calls) <= most
    assert report.stopped_by == f"budget: max_lm_calls={most}"
    assert RULE in program.signature.instructions


@pytest.mark.parametrize("threads", [2, 16])
def test_tokens_are_bounded_too(threads: int) -> None:
    _, whole = learned(Shouting(), None)
    most = sum(u.prompt_tokens + u.completion_tokens for u in whole.usage.values()) // 2
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=True)
    _, report = learned(Slow(), Budget(max_tokens=most), threads=threads)
    spent = sum(u.prompt_tokens + u.completion_tokens for u in report.usage.values())
    assert report.stopped_by == f"budget: max_tokens={most}" and most * 0.5 < spent < most * 1.1


def test_seconds_are_bounded_too() -> None:
    _, report = learned(Slow(), Budget(max_seconds=0.4), threads=1)
    assert report.stopped_by == "budget: max_seconds=0.4"


def test_without_a_valset_the_library_learned_so_far_is_returned() -> None:
    program, report = learned(Shouting(), Budget(max_rollouts=STEP + 1), valset=False)
    assert report.best_step == len(report.steps) == 2
    assert RULE in program.signature.instructions


def test_a_budget_that_covers_nothing_returns_the_student() -> None:
    model = Shouting()
    program, report = learned(model, Budget(max_rollouts=1))
    assert (report.best_step, report.steps, report.student) == (0, (), None)
    assert RULE not in program.signature.instructions and len(model.runs) == 1


def test_enough_budget_changes_nothing() -> None:
    _, unbounded = learned(Shouting(), None, threads=1)
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=True)
    model = Shouting()
    _, bounded = learned(model, Budget(max_rollouts=WHOLE, max_lm_calls=10**6, max_seconds=10**6), threads=1)
    assert bounded.stopped_by is None
    assert bounded.library == unbounded.library


def test_the_same_budget_again_makes_no_call_and_a_larger_one_goes_on(tmp_path: Path) -> None:
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)
    model = Shouting()
    _, first = learned(model, Budget(max_rollouts=20), tmp_path)
    calls = len(model.engine.calls)
    _, again = learned(model, Budget(max_rollouts=20), tmp_path)
    assert len(model.engine.calls) == calls
    assert (again.library, again.stopped_by, again.usage) == (first.library, first.stopped_by, first.usage)
    _, whole = learned(model, None, tmp_path)
    assert whole.stopped_by is None and len(whole.steps) == STEPS
    assert len(model.runs) == STEPS * STEP + 2 * VAL, "a library that did not change is not scored again"


def test_a_stop_is_an_event_and_not_a_warning_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    events: list[Any] = []
    optimizer = TrainingFreeGRPO(metric=exact, epochs=1, num_threads=1)
    with dspy.context(lm=Shouting().lm()), caplog.at_level(logging.WARNING, "tgrpo_dspy"):
        optimizer.compile(
            dspy.Predict("question -> answer"),
            trainset=examples(2),
            listeners=[events.append],
            budget=Budget(max_rollouts=3),
            verbose=False,
        )
    assert [e.reason for e in events if isinstance(e, RunStopped)] == ["budget: max_rollouts=3"]


@pytest.mark.parametrize("bound", ["max_rollouts", "max_lm_calls", "max_tokens", "max_cost", "max_seconds"])
def test_a_bound_that_is_not_positive_is_refused(bound: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{bound}=0"):
        Budget(**{bound: 0})
