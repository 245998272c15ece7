"""A library of good lessons with five planted harmful ones: every way of measuring finds them.

The model of ``tests.evaluation.rules`` follows hidden rules, so the true effect of every lesson is known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import dspy
import pytest

from tests.evaluation.rules import GOOD, PLANTED, Direct, Ruled, library_of, questions, right
from tgrpo_dspy import (
    CompileReport,
    ExperienceLibrary,
    Reflection,
    Sampling,
    TrainingFreeGRPO,
    Validation,
    attribute,
    inject,
    prune,
    read_library,
)
from tgrpo_dspy.records import Measured

SEEDS, NEEDED = 100, 90
MIXED = library_of(*GOOD, *PLANTED)
TRIAL = Sampling(trial="randomized", solved_score=None, min_spread=1.0)
SILENT = Reflection(learn_from_failures=False)
"""With a ``min_spread`` no group exceeds: the loop samples and measures, and nothing is reflected on."""


def texts(library: ExperienceLibrary) -> set[str]:
    return {e.text for e in library}


def lowest_five(effects: Mapping[str, Measured], library: ExperienceLibrary) -> set[str]:
    by_effect = sorted(effects, key=lambda i: effects[i].mean)
    return {library[i].text for i in by_effect[:5]}


def learned(model: Ruled, *, library: ExperienceLibrary | None = None, **settings: Any) -> CompileReport:
    optimizer = TrainingFreeGRPO(metric=right, num_threads=1, **settings)
    with dspy.context(lm=model.lm()):
        program = optimizer.compile(
            Direct(), trainset=questions(40), valset=questions(20, 1), initial_library=library, verbose=False
        )
    assert optimizer.report is not None
    assert texts(read_library(program)) == texts(optimizer.report.library)
    return optimizer.report


def test_the_trial_ranks_the_planted_lessons_lowest_and_drops_them() -> None:
    report = learned(Ruled(GOOD | PLANTED), library=MIXED, group_size=5, sampling=TRIAL, reflection=SILENT)
    estimates = {i: effect for step in report.steps for i, effect in step.effects.items()}
    assert lowest_five(estimates, MIXED) == set(PLANTED)
    assert {e.text for step in report.steps for e in step.dropped} == set(PLANTED)
    assert texts(report.library) == set(GOOD)
    assert report.student is not None and report.steps[-1].evaluation is not None
    assert report.steps[-1].evaluation.mean == 1.0 > report.student.mean


def test_attribute_ranks_them_lowest_and_prune_recovers_the_loss() -> None:
    model = Ruled(GOOD | PLANTED, alike=True)
    with dspy.context(lm=model.lm()):
        program = inject(Direct(), MIXED)
        measured = attribute(program, evalset=questions(80), metric=right, num_threads=1)
        pruned = prune(program, measured, evalset=questions(40, 1), metric=right, num_threads=1)
    assert lowest_five(measured.effects, MIXED) == set(PLANTED)
    assert {measured.library[i].text for i, found in measured.judgements.items() if found == "harmful"} == set(PLANTED)
    assert {e.text for e in pruned.dropped} == set(PLANTED)
    assert texts(read_library(pruned.program)) == texts(pruned.library) == set(GOOD)
    assert measured.full is not None and measured.empty is not None
    assert pruned.before is not None and pruned.after is not None
    assert measured.full.mean < measured.empty.mean
    assert pruned.before.mean < 0.4
    assert pruned.after.mean == 1.0


STEPS = [list(GOOD), list(PLANTED)]


def test_the_gate_refuses_a_step_that_plants_them() -> None:
    model = Ruled(GOOD | PLANTED, base=0.6, proposals=STEPS)
    gate, every = Validation(acceptance="gate"), Sampling(solved_score=None)
    report = learned(model, group_size=4, validation=gate, sampling=every)
    good, planted, after = report.steps
    assert texts(good.after) == set(GOOD) and good.accepted
    assert texts(planted.after) == set(GOOD | PLANTED) and not planted.accepted
    assert "rolled back" in planted.verdict
    assert texts(after.before) == texts(report.library) == set(GOOD)


def test_best_goes_on_from_it_and_returns_the_earlier_library() -> None:
    model = Ruled(GOOD | PLANTED, base=0.6, proposals=STEPS)
    report = learned(model, group_size=4, sampling=Sampling(solved_score=None))
    _, planted, after = report.steps
    assert planted.accepted
    assert texts(after.before) == set(GOOD | PLANTED)
    assert (report.best_step, texts(report.library)) == (1, set(GOOD))


WORTH = {"Mind rule one.": 0.15, "Mind rule two.": 0.0, "Trust hunch one.": -0.2}
LIBRARY = library_of(*WORTH)


def covers(effects: Mapping[str, Measured]) -> list[str]:
    """The ids whose estimate is within two standard errors of the truth."""
    truth = {e.id: WORTH[e.text] for e in LIBRARY}
    return [i for i, effect in effects.items() if abs(effect.mean - truth[i]) <= 2 * effect.standard_error]


def enough(covered: Counter[str]) -> bool:
    return all(covered[e.id] >= NEEDED for e in LIBRARY)


@pytest.mark.simulation
def test_the_estimates_of_attribute_are_within_two_standard_errors_of_the_truth() -> None:
    """For every experience in at least 90 of 100 seeds; each seed has questions and luck of its own."""
    covered: Counter[str] = Counter()
    program = inject(Direct(), LIBRARY)
    for seed in range(SEEDS):
        with dspy.context(lm=Ruled(WORTH, base=0.6, seed=seed).lm(temperature=1.0)):
            measured = attribute(program, evalset=questions(16, seed), metric=right, num_threads=1)
        covered.update(covers(measured.effects))
    assert enough(covered), covered


@pytest.mark.simulation
def test_so_are_those_of_the_trial() -> None:
    """In one step of ``compile``."""
    covered: Counter[str] = Counter()
    for seed in range(SEEDS):
        optimizer = TrainingFreeGRPO(
            metric=right, epochs=1, group_size=3, num_threads=1, sampling=TRIAL, reflection=SILENT
        )
        with dspy.context(lm=Ruled(WORTH, base=0.6, seed=seed).lm()):
            optimizer.compile(Direct(), trainset=questions(20, seed), initial_library=LIBRARY, verbose=False)
        assert optimizer.report is not None
        covered.update(covers(optimizer.report.steps[0].effects))
    assert enough(covered), covered
