"""A rollout as it is recorded: every call once, in order, with the values as they were then, as bounded text."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import dspy
import pydantic
import pytest

from tgrpo_dspy.records import Turn
from tgrpo_dspy.sampling.traces import MAX_VALUE_CHARS, Recorder, outputs_of, render_value
from tgrpo_dspy.testing import Call, ScriptedEngine

PNG = "data:image/png;base64," + base64.b64encode(b"p" * 12_288).decode()


def record(
    program: dspy.Module, respond: Callable[[Call], Any], *, adapter: Any = None, **inputs: Any
) -> tuple[tuple[Turn, ...], Any]:
    recorder = Recorder(program)
    lm = ScriptedEngine(respond).lm(cache=False)
    with dspy.context(lm=lm, adapter=adapter, trace=recorder, callbacks=[recorder.callback]):
        prediction = program(**inputs)
    return recorder.turns(), prediction


def echo(call: Call) -> dict[str, Any]:
    """Answers with what it was asked, marked."""
    return {name: f"{name} to {next(iter(call.fields.values()))}" for name in call.asks_for}


def look(where: str) -> str:
    """Look somewhere."""
    if where == "cellar":
        raise PermissionError("the cellar is locked")
    return f"nothing to see in the {where}, which is empty"


class Agent:
    """The model of an agent of either kind that looks at one place after another, then answers."""

    def __init__(self, *places: str) -> None:
        self.places, self.calls = places, 0

    def __call__(self, call: Call) -> dict[str, Any]:
        step, self.calls = self.calls % (len(self.places) + 1), self.calls + 1
        thought = f"thought {self.calls}"
        if "tool_calls" in call.asks_for:
            done = step == len(self.places)
            calls = [{"name": "submit", "args": {"answer": "none"}} if done else self._look(step)]
            return {"next_thought": thought, "tool_calls": {"tool_calls": calls}}
        if "next_tool_name" not in call.asks_for:
            self.calls -= 1
            return dict.fromkeys(call.asks_for, "none")
        called = self._look(step) if step < len(self.places) else {"name": "finish", "args": {}}
        return {"next_thought": thought, "next_tool_name": called["name"], "next_tool_args": called["args"]}

    def _look(self, step: int) -> dict[str, Any]:
        return {"name": "look", "args": {"where": self.places[step]}}


@pytest.mark.parametrize("adapter", [dspy.ChatAdapter, dspy.JSONAdapter, dspy.XMLAdapter])
def test_react_is_recorded_call_by_call_without_its_growing_trajectory(adapter: Any) -> None:
    turns, prediction = record(
        dspy.ReAct("question -> answer", tools=[look]),
        Agent("attic", "cellar", "attic"),
        adapter=adapter(),
        question="where?",
    )
    assert [turn.name for turn in turns] == ["react", "look"] * 3 + ["react", "extract.predict"]
    assert [turn.kind for turn in turns[:2]] == ["predictor", "tool"]
    assert turns[0].inputs == {"question": "where?", "trajectory": ""}
    assert turns[1].inputs == {"where": "attic"}
    assert turns[1].outputs == {"observation": "nothing to see in the attic, which is empty"}
    assert turns[3].outputs == {"error": "PermissionError: the cellar is locked"}
    assert turns[5].inputs == {"where": "attic"}, "a repeated call must show its arguments again"
    assert turns[6].outputs["next_tool_name"] == "finish"
    assert all(turn.inputs == {} for turn in turns[1:] if turn.kind == "predictor")
    assert outputs_of(prediction) == {"reasoning": "none", "answer": "none"}


def test_react_v2_shows_its_history_as_it_was_then_and_only_what_is_new_in_it() -> None:
    turns, prediction = record(
        dspy.ReActV2("question -> answer", tools=[look]), Agent("attic", "cellar"), question="where?"
    )
    assert [turn.name for turn in turns] == ["react", "look", "react", "look", "react"]
    assert turns[0].inputs == {
        "question": "where?",
        "history": "",
        "tools": "[look: Look somewhere., submit: Submit the final outputs for the task.]",
    }
    assert turns[0].outputs == {"next_thought": "thought 1", "tool_calls": "look(where=attic)"}
    assert turns[2].inputs == turns[4].inputs == {}
    assert turns[4].outputs["tool_calls"] == "submit(answer=none)"
    assert outputs_of(prediction) == {"answer": "none", "termination_reason": "submit"}


@pytest.mark.parametrize("kind", [dspy.ReAct, dspy.ReActV2])
def test_of_several_attempts_the_one_that_is_kept_is_recorded_as_it_went(kind: Any) -> None:
    class Numbered(Agent):
        def _look(self, step: int) -> dict[str, Any]:
            return {"name": "look", "args": {"where": f"room {self.calls}"}}

    best = dspy.BestOfN(
        kind("question -> answer", tools=[look]), N=3, reward_fn=lambda args, pred: 0.5, threshold=1.0, fail_count=3
    )
    turns, _ = record(best, Numbered("a", "b"), question="where?")
    assert [turn.name for turn in turns][:5] == ["module.react", "look", "module.react", "look", "module.react"]
    assert [turn.inputs["where"] for turn in turns if turn.kind == "tool"] == ["room 1", "room 2"]
    assert "nothing to see" not in "".join(turns[0].inputs.values())
    assert all(not turn.inputs for turn in turns[1:] if turn.kind == "predictor")


def test_attempts_of_attempts_are_recorded_once_and_in_order() -> None:
    class Searching(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            agent = dspy.ReAct("question -> answer", tools=[look])
            self.agent = dspy.BestOfN(agent, N=2, reward_fn=lambda args, pred: 0.5, threshold=1.0)
            self.tool = dspy.Tool(look)

        def forward(self, question: str) -> dspy.Prediction:
            prediction = self.agent(question=question)
            self.tool(where="garden")
            return prediction

    outer = dspy.BestOfN(Searching(), N=2, reward_fn=lambda args, pred: 0.5, threshold=1.0)
    turns, _ = record(outer, Agent("attic"), question="where?")
    assert [turn.inputs["where"] for turn in turns if turn.kind == "tool"] == ["attic", "garden"]
    assert len(turns) == 4 + 1


def test_a_long_rollout_holds_every_text_once() -> None:
    def report(number: int) -> str:
        """Report something long."""
        return f"report {number}: " + "so it goes. " * 100

    class Reading(Agent):
        def _look(self, step: int) -> dict[str, Any]:
            return {"name": "report", "args": {"number": step}}

    turns, _ = record(
        dspy.ReAct("question -> answer", tools=[report], max_iters=40), Reading(*["x"] * 39), question="what?"
    )
    text = "".join(value for turn in turns for value in [*turn.inputs.values(), *turn.outputs.values()])
    assert len(turns) == 39 * 2 + 2
    assert all(text.count(f"report {number}: ") == 1 for number in range(39))
    assert len(text) < 39 * 1500


class Notes(dspy.Module):
    """Asks again and again with notes that grow, by ``grow``."""

    def __init__(self, grow: Callable[[Any, str], Any], start: Any) -> None:
        super().__init__()
        self.step = dspy.Predict(
            dspy.Signature({"notes": (type(start), dspy.InputField())}).append("remark", dspy.OutputField(), type_=str)
        )
        self.grow, self.start = grow, start

    def forward(self) -> dspy.Prediction:
        notes = self.start
        for number in range(3):
            prediction = self.step(notes=notes)
            notes = self.grow(notes, f"note {number} from nobody in particular, about nothing at all.")
        return prediction


def test_of_a_text_that_grows_only_the_new_part_is_recorded() -> None:
    start = "These are the notes of a long day in the archive."
    turns, _ = record(Notes(lambda notes, new: f"{notes}\n{new}", start), lambda call: {"remark": "ok"})
    assert [turn.inputs["notes"] for turn in turns] == [
        start,
        "… note 0 from nobody in particular, about nothing at all.",
        "… note 1 from nobody in particular, about nothing at all.",
    ]


def test_of_a_list_that_grows_only_the_new_part_is_recorded_also_when_it_is_the_same_object() -> None:
    def append(notes: list[str], new: str) -> list[str]:
        notes.append(new)
        return notes

    turns, _ = record(Notes(append, ["the first of the notes, before the others came"]), lambda call: {"remark": "ok"})
    assert [turn.inputs["notes"] for turn in turns] == [
        "['the first of the notes, before the others came']",
        "… 'note 0 from nobody in particular, about nothing at all.']",
        "… 'note 1 from nobody in particular, about nothing at all.']",
    ]


def test_of_a_window_on_a_history_only_the_new_part_is_recorded() -> None:
    def slide(notes: str, new: str) -> str:
        return f"{notes}\n{new}"[30:]

    start = "\n".join(f"entry number {number} of the log" for number in range(20))
    turns, _ = record(Notes(slide, start), lambda call: {"remark": "ok"})
    assert [turn.inputs["notes"][:12] for turn in turns] == ["entry number", "… note 0 fro", "… note 1 fro"]


def test_a_short_text_that_changes_is_recorded_in_full() -> None:
    turns, _ = record(Notes(lambda notes, new: notes + "?", "why"), lambda call: {"remark": "ok"})
    assert [turn.inputs["notes"] for turn in turns] == ["why", "why?", "why??"]


def test_what_a_tool_added_to_a_text_is_not_recorded_twice_but_anything_else_is() -> None:
    class Research(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ask = dspy.Predict("notes -> remark")
            self.tool = dspy.Tool(look)

        def forward(self, notes: str) -> dspy.Prediction:
            self.ask(notes=notes)
            notes = f"{notes}\n{self.tool(where='attic')}"
            self.ask(notes=notes)
            self.tool(where="barn")
            return self.ask(notes=f"{notes}\nSomebody called.")

    notes = "We look for the lost umbrella of the old major."
    turns, _ = record(Research(), lambda call: {"remark": "ok"}, notes=notes)
    asked = [turn.inputs for turn in turns if turn.kind == "predictor"]
    assert asked == [{"notes": notes}, {}, {"notes": "… Somebody called."}]


def test_an_input_that_repeats_an_input_or_an_output_is_recorded_once() -> None:
    class Pipeline(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.draft = dspy.Predict("question -> draft")
            self.polish = dspy.Predict("question, text, tone -> answer")

        def forward(self, question: str) -> dspy.Prediction:
            return self.polish(question=question, text=self.draft(question=question).draft, tone="calm")

    turns, _ = record(Pipeline(), echo, question="why?")
    assert [(turn.name, turn.inputs, turn.outputs) for turn in turns] == [
        ("draft", {"question": "why?"}, {"draft": "draft to why?"}),
        ("polish", {"tone": "calm"}, {"answer": "answer to why?"}),
    ]


def test_threads_of_one_rollout_share_a_recorder() -> None:
    class Many(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.agent = dspy.ReAct("question -> answer", tools=[look], max_iters=1)
            self.parallel = dspy.Parallel(num_threads=8, disable_progress_bar=True)

        def forward(self, question: str) -> dspy.Prediction:
            return self.parallel([(self.agent, {"question": f"{question} {n}"}) for n in range(24)])[0]

    def respond(call: Call) -> dict[str, Any]:
        values = {"next_tool_name": "look", "next_tool_args": {"where": call.fields["question"]}}
        return {name: values.get(name, "so") for name in call.asks_for}

    turns, _ = record(Many(), respond, question="where is number")
    assert len(turns) == 24 * 3
    for n in range(24):
        question = f"where is number {n}"
        asked = next(i for i, t in enumerate(turns) if t.inputs.get("question") == question)
        called = next(i for i, t in enumerate(turns) if t.inputs.get("where") == question)
        assert asked < called
        assert turns[called].outputs == {"observation": f"nothing to see in the {question}, which is empty"}


class Broken:
    def __str__(self) -> str:
        raise LookupError("no text for you")

    __repr__ = __str__


class Fact(pydantic.BaseModel):
    name: str
    size: int


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (dspy.Image(PNG), "<image: png, 12 KB, #1e8c08>"),
        (dspy.Image("https://example.org/cat.png"), "https://example.org/cat.png"),
        ([dspy.Image("https://example.org/cat.png"), "a"], "[https://example.org/cat.png, 'a']"),
        (f"before {PNG} after", "before <image: png, 12 KB, #1e8c08> after"),
        (dspy.Audio(data="QUJD", audio_format="wav"), "<audio: wav, 3 bytes, #d9cae0>"),
        (b"abc", "<bytes: 3 bytes, #ba7816>"),
        (dspy.History(messages=[{"q": "why?", "a": "so"}, {"q": "oh?"}]), "q: why?; a: so\nq: oh?"),
        (dspy.Tool(look), "look: Look somewhere."),
        ([dspy.Tool(look)], "[look: Look somewhere.]"),
        (dspy.Reasoning(content="well, well"), "well, well"),
        (Fact(name="x", size=3), '{"name":"x","size":3}'),
        ({"b", "a"}, "{'a', 'b'}"),
        ({"a": [1, (2,)]}, "{'a': [1, (2,)]}"),
        (Broken(), "<Broken that cannot be shown: LookupError>"),
        ("a \ud800 b", "a ? b"),
        (None, "None"),
    ],
)
def test_values_as_text(value: Any, text: str) -> None:
    assert render_value(value) == text


def test_a_live_object_has_the_same_text_in_every_process() -> None:
    assert render_value(object()) == "<object object>"


def test_different_images_of_one_size_can_be_told_apart() -> None:
    first, second = (dspy.Image("data:image/png;base64," + letter * 400) for letter in "AB")
    assert render_value(first) != render_value(second)


def test_any_value_is_bounded() -> None:
    assert len(render_value("x" * 10**6)) <= MAX_VALUE_CHARS + 10
    assert len(render_value(list(range(10**5)))) <= MAX_VALUE_CHARS + 10


def test_inputs_of_every_type_are_recorded_and_stop_nothing() -> None:
    program = dspy.Predict("picture: dspy.Image, talk: dspy.History, thing -> answer")
    recorder = Recorder(program)
    talk = dspy.History(messages=[{"q": "why?"}])
    inputs = {"picture": dspy.Image(PNG), "talk": talk, "thing": Broken(), "unknown": 1}
    recorder.append((program, inputs, dspy.Prediction(answer=Broken())))
    talk.messages.append({"q": "from the future"})
    recorder.append("no entry at all")
    [turn] = recorder.turns()
    assert turn.name == "self"
    assert turn.inputs["picture"].startswith("<image: png, 12 KB")
    assert turn.inputs["talk"] == "q: why?"
    assert turn.inputs["thing"] == turn.outputs["answer"] == "<Broken that cannot be shown: LookupError>"
    assert "unknown" not in turn.inputs
    assert len(recorder) == 2, "a program may read its trace"
    json.dumps(turn.inputs).encode()


def test_an_output_that_is_a_mapping_is_no_history() -> None:
    assert outputs_of(dspy.Prediction(record={"height": 3})) == {"record": "{'height': 3}"}
    assert outputs_of(["a"]) == {"result": "['a']"}
