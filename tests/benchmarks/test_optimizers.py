"""Every optimizer ends within its budget, and the budget is counted and enforced the same way for all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import dspy
import pytest

from benchmarks import compare
from benchmarks.cells import Cell, Models, is_measured, measure
from benchmarks.optimizers import OPTIMIZERS, Means, Optimizer, mipro_v2
from benchmarks.rows import read
from benchmarks.simulated import simulated_lm
from benchmarks.tables import summary, table
from benchmarks.tasks.hidden_rules import WORLDS
from benchmarks.variants import Bench, MissingFeatureError, UnfinishedError, Variant
from programs.task import Sizes
from tests.benchmarks.test_learning import TOY, Model

TASK = WORLDS["sim_formats"].task()
SIZES = Sizes(train=4, val=3, test=2, ood=1, batch_size=4, epochs=1, group_size=3)
BUDGET = 60


def cell(variant: str, lm: dspy.LM, budget: int | None = BUDGET, **changed: Any) -> Cell:
    models = Models(lm=lm.model, reflection_lm=None, open=lambda: (lm, None))
    made = Cell(task=TASK, variant=variant, seed=0, sizes=SIZES, models=models, budget=budget)
    return replace(made, **changed)


def run(variant: Variant, found: Cell, folder: Path) -> dict[str, Any]:
    return measure(found, variant, out=folder / "results", runs=folder / "runs", threads=2)


def asking(questions: int, *, gives_up: bool = False) -> Optimizer:
    """An optimizer that asks so many questions, each twice, and goes on without an answer, or gives up."""

    def learn(bench: Bench, student: dspy.Module, settings: Any) -> dspy.Module:
        for number in range(questions):
            for _ in range(2):
                try:
                    dspy.Predict("question -> answer")(question=f"number {number}?")
                except dspy.LMError:
                    if gives_up:
                        raise
        return student

    return Optimizer("asks", lambda means: {}, learn)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_ends_within_its_budget_and_says_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    before = WORLDS["sim_formats"].signature.instructions
    try:
        found = run(OPTIMIZERS[name], cell(name, simulated_lm("simulated/0")), tmp_path)
    except MissingFeatureError as error:
        assert "optuna" in str(error), "everything else is there"
        return
    tried = found["this_try"]
    assert found.get("failed") is None and found["lm"] == "simulated/0" and found["budget"] == BUDGET
    assert tried["spent"] <= BUDGET and tried["refused"] == 0
    assert [len(scores) for scores in found["scores"].values()] == [3, 2, 1]
    calls = sum(used["calls"] for used in found["usage"].values())
    assert calls > 0 if name not in ("student", "LabeledFewShot", "KNNFewShot") else calls == tried["spent"] == 0
    assert WORLDS["sim_formats"].signature.instructions == before, "the students of other cells are as they were"
    assert not list(here.iterdir()) and capfd.readouterr() == ("", "")


@pytest.mark.parametrize("warm", [False, True])
def test_a_budget_is_counted_and_enforced_alike_whatever_the_cache_holds(warm: bool, tmp_path: Path) -> None:
    model = Model()
    lm = model.lm()
    if warm:
        run(asking(10), cell("before", lm, budget=100, task=TOY), tmp_path)
    before = len(model.engine.calls)
    found = run(asking(10), cell("asking", lm, budget=4, task=TOY), tmp_path)
    assert (found["this_try"]["spent"], found["this_try"]["refused"]) == (4, 12)
    assert found["usage"]["rollout"]["calls"] == 4
    scoring = sum(used["calls"] for used in found["scoring_usage"].values())
    assert scoring == 6, "what is scored is not counted"
    assert len(model.engine.calls) - before == (0 if warm else 10)


def test_several_answers_to_one_question_are_several_calls(tmp_path: Path) -> None:
    def learn(bench: Bench, student: dspy.Module, settings: Any) -> dspy.Module:
        dspy.Predict("question -> answer", n=3, temperature=1.0)(question="what?")
        return student

    found = run(Optimizer("asks", lambda means: {}, learn), cell("asking", Model().lm(), task=TOY), tmp_path)
    assert found["this_try"]["spent"] == 3


def test_an_optimizer_that_fails_is_a_row_and_no_abort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(bench: Bench, student: dspy.Module, settings: Any) -> dspy.Module:
        raise ValueError("no idea how")

    named = {
        "student": OPTIMIZERS["student"],
        "broken": Optimizer("fails", lambda means: {}, broken),
        "spendthrift": asking(10, gives_up=True),
    }
    monkeypatch.setattr(compare, "NAMES", named)
    lm = Model().lm()
    cells = [cell(name, lm, budget=4, task=TOY) for name in ("broken", "spendthrift", "student")]
    out = tmp_path / "results"
    assert compare.measure_missing(cells, out=out, runs=tmp_path / "runs", threads=1) == 0
    assert is_measured(cells[0], out), "it would fail again"
    shown = table(read(out), list(named), [0])
    assert "| broken | failed: 0 | - |" in shown and "- broken 0 failed: ValueError: no idea how" in shown
    assert "the budget of 4 LM calls is spent" in shown and "Missing: nothing." in shown
    assert "4 LM calls to learn from." in shown.splitlines()[2]
    rows = [line.split(" | ") for line in summary({"toy": read(out)}, list(named), [0]).splitlines()[6:]]
    assert [(row[0], row[3]) for row in rows] == [("| student", "0"), ("| broken", "1"), ("| spendthrift", "1")]


def test_a_failing_model_is_no_failing_optimizer(tmp_path: Path) -> None:
    with pytest.raises(UnfinishedError):
        run(asking(10), cell("asking", Model(dies_at=3).lm(), task=TOY), tmp_path)
    assert not (tmp_path / "results").exists()


def test_a_resumed_cell_pays_for_nothing_twice(tmp_path: Path, new_cache: Callable[[], None]) -> None:
    def answered(model: Model, folder: str) -> int:
        new_cache()
        found = cell("tgrpo_paper", model.lm(), budget=30, task=TOY)
        compare.measure_missing([found], out=tmp_path / folder, runs=tmp_path / f"{folder} runs", threads=1)
        return model.answered

    whole = answered(Model(), "whole")
    assert answered(Model(dies_at=8), "again") == 8 and not list((tmp_path / "again").glob("*"))
    assert 8 + answered(Model(), "again") == whole
    assert read(tmp_path / "again")[0]["this_try"]["resumed"]


@pytest.fixture
def new_cache() -> Callable[[], None]:
    return lambda: dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=True)


def test_a_budget_that_cannot_do_says_so(tmp_path: Path) -> None:
    with pytest.raises(MissingFeatureError, match=r"needs a budget of about \d+ LM calls for 20 training and 12"):
        mipro_v2(Means(budget=20, train=20, val=12))
    with pytest.raises(MissingFeatureError, match="--budget"):
        run(OPTIMIZERS["GEPA"], cell("GEPA", Model().lm(), budget=None, task=TOY), tmp_path)
    with pytest.raises(ValueError, match="cache=True"):
        run(OPTIMIZERS["student"], cell("student", Model().lm(cache=False), task=TOY), tmp_path)


def test_the_command_measures_and_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = [f"--{name}={count}" for name, count in (("train", 4), ("val", 3), ("test", 2), ("ood", 1))]
    where = ["--out", str(tmp_path / "out"), "--runs-dir", str(tmp_path / "runs"), "--budget", "40"]
    asked = ["--task", "sim_noisy", "--optimizers", "student", "InferRules", "--seeds", "0", "--lm", "simulated/0"]
    assert compare.main([*asked, *sizes, *where]) == 0
    assert compare.main([*asked, *sizes, *where]) == 0
    assert "2 of 2 cells are there already" in capsys.readouterr().out
    assert compare.main(["--summary", "--seeds", "0", *where]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("### Held-out scores on simulated/0, 40 LM calls to learn from")
    assert [line.split(" | ")[0] for line in shown.splitlines()[6:8]] == ["| student", "| tgrpo_paper"]
    assert "| InferRules |" in shown
    with pytest.raises(SystemExit):
        compare.main(["--budget", "none"])
