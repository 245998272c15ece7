"""What is made of measured cells: chances, drawings, and the cost of another structure on the same groups."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import dspy
import pytest

from benchmarks import compare, reference_cost
from benchmarks.statistics import permutation_chance
from programs.task import exact_match
from tests.benchmarks.test_learning import Model, cell, run
from tests.scripted import examples
from tgrpo_dspy import TrainingFreeGRPO
from tgrpo_dspy.views.html import recorded_run

ROLLOUTS = 3


def test_chance() -> None:
    assert permutation_chance([1.0] * 6, [0.0] * 6) == pytest.approx(2 / 2**6), "all of 64 signs, both ends"
    assert permutation_chance([0.5, 1.0], [0.5, 1.0]) == 1.0
    assert permutation_chance([1.0, 0.0] * 20, [0.0, 1.0] * 20) > 0.9
    assert permutation_chance([1.0, 1.0, 0.0, 1.0] * 10, [0.0, 1.0, 0.0, 1.0] * 10) < 0.01


def test_drawings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    for variant in ("student", "full"):
        run(cell(variant, Model()), folder=tmp_path)
    drawn = []
    for folder in ("one", "two"):
        assert compare.main(["--plots", str(tmp_path / folder), "--out", str(tmp_path / "results")]) == 0
        drawn.append([Path(line) for line in capsys.readouterr().out.splitlines() if line.endswith(".svg")])
    first, second = drawn
    assert [file.name for file in first] == ["toy-calls.svg", "toy-prompt.svg"]
    assert [file.read_bytes() for file in first] == [file.read_bytes() for file in second]
    texts = [node.text for node in ElementTree.parse(first[0]).iter("{http://www.w3.org/2000/svg}text")]
    assert {"student", "full", "LM calls to learn", "toy"} <= set(texts)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    model = Model()
    optimizer = TrainingFreeGRPO(exact_match("answer"), group_size=ROLLOUTS, batch_size=4, epochs=1, num_threads=1)
    with dspy.context(lm=model.lm()):
        optimizer.compile(
            dspy.Predict("question -> answer"), trainset=examples(4, "train"), run_dir=tmp_path / "run", verbose=False
        )
    return tmp_path / "run"


def test_the_other_structure_is_counted_on_the_same_groups(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report, recorded, _ = recorded_run(run_dir)
    [step] = reference_cost.costs(report, recorded)
    informative = [group for group in report.steps[0].groups if group.spread > 0]
    assert 0 < step.informative == len(informative) <= step.groups == 4
    assert step.ours.calls == report.usage["reflection"].calls
    # A summary of every rollout, an advantage and an update a group, and an update for the batch.
    assert step.reference.calls == len(informative) * (ROLLOUTS + 2) + 1
    attempts = [recorded.attempts[1, group.key, r.number] for group in informative for r in group.rollouts]
    least = sum(len(rollout.outputs["answer"]) for rollout in attempts) // 4
    assert step.reference.prompt_tokens > least + step.reference.calls
    assert reference_cost.main([str(run_dir)]) == 0
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert [row[0] for row in rows] == ["| step", "| ---", "| 1", "| all"]
    assert rows[2][4].startswith(str(step.reference.calls))


def test_a_folder_that_is_no_finished_run_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reference_cost.main([str(tmp_path)]) == 1
    assert str(tmp_path / "report.json") in capsys.readouterr().err
