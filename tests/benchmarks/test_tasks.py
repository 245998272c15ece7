"""Real data: what is drawn is disjoint, the test sets are fixed, and a label is right by its own metric."""

from __future__ import annotations

import os
from pathlib import Path

import dspy
import pytest

from benchmarks.tasks import tasks
from benchmarks.tasks.factbook_values import KINDS, Kind
from programs.task import MissingDataError, Splits, Task, halves, in_turns, take

DATA = Path(os.environ.get("TGRPO_DATA_DIR", Path(__file__).parents[3] / "shared" / "data"))
TASKS = tasks(DATA)

# Written down from the raw Factbook text.
BY_EYE = {
    "population": ("10,194,277 (2025 est.)", "10194277"),
    "area": ("1,098,581 sq km", "1098581km2"),
    "coastline": ("7,491 km", "km 7491"),
    "highest point": ("Vorder-Grauspitz 2,599 m", "2599"),
    "coordinates": ("34 00 S, 64 00 W", "S34 W64"),
    "capital": ("San José", "SAN JOSÉ"),
    "time zone": ("UTC-5 (same time as Washington, DC, during Standard Time)", "-05:00"),
    "independence": ("21 September 1981 (from the UK)", "1981-09-21"),
    "national holiday": ("Independence Day (Separation Day), 3 November (1903)", "03.11."),
    "currency": ("Rwandan francs (RWF) per US dollar -", "RWF"),
    "internet code": (".bz", "BZ"),
    "median age": ("46 years (2025 est.)", "46"),
    "urban population": ("100% of total population (2023)", "1.000"),
    "population growth": ("-0.16% (2025 est.)", "-0.16"),
    "GDP per head": ("$105,300 (2024 est.)", "105300 USD"),
}
UNREADABLE = {
    "coastline": "0 km (landlocked)",
    "currency": "Belarusian rubles (BYB/BYR) per US dollar -",
    "independence": "none (territory of the US with commonwealth status)",
    "internet code": "metropolitan France - .fr; French Guiana - .gf",
}


def drawn(task: Task, seed: int = 0) -> Splits:
    try:
        return task.splits(seed, task.sizes)
    except MissingDataError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_value_checked_by_eye(kind: Kind) -> None:
    text, value = BY_EYE[kind.name]
    assert kind.value(text) == value


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_the_convention_does_not_cover_is_left_out(name: str) -> None:
    assert next(kind for kind in KINDS if kind.name == name).value(UNREADABLE[name]) is None


@pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.name)
def test_splits(task: Task) -> None:
    splits = drawn(task)
    sizes = [task.sizes.train, task.sizes.val, task.sizes.test, task.sizes.ood]
    assert [len(part) for part in vars(splits).values()] == sizes
    inputs = [str(example.inputs()) for part in vars(splits).values() for example in part]
    assert len(set(inputs)) == len(inputs)
    other = drawn(task, seed=1)
    assert (other.test, other.ood) == (splits.test, splits.ood) and other.train != splits.train
    assert drawn(task) == splits


@pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.name)
def test_a_label_is_right_and_the_student_takes_the_inputs(task: Task) -> None:
    for example in drawn(task).train:
        right = task.metric(example, dspy.Prediction(**example.labels()))
        wrong = task.metric(example, dspy.Prediction(**dict.fromkeys(example.labels(), "nothing like it")))
        assert (right.score, wrong.score) == (1.0, 0.0) and "nothing like it" in wrong.feedback
    assert set(example.inputs()) <= set(task.student().predictors()[0].signature.input_fields)


def test_every_kind_of_value_is_learned_from_twice() -> None:
    splits = drawn(TASKS["factbook_values"])
    kinds = [kind.name for kind in KINDS]
    assert sorted(example.field for example in splits.train) == sorted(2 * kinds)
    assert sorted(example.field for example in splits.test) == sorted(3 * kinds)


def test_drawing() -> None:
    numbers = [dspy.Example(n=n).with_inputs("n") for n in range(9)]
    one, other = halves(numbers, 3)
    assert len(one) == 4 and {e.n for e in one + other} == set(range(9)) and halves(numbers, 3) == (one, other)
    assert [e.n % 3 for e in in_turns(numbers, lambda e: str(e.n % 3))] == [0, 1, 2] * 3
    with pytest.raises(ValueError, match="asked for 10 examples of the 9"):
        take(numbers, 10, seed=0)
