"""Programs of many kinds, with the three adapters that ask for text: every rollout is its own, and lessons arrive."""

from __future__ import annotations

from typing import Any

import dspy
import pytest
from dspy.lm15 import ImagePart

from tests.kinds import KINDS, SIGNATURE, Frozen, Rich, Twins, Versatile, look, rich_examples
from tests.scripted import RULE, Seen, exact, examples
from tgrpo_dspy import Experience, ExperienceLibrary, TrainingFreeGRPO

ADAPTERS = {"chat": dspy.ChatAdapter, "json": dspy.JSONAdapter, "xml": dspy.XMLAdapter}


def compiled_with(model: Versatile, student: dspy.Module, **settings: Any) -> Any:
    optimizer = TrainingFreeGRPO(metric=exact, epochs=1, group_size=3, num_threads=1)
    with dspy.context(lm=model.lm()):
        return optimizer.compile(student, trainset=examples(2), verbose=False, **settings)


def parts_of(program: dspy.Module) -> dict[str, Any]:
    """What a program's predictors are, apart from their instructions."""
    return {name: (p.lm, p.config, p.demos, list(p.signature.fields)) for name, p in program.named_predictors()}


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("kind", KINDS)
def test_any_program_with_any_adapter(kind: str, adapter: str) -> None:
    case, model, seen = KINDS[kind], Versatile(native_tools=KINDS[kind].native_tools), Seen()
    student, trainset = case.program(model), case.examples(2)
    signatures = {name: p.signature for name, p in student.named_predictors()}
    optimizer = TrainingFreeGRPO(metric=case.metric, epochs=2, group_size=3, num_threads=1)
    with dspy.context(lm=model.lm(), adapter=ADAPTERS[adapter](use_native_function_calling=case.native_tools)):
        compiled = optimizer.compile(student, trainset=trainset, listeners=[seen], verbose=False)
        assert optimizer.report is not None
        rollouts, runs = list(seen), len(model.runs)
        optimizer.compile(student, trainset=trainset, verbose=False)
    assert [r.failure for r in rollouts if r.failure] == []
    assert {call.form for call in model.runs} == {adapter}, "no answer was read by another adapter"
    turns = [turn for rollout in rollouts for turn in rollout.turns]
    ran = {turn.name for turn in turns if turn.kind == "predictor"}
    assert ran == signatures.keys() - case.silent | case.unlisted
    assert {turn.name for turn in turns if turn.kind == "tool"} == case.tools
    first, second = optimizer.report.steps
    assert first.informative > 0 and second.mean_reward == 1.0
    assert all(RULE in p.signature.instructions for name, p in compiled.named_predictors() if name in ran)
    assert parts_of(compiled) == parts_of(student)
    assert {name: p.signature for name, p in student.named_predictors()} == signatures
    assert len(model.runs) == runs, "a second run must come from the cache"


def test_a_part_that_was_compiled_before_is_left_alone_but_sampled() -> None:
    model, student = Versatile(), Frozen()
    student.before.predict.config = {"temperature": 0.0, "rollout_id": 1}
    compiled = compiled_with(model, student)
    assert RULE in compiled.answer.signature.instructions
    assert compiled.before.predict.signature is student.before.predict.signature
    assert compiled.before.predict.config == {"temperature": 0.0, "rollout_id": 1}
    assert {call.request.config.temperature for call in model.runs} == {0.7}
    assert len(model.runs) == 2 * 3 * 2


class Holding(dspy.Module):
    """Answers on an LM that it holds in a container."""

    def __init__(self, lm: dspy.LM) -> None:
        super().__init__()
        self.answer = dspy.Predict(SIGNATURE)
        self.lms = {"all": [lm]}

    def forward(self, question: str) -> dspy.Prediction:
        with dspy.context(lm=self.lms["all"][0]):
            return self.answer(question=question)


class Asking(dspy.Module):
    """Answers by a tool that is the method of a module with an LM of its own, which DSPy does not see."""

    def __init__(self, lm: dspy.LM) -> None:
        super().__init__()
        self.unused = dspy.Predict(SIGNATURE)
        self.tool = dspy.Tool(Holding(lm).forward, name="expert")

    def forward(self, question: str) -> dspy.Prediction:
        return self.tool(question=question)


@pytest.mark.parametrize("make", [Holding, Asking])
def test_an_lm_that_the_program_holds_outside_its_predictors_is_sampled_too(make: Any) -> None:
    model = Versatile()
    compiled_with(model, make(model.lm(model="test/held")))
    assert [call.request.model for call in model.runs] == ["test/held"] * 2 * 3
    assert {call.request.config.temperature for call in model.runs} == {0.7}


def test_a_lesson_for_one_of_two_equal_predictors_reaches_only_that_one() -> None:
    lesson = Experience(id="e1", text=RULE, target="parts['polish']")
    compiled = compiled_with(Versatile(), Twins(), initial_library=ExperienceLibrary((lesson,)))
    assert RULE in compiled.parts["polish"].signature.instructions
    assert RULE not in compiled.parts["draft"].signature.instructions


def test_images_histories_and_tools_reach_the_model_as_what_they_are() -> None:
    model = Versatile()
    with dspy.context(lm=model.lm()):
        TrainingFreeGRPO(metric=exact, epochs=1, group_size=2).compile(
            dspy.Predict(Rich), trainset=rich_examples(1), verbose=False
        )
    assert len(model.runs) == 2
    for call in model.runs:
        assert any(isinstance(part, ImagePart) for part in call.request.messages[-1].parts)
        assert [message.role for message in call.request.messages] == ["user", "assistant", "user"]
        assert "look, whose description is" in call.user


def test_code_that_runs_in_dspys_own_local_interpreter() -> None:
    student = dspy.RLM(SIGNATURE, tools=[look], interpreter_factory=dspy.LocalInterpreter)
    assert RULE in compiled_with(Versatile(), student).generate_action.signature.instructions
