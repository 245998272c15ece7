"""The simulated model answers by the prompt alone, follows rules that it is told, and finds those that it is shown."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

import dspy
import pytest
from dspy.utils.callback import BaseCallback

from benchmarks.cells import Cell, Models, measure
from benchmarks.optimizers import OPTIMIZERS
from benchmarks.scoring import score
from benchmarks.simulated import simulated_lm
from benchmarks.tasks.hidden_rules import WORLDS, World
from programs.task import Sizes

SIZES = Sizes(train=12, val=4, test=40, ood=4)


def told(world: World, *rules: str, demos: int = 0) -> dspy.Module:
    """The student with these rules and demonstrations."""
    student = world.task().student()
    (predictor,) = student.predictors()
    predictor.signature = predictor.signature.with_instructions(
        "\n".join([predictor.signature.instructions, *(f"- {rule}" for rule in rules)])
    )
    predictor.demos = world.task().splits(0, SIZES).train[:demos]
    return student


def scored(world: World, *rules: str, demos: int = 0, lm: dspy.LM | None = None) -> list[float]:
    task = world.task()
    with dspy.context(lm=lm or simulated_lm("simulated/0")):
        return score(told(world, *rules, demos=demos), task.splits(0, SIZES).test, task.metric, 1).scores


def test_it_follows_rules_that_it_is_told_more_often_than_those_it_is_shown_or_guesses() -> None:
    means = [
        (fmean(scored(world)), fmean(scored(world, demos=12)), fmean(scored(world, *(r.text for r in world.rules))))
        for world in WORLDS.values()
    ]
    assert all(max(alone, shown) + 0.1 < stated < 1.0 for alone, shown, stated in means)
    assert fmean(alone for alone, *_ in means) + 0.1 < fmean(shown for _, shown, _ in means)


def test_close_words_are_enough_and_other_words_are_not() -> None:
    world = WORLDS["sim_formats"]

    def right_weights(rule: str) -> float:
        with dspy.context(lm=simulated_lm("simulated/0")):
            student = told(world, rule)
            return fmean(student(entry=e.entry).weight == e.weight for e in world.task().splits(0, SIZES).test)

    assert right_weights("For the weight field, convert to gram first") > 0.75
    assert right_weights("Grams are a unit. The weight is a field.") < 0.4


def test_a_plausible_rule_can_hurt() -> None:
    world = WORLDS["sim_traps"]
    rules = [rule.text for rule in world.rules]
    assert fmean(scored(world, *rules, *(trap.text for trap in world.traps))) < fmean(scored(world, *rules)) - 0.2


def test_the_same_prompt_gets_the_same_answer_and_another_seed_another() -> None:
    world = WORLDS["sim_classes"]
    first, again = (scored(world, lm=simulated_lm("simulated/0").copy(cache=False)) for _ in range(2))
    assert first == again != scored(world, lm=simulated_lm("simulated/1"))


def test_rollouts_differ_only_when_they_are_sampled() -> None:
    lm = simulated_lm("simulated/0")
    task = WORLDS["sim_noisy"].task()
    question = task.splits(0, SIZES).test[0].inputs()

    def answers(temperature: float) -> set[str]:
        with dspy.context(lm=lm.copy(cache=False)):
            config = [{"temperature": temperature, "rollout_id": number} for number in range(12)]
            return {task.student()(**question, config=each).action for each in config}

    with pytest.warns(UserWarning, match="rollout_id has no effect"):
        assert len(answers(0.0)) == 1
    assert len(answers(1.0)) > 1


def insights(text: str) -> list[str]:
    with dspy.context(lm=simulated_lm("simulated/0")):
        ask = dspy.Predict("material -> insight")
        return [ask(material=text, config={"temperature": 1.0, "rollout_id": number}).insight for number in range(20)]


@pytest.mark.parametrize("world", WORLDS.values(), ids=list(WORLDS))
def test_it_finds_a_rule_only_where_values_show_it(world: World) -> None:
    train = world.task().splits(0, SIZES).train[:4]
    rules = [rule.text for rule in world.rules]
    labelled = insights("\n".join(str(dict(example)) for example in train))
    unlabelled = insights("\n".join(str(dict(example.inputs())) for example in train))
    assert 5 <= sum(any(rule in text for rule in rules) for text in labelled) < 20, "by far not always"
    assert not any(rule in text for rule in rules for text in unlabelled)
    assert all(text.strip() for text in [*labelled, *unlabelled])


class Recorder(BaseCallback):
    def __init__(self) -> None:
        self.asked: dict[str, dict[str, Any]] = {}
        self.answers: list[tuple[dict[str, Any], Any]] = []

    def on_lm_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        config = {name: value for name, value in instance.kwargs.items() if name in ("temperature", "rollout_id")}
        given = {**inputs, **inputs.get("kwargs", {})}
        self.asked[call_id] = {**config, **{k: v for k, v in given.items() if k != "kwargs" and v is not None}}

    def on_lm_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:
        self.answers.append((self.asked[call_id], outputs))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # DSPy's own form of a call is replayed
@pytest.mark.parametrize("name", ["tgrpo", "GEPA", "InferRules"])
def test_it_cannot_tell_optimizers_apart(name: str, tmp_path: Path) -> None:
    lm, recorder = simulated_lm("simulated/0"), Recorder()
    sizes = Sizes(train=4, val=2, test=1, ood=1, batch_size=4, epochs=1, group_size=2)
    models = Models(lm="simulated/0", reflection_lm=None, open=lambda: (lm, None))
    task = WORLDS["sim_formats"].task()
    cell = Cell(task=task, variant=name, seed=0, sizes=sizes, models=models, budget=30)
    with dspy.context(callbacks=[recorder]):
        measure(cell, OPTIMIZERS[name], out=tmp_path, runs=tmp_path, threads=1)
    alone = simulated_lm("simulated/0").copy(cache=False)
    assert len(recorder.answers) > 10
    for asked, answer in recorder.answers:
        assert alone(**asked) == answer, "the prompt alone decides"


def test_a_name_without_seed_is_refused() -> None:
    with pytest.raises(ValueError, match="such as simulated/0"):
        simulated_lm("simulated/best")
