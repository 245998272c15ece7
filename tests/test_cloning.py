"""Copies of programs: what they share, what they do not, and which programs there is nothing to do for."""

from __future__ import annotations

import copy
import logging
from functools import partial
from typing import Any

import dspy
import pytest

from tests.kinds import SIGNATURE, Attached, Client, Frozen, Versatile
from tests.scripted import Seen, exact, examples
from tgrpo_dspy import ExperienceLibrary, ProgramError, TrainingFreeGRPO, inject
from tgrpo_dspy.cloning import frozen_parts


class Team(dspy.Module):
    """Two modules that hold one object together, with things around them that cannot be copied."""

    def __init__(self, lm: dspy.LM) -> None:
        super().__init__()
        self.notes = ["a note"]
        self.first, self.second = dspy.ChainOfThought(SIGNATURE), dspy.ChainOfThought(SIGNATURE)
        self.first.notes = self.second.notes = self.notes
        self.first.predict.lm = self.second.predict.lm = lm
        self.clients: dict[str, Any] = {"main": Client(), "more": (Client(), [Client()])}
        self.call = partial(self.clients["main"].__class__.__repr__, self.clients["main"])
        self.lines = (line for line in ["a generator cannot be copied"])


def test_a_copy_shares_what_cannot_be_copied_and_keeps_what_is_one_object_one_object(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lm = Versatile().lm()
    team = Team(lm)
    with caplog.at_level(logging.WARNING):
        copied = inject(team, ExperienceLibrary())
    assert caplog.text == ""
    assert copied.notes is copied.first.notes is copied.second.notes and copied.notes is not team.notes
    assert copied.first.predict.lm is copied.second.predict.lm is lm
    assert copied.first is not team.first
    assert copied.clients is not team.clients
    assert copied.clients["main"] is team.clients["main"] is copied.call.args[0]
    assert copied.clients["more"][1][0] is team.clients["more"][1][0]
    assert copied.lines is team.lines


def test_a_tool_that_is_a_method_of_the_program_runs_on_the_copy_and_samples(caplog: pytest.LogCaptureFixture) -> None:
    model, seen = Versatile(), Seen()
    student = Attached(model.lm(model="test/pinned"))
    optimizer = TrainingFreeGRPO(metric=exact, epochs=2, group_size=3, num_threads=1)
    with dspy.context(lm=model.lm()), caplog.at_level(logging.WARNING):
        compiled = optimizer.compile(student, trainset=examples(2), listeners=[seen], verbose=False)
    assert "deep copy" not in caplog.text
    assert {call.request.config.temperature for call in model.runs} == {0.7}
    assert seen and all("first" in {turn.name for turn in rollout.turns} for rollout in seen)
    assert compiled.agent.tools["look"].func.__self__ is compiled
    assert compiled.lock is student.lock


def test_a_module_whose_copy_is_itself_is_refused() -> None:
    class Single(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.answer = dspy.Predict(SIGNATURE)

        def __deepcopy__(self, memo: dict[int, object]) -> Single:
            return self

    program = dspy.BestOfN(Single(), N=1, reward_fn=exact, threshold=1.0)
    with pytest.raises(ProgramError, match=r"share the predictor self\.module\.answer"):
        inject(program, ExperienceLibrary())


def test_frozen_parts_are_the_outermost_submodules_that_dspy_hides() -> None:
    inner = Frozen()
    program = dspy.Module()
    program.outer, program.parts = Frozen(), [inner, {"deep": dspy.ReAct(SIGNATURE, tools=[])}]
    program.outer._compiled = program.parts[1]["deep"]._compiled = True
    program.bare = dspy.Predict(SIGNATURE)
    program.bare._compiled = program._compiled = True
    assert frozen_parts(program) == ["outer", "parts[0].before", "parts[1][deep]"]
    assert [name for name, _ in program.named_predictors()] == ["parts[0].answer", "bare"]
    assert frozen_parts(copy.deepcopy(program)) == frozen_parts(program)


def only_frozen() -> dspy.Module:
    program = Frozen()
    del program.answer
    return program


def around_a_flex() -> dspy.Module:
    program = dspy.Module()
    program.flex = dspy.Flex(SIGNATURE)
    return program


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: dspy.Flex(SIGNATURE), r"Flex has no predictor .* not visible as predictors\. .*dspy\.GEPA"),
        (around_a_flex, "not visible as predictors"),
        (only_frozen, r"its part before was compiled before and is frozen"),
    ],
)
def test_a_program_with_nothing_to_improve_is_refused_with_the_reason(make: Any, says: str) -> None:
    model = Versatile()
    with dspy.context(lm=model.lm()), pytest.raises(ProgramError, match=says):
        TrainingFreeGRPO(metric=exact).compile(make(), trainset=examples(1), verbose=False)
    assert model.engine.calls == []
