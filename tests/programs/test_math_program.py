"""The two students: one reasons, one may run Python, and a slip of a small model costs a turn and not the run."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import dspy
import pytest

from programs.math_reasoning.metric import math_accuracy
from programs.math_reasoning.program import SolveProblem, agent, chain_of_thought
from tests.scripted import Model, Seen, edits, reflects
from tgrpo_dspy import TrainingFreeGRPO
from tgrpo_dspy.testing import Call, ScriptedEngine

LESSON = "Multiply with the python tool before finishing."


def python(code: str) -> str:
    """Run Python code and return what it prints."""
    return str(eval(code, {"print": str}))


def turn(name: str, arguments: Any, thought: str = "think") -> dict[str, Any]:
    return {"next_thought": thought, "next_tool_name": name, "next_tool_args": arguments}


def written(*fields: str) -> str:
    """A turn as a model writes it, field after field."""
    names = ("next_thought", "next_tool_name", "next_tool_args")
    return "\n\n".join(f"[[ ## {name} ## ]]\n{field}" for name, field in zip(names, fields, strict=False))


def run(*turns: dict[str, Any] | str, adapter: dspy.Adapter | None = None, **settings: Any) -> Any:
    """What the agent makes of these turns of a model, which answers 6 in the end."""
    answers = iter([*turns, turn("finish", {})])

    def respond(call: Call) -> dict[str, Any] | str:
        return {"reasoning": "seen", "answer": "6"} if "answer" in call.asks_for else next(answers)

    with dspy.context(lm=ScriptedEngine(respond).lm(), adapter=adapter):
        return agent(python, **settings)(question="What is 2 * 3?")


@pytest.mark.parametrize("adapter", [dspy.ChatAdapter(), dspy.JSONAdapter(), dspy.XMLAdapter()], ids=type)
def test_the_agent_calls_the_tool_and_answers(adapter: dspy.Adapter) -> None:
    prediction = run(turn("python", {"code": "print(2 * 3)"}), adapter=adapter)
    assert prediction.answer == "6"
    assert prediction.trajectory == {
        "thought_0": "think",
        "tool_name_0": "python",
        "tool_args_0": {"code": "print(2 * 3)"},
        "observation_0": "6",
        "thought_1": "think",
        "tool_name_1": "finish",
        "tool_args_1": {},
        "observation_1": "Completed.",
    }


@pytest.mark.parametrize(
    ("slip", "observation"),
    [
        (turn("search", {"query": "2 * 3"}), "There is no tool 'search'. The tools are: python, finish."),
        (turn("", {}), "There is no tool ''. The tools are: python, finish."),
        (turn("python", {"code": "```python\nprint(2 * 3)\n```"}), "6"),
        (turn("python", {"code": "```\nprint(2 * 3)```"}), "6"),
        (turn("`python`", {"code": "print(2 * 3)"}), "6"),
        (turn("python()", {"code": "print(2 * 3)"}), "6"),
        (written("think", "python", "```python\nprint(2 * 3)\n```"), "6"),
        (written("think", '"python"', "print(2 * 3)"), "6"),
        (written("think", "python", '```json\n{"code": "print(2 * 3)"}\n```'), "6"),
        (written("think", "python\n```python\nprint(2 * 3)\n```"), "There is no tool 'python\\n```python"),
        (written("think", "python"), "missing 1 required positional argument: 'code'"),
        (written("think", "python", "[2, 3]"), "Arg arguments is not in the tool's args"),
        (written("think", "python", "6"), "Arg arguments is not in the tool's args"),
        (turn("python", {"input": "print(2 * 3)"}), "Arg input is not in the tool's args"),
        (turn("python", {"code": ["print(2 * 3)"]}), "Arg code is invalid"),
        (turn("python", {"code": "1 / 0"}), "ZeroDivisionError"),
        ({"next_tool_name": "python", "next_tool_args": {"code": "print(2 * 3)"}}, "6"),
    ],
)
def test_a_slip_is_a_turn_that_says_what_was_wrong(slip: dict[str, Any] | str, observation: str) -> None:
    prediction = run(slip)
    seen = prediction.trajectory["observation_0"]
    assert seen == observation if observation == "6" else observation in seen
    assert (prediction.answer, prediction.trajectory["tool_name_1"]) == ("6", "finish")


def test_the_turns_are_bounded() -> None:
    prediction = run(*[turn("python", {"code": "print(2 * 3)"})] * 3, max_iters=2)
    assert prediction.answer == "6" and "observation_1" in prediction.trajectory
    assert "observation_2" not in prediction.trajectory


def test_a_tool_object_keeps_its_name_and_description() -> None:
    student: Any = agent(dspy.Tool(python, name="interpreter", desc="Runs code."), max_iters=2)
    assert list(student.tools) == ["interpreter", "finish"] and student.max_iters == 2
    instructions = student.react.signature.instructions
    assert "interpreter, whose description is <desc>Runs code.</desc>" in instructions
    assert instructions.startswith(SolveProblem.instructions)
    assert list(student.react.signature.output_fields) == ["next_thought", "next_tool_name", "next_tool_args"]


def test_structured_output_leaves_room_for_the_code() -> None:
    student: Any = agent(python)
    kinds = {name: field.annotation for name, field in student.react.signature.output_fields.items()}
    schema = dspy.Signature({"q": (str, dspy.InputField()), **_outputs(kinds)}).model_json_schema()
    assert schema["properties"]["next_tool_args"]["properties"] == {"code": {"type": "string"}}
    assert schema["properties"]["next_tool_name"]["type"] == "string"


def _outputs(kinds: dict[str, Any]) -> dict[str, Any]:
    return {name: (kind, dspy.OutputField()) for name, kind in kinds.items()}


def test_reasoning_alone() -> None:
    engine = ScriptedEngine(lambda call: {"reasoning": "2 + 2 + 2", "answer": "6"})
    with dspy.context(lm=engine.lm()):
        prediction = chain_of_thought()(question="What is 2 * 3?")
    assert (prediction.reasoning, prediction.answer) == ("2 + 2 + 2", "6")
    assert SolveProblem.instructions in engine.calls[0].system


class Reckoner(Model):
    """Guesses a product, right every second time; told so by a lesson, it runs Python and answers what it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()

    def __call__(self, call: Call) -> dict[str, Any]:
        if reflects(call):
            return edits(call, {"operation": "ADD", "lesson": LESSON})
        question, observed = call.fields["question"], call.fields.get("observation_0", "")
        product = question.removeprefix("What is ").removesuffix("?")
        if "next_tool_name" in call.asks_for:
            is_told = LESSON in call.system and not observed
            return turn("python", {"code": f"print({product})"}) if is_told else turn("finish", {})
        self.asked[question] += 1
        is_lucky = random.Random(f"{question} {self.asked[question]}").random() < 0.5
        guess = str(eval(product) + (not is_lucky))
        return {"reasoning": "because", "answer": observed if observed.isdigit() else guess}


def test_a_lesson_about_the_tool_makes_the_agent_use_it(tmp_path: Path) -> None:
    factors = [(17, 23), (31, 12), (14, 29), (19, 41)]
    examples = [
        dspy.Example(question=f"What is {a} * {b}?", answer=str(a * b)).with_inputs("question") for a, b in factors
    ]
    model, seen = Reckoner(), Seen()
    optimizer = TrainingFreeGRPO(metric=math_accuracy, epochs=2, group_size=4, num_threads=2)
    with dspy.context(lm=model.lm()):
        compiled: Any = optimizer.compile(agent(python), trainset=examples, listeners=[seen], verbose=False)
        unseen = compiled(question="What is 123 * 45?")
    assert optimizer.report is not None
    before, after = optimizer.report.steps
    assert before.informative > 0 and before.mean_reward is not None and before.mean_reward < 1.0
    assert after.mean_reward == 1.0
    calls = [sum(turn.kind == "tool" and turn.name == "python" for turn in rollout.turns) for rollout in seen]
    count = sum(len(group.rollouts) for group in before.groups)
    assert set(calls[:count]) == {0} and set(calls[count:]) == {1}
    assert [rollout.failure for rollout in seen if rollout.failure] == []
    assert LESSON in compiled.react.signature.instructions
    assert (unseen.answer, unseen.trajectory["observation_0"]) == ("5535", "5535")

    compiled.save(tmp_path / "compiled.json")
    again: Any = agent(python)
    again.load(tmp_path / "compiled.json")
    with dspy.context(lm=model.lm()):
        assert again(question="What is 321 * 54?").trajectory["tool_name_0"] == "python"
