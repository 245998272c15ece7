"""``Validation(prune=True)``: what the chosen library holds is measured at the end, and what does harm goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dspy
import pytest

from tests.scripted import RULE, Shouting, add, exact, examples
from tgrpo_dspy import Sampling, TrainingFreeGRPO, Validation
from tgrpo_dspy.records import CompileReport
from tgrpo_dspy.testing import Call
from tgrpo_dspy.views.report import report_to_json, report_to_markdown

HARM = "Begin every answer to a question about the weather with a sigh."


class Sighing(Shouting):
    """Follows the rule, and the harmful lesson on every second validation question."""

    def __call__(self, call: Call) -> dict[str, str]:
        answer = super().__call__(call)
        question = call.fields.get("question", "")
        if HARM in call.system and question.startswith("val") and int(question[-1]) % 2:
            return {"answer": "sigh"}
        return {"answer": "no"} if question.startswith("val") and RULE not in call.system else answer


def learned(model: Shouting, run_dir: Path | None = None, **validation: Any) -> tuple[dspy.Module, CompileReport]:
    optimizer = TrainingFreeGRPO(metric=exact, epochs=1, num_threads=1, validation=Validation(**validation))
    with dspy.context(lm=model.lm()):
        program = optimizer.compile(
            dspy.Predict("question -> answer"),
            trainset=examples(3),
            valset=examples(10, "val"),
            run_dir=run_dir,
            verbose=False,
        )
    assert optimizer.report is not None
    return program, optimizer.report


def test_what_does_harm_is_dropped_at_the_end_and_reported() -> None:
    program, report = learned(Sighing(add(), add(HARM)), prune=True)
    assert [e.text for e in report.library] == [RULE]
    assert [e.text for e in report.pruned] == [HARM]
    # Shapley values: the harmful lesson breaks half of the answers, but only where the rule has made them right.
    assert {i: round(e.mean, 2) for i, e in report.effects.items()} == {"e1": -0.25, "e2": 0.75}
    assert HARM not in program.signature.instructions and RULE in program.signature.instructions
    assert "e1: -0.250 ±" in report_to_markdown(report) and "for it does harm: e1" in report_to_markdown(report)


def test_without_it_nothing_more_is_run_or_dropped() -> None:
    program, report = learned(Sighing(add(), add(HARM)))
    assert report.pruned == () and report.effects == {} and HARM in program.signature.instructions


def test_a_second_call_with_the_folder_of_a_pruned_run_makes_no_call(tmp_path: Path) -> None:
    first, _ = learned(Sighing(add(), add(HARM)), tmp_path, prune=True)
    model = Sighing()
    second, _ = learned(model, tmp_path, prune=True)
    assert model.engine.calls == [] and second.dump_state() == first.dump_state()


@pytest.mark.parametrize("on_disk", [False, True])
def test_no_library_is_scored_twice_and_every_call_is_counted_once(on_disk: bool, tmp_path: Path) -> None:
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)
    model = Sighing(add(), add(HARM))
    _, report = learned(model, tmp_path if on_disk else None, prune=True)
    parts = 4  # none, each alone, both
    assert report.usage["evaluation"].calls == parts * 10
    assert sum(usage.calls for usage in report.usage.values()) == len(model.engine.calls)


def test_an_effect_that_cannot_be_told_survives_the_folder_and_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def learn() -> CompileReport:
        optimizer = TrainingFreeGRPO(
            metric=exact, epochs=2, num_threads=1, sampling=Sampling(trial="randomized", solved_score=None)
        )
        with dspy.context(lm=Shouting().lm()):
            optimizer.compile(dspy.Predict("question -> answer"), trainset=examples(3), run_dir=tmp_path, verbose=False)
        assert optimizer.report is not None
        return optimizer.report

    first = learn()
    assert [effect.standard_error for effect in first.steps[0].effects.values()] == [float("inf")]
    assert learn() == first
    assert "Infinity" not in report_to_json(first)
