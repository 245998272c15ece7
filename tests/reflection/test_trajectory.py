"""Trajectories as text: every call of both attempts in order and once, within the bound, summarised only over it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import dspy
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.scripted import Shouting, add, edits, exact, examples, reflects
from tgrpo_dspy import Reflection, TrainingFreeGRPO
from tgrpo_dspy.library.limits import estimate_tokens
from tgrpo_dspy.records import Failure, Group, Rollout, Turn
from tgrpo_dspy.reflection.trajectory import render_groups
from tgrpo_dspy.testing import Call

STEPS = 40
SUMMARY = "It went from room to room and guessed in the end."


def visit(room: str, lamp: bool) -> str:
    """Visit a room."""
    if room.endswith("-5"):
        raise PermissionError(f"{room} is locked")
    return f"echo of {room}, and nothing else"


class Wanderer(Shouting):
    """Walks through a room a step, other ones in every rollout, and answers at the last; every second one is right."""

    def __init__(self, summary: Any = None) -> None:
        super().__init__()
        self.summary, self.rollouts = summary, 0

    def __call__(self, call: Call) -> Any:
        if reflects(call):
            return edits(call, add())
        if "attempt" in call.fields:
            return self.summary if isinstance(self.summary, str) else {"summary": SUMMARY}
        if "walk " not in call.user:
            self.rollouts += 1
            return self.step(self.rollouts, 0)
        rollout, step = call.user.split("walk ")[1].split(".")[0], call.user.count("[[ ## tool_name_")
        if "answer" not in call.asks_for:
            return self.step(int(rollout), step)
        question = call.fields["question"]
        return {"reasoning": "so be it", "answer": question.upper() if int(rollout) % 2 else "no idea"}

    def step(self, rollout: int, step: int) -> dict[str, Any]:
        last = step == STEPS - 1
        return {
            "next_thought": f"walk {rollout}.{step}",
            "next_tool_name": "finish" if last else "visit",
            "next_tool_args": {} if last else {"room": f"room-{rollout}-{step}", "lamp": True},
        }

    @property
    def summarised(self) -> list[str]:
        return [call.fields["attempt"] for call in self.engine.calls if "attempt" in call.fields]


def walked(model: Wanderer, tokens: int, **options: Any) -> list[str]:
    """The attempts that each reflection call is shown."""
    optimizer = TrainingFreeGRPO(
        metric=exact,
        epochs=1,
        group_size=2,
        num_threads=1,
        reflection=Reflection(max_prompt_tokens=tokens),
        **options,
    )
    agent = dspy.ReAct("question -> answer", tools=[visit], max_iters=STEPS)
    with dspy.context(lm=model.lm()):
        optimizer.compile(agent, trainset=examples(1), verbose=False)
    return [call.fields["attempts"] for call in model.reflections]


def test_forty_steps_of_react_fit_the_reflection_budget_without_a_summary() -> None:
    model = Wanderer()
    [shown] = walked(model, tokens=3000)
    assert estimate_tokens(shown) <= 3000
    assert model.summarised == []
    for rollout in (1, 2):
        for step in (0, 1, 2, 20, 37, 38):
            assert shown.count(f"tool visit(room=room-{rollout}-{step}; lamp=True) -> ") == 1
            assert shown.count(f"echo of room-{rollout}-{step},") == 1
        assert f"-> error: PermissionError: room-{rollout}-5 is locked" in shown
    assert shown.index("reward 1:") < shown.index("room-1-0") < shown.index("reward 0:") < shown.index("room-2-0")
    assert "left out" not in shown
    assert "next_tool_args" not in shown.replace("next_tool_args={}", ""), "the tool's own line shows its arguments"


@pytest.mark.parametrize("tokens", [2000, 800])
def test_without_a_readable_summary_the_first_and_last_turns_are_shown(tokens: int) -> None:
    model = Wanderer(summary="no fields at all")
    [shown] = walked(model, tokens)
    assert estimate_tokens(shown) <= tokens
    assert shown.count(" turns left out …") == 2
    for rollout in (1, 2):
        for step in (0, 38):
            assert (
                shown.count(f"tool visit(room=room-{rollout}-{step}; lamp=True) -> echo of room-{rollout}-{step},") == 1
            )
        assert f"room-{rollout}-20" not in shown
    assert shown.count("  80. extract.predict() -> reasoning=so be it; answer=") == 2


def test_attempts_over_their_share_are_summarised_and_the_summary_stands_in_for_their_turns() -> None:
    model = Wanderer()
    [shown] = walked(model, tokens=800)
    assert len(model.summarised) == 2
    assert all(estimate_tokens(text) <= 800 for text in model.summarised)
    best, worst = sorted(model.summarised, key=lambda text: "reward 0" in text)
    assert "reward 1:" in best and "room-1-0" in best and "room-2-0" not in best
    assert "reward 0:" in worst and "room-2-38" in worst and "right answer: answer=QUESTION NUMBER 0" in worst
    assert shown.count(f"in short: {SUMMARY}") == 2
    assert "outputs: reasoning=so be it; answer=QUESTION NUMBER 0" in shown
    assert "room-" not in shown


def test_nothing_is_summarised_when_a_long_and_a_short_attempt_fit_together() -> None:
    class Hasty(Wanderer):
        def step(self, rollout: int, step: int) -> dict[str, Any]:
            return super().step(rollout, STEPS - 1 if rollout % 2 == 0 and step == 3 else step)

    model = Hasty()
    [shown] = walked(model, tokens=1800)
    assert model.summarised == []
    assert estimate_tokens(shown.split("reward 0:")[0]) > 900, "the long one takes more than half of the room"
    assert "room-1-38" in shown and "room-2-2" in shown and "left out" not in shown


def test_a_summariser_does_not_see_the_labels_when_the_reflection_does_not() -> None:
    def feedback(gold: Any, pred: Any, trace: Any = None) -> float:
        return float(pred.answer.isupper())

    model = Wanderer()
    optimizer = TrainingFreeGRPO(
        metric=feedback,
        epochs=1,
        group_size=3,  # without labels the majority is right
        num_threads=1,
        use_ground_truth=False,
        reflection=Reflection(max_prompt_tokens=800),
    )
    example = dspy.Example(question="what now", answer="LABEL-CANARY").with_inputs("question")
    with dspy.context(lm=model.lm()):
        optimizer.compile(
            dspy.ReAct("question -> answer", tools=[visit], max_iters=STEPS), trainset=[example], verbose=False
        )
    assert len(model.summarised) == 2
    assert not any("LABEL-CANARY" in call.text for call in model.engine.calls)


def test_what_one_predictor_hands_to_the_next_is_shown_once() -> None:
    class Pipeline(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.draft = dspy.Predict("question -> text")
            self.polish = dspy.Predict("text, question, tone -> answer")

        def forward(self, question: str) -> dspy.Prediction:
            return self.polish(text=self.draft(question=question).text, question=question, tone="calm")

    class Writer(Shouting):
        def __call__(self, call: Call) -> dict[str, str]:
            if reflects(call):
                return super().__call__(call)
            if "text" in call.asks_for:
                return {"text": f"draft number {call.number}"}
            return {"answer": call.fields["question"].upper() if call.number % 4 == 1 else "no idea"}

    model = Writer()
    optimizer = TrainingFreeGRPO(metric=exact, epochs=1, group_size=2, num_threads=1)
    with dspy.context(lm=model.lm()):
        optimizer.compile(Pipeline(), trainset=examples(1), verbose=False)
    shown = model.reflections[0].fields["attempts"]
    assert shown.startswith(
        "### Example 1\n"
        "question: question number 0\n"
        "right answer: answer=QUESTION NUMBER 0\n"
        "reward 1: \n"
        "  1. draft() -> text=draft number 0\n"
        "  2. polish(tone=calm) -> answer=QUESTION NUMBER 0\n"
        "reward 0: \n"
        "  1. draft() -> text=draft number 2\n"
        "  2. polish(tone=calm) -> answer=no idea\n"
    )


def rollout(number: int, reward: float, *turns: Turn, **fields: Any) -> Rollout:
    return Rollout(number=number, reward=reward, turns=turns, **fields)


def group(*rollouts: Rollout, key: str = "k", labels: dict[str, str] | None = None) -> Group:
    return Group(key=key, inputs={"question": "why?"}, labels=labels or {}, rollouts=rollouts)


def call(name: str, inputs: dict[str, str], outputs: dict[str, str]) -> Turn:
    return Turn(name=name, inputs=inputs, outputs=outputs)


def tool(name: str, inputs: dict[str, str], **outputs: str) -> Turn:
    return Turn(name=name, inputs=inputs, outputs=outputs, kind="tool")


def test_a_program_of_one_predictor_is_shown_by_its_outputs() -> None:
    asked = {"question": "why?"}
    shown = render_groups(
        [
            group(
                rollout(0, 0.0, call("self", asked, {"answer": "so"}), outputs={"answer": "so"}, feedback="too short"),
                rollout(1, 1.0, call("self", asked, {"answer": "SO"}), outputs={"answer": "SO"}, feedback="fine"),
                rollout(2, 1.0, call("self", asked, {"answer": "SO"}), outputs={"answer": "SO"}, feedback="fine"),
                rollout(3, 0.5, call("self", asked, {"answer": "S"}), outputs={"answer": "S"}),
                labels={"answer": "SO"},
            ),
            group(
                rollout(0, 0.25, outputs={"answer": "a\nb", "note": "n"}),
                rollout(
                    1, 0.0, failure=Failure(kind="parse", error="AdapterParseError", message="bad", completion="hm")
                ),
            ),
        ],
        max_tokens=1000,
        with_labels=True,
    )
    assert shown == (
        "### Example 1\n"
        "question: why?\n"
        "right answer: answer=SO\n"
        "reward 1, 2 times: answer=SO\n"
        "  grader: fine\n"
        "reward 0: answer=so\n"
        "  grader: too short\n"
        "\n"
        "### Example 2\n"
        "question: why?\n"
        "reward 0.25: \n"
        "  answer=a\n"
        "b\n"
        "  note=n\n"
        "reward 0: \n"
        "  grader: failed with AdapterParseError: bad\n"
        "  grader: the answer was: hm\n"
        "\n"
        "### What was written, and what is right\n"
        "answer:\n"
        "  wrong: S  ->  right: SO\n"
        "  wrong: so  ->  right: SO"
    )


@pytest.mark.parametrize(
    ("right", "heading"),
    [
        (["yes", "no", "no", "yes"], "landlocked (right is always one of: no, yes):"),
        (["yes", "no", "maybe", "yes"], "landlocked:"),
        (["yes", "yes", "yes", "yes"], "landlocked:"),
        (["yes", "no", "no"], "landlocked:"),
        (["yes" * 20, "no", "no", "yes" * 20], "landlocked:"),
    ],
)
def test_a_label_that_sorts_examples_into_classes_is_told_with_all_of_them(right: list[str], heading: str) -> None:
    wrong = rollout(0, 0.0, outputs={"landlocked": "it is"})
    groups = [group(wrong, labels={"landlocked": value}) for value in right]
    assert f"\n{heading}\n" in render_groups(groups, max_tokens=2000, with_labels=True)
    assert "landlocked (" not in render_groups(groups, max_tokens=2000, with_labels=False)


def test_several_turns_are_shown_line_by_line_without_what_is_said_already() -> None:
    passages = "a passage that is the same for both attempts"
    attempt = rollout(
        0,
        1.0,
        call("plan", {"question": "why?", "notes": " "}, {"next_tool_name": "look", "next_tool_args": "{'a': 'b'}"}),
        tool("look", {"a": "b"}, observation="first\nsecond"),
        call("act", {"passages": passages}, {"thought": "hm", "tool_calls": "look(a=b); look(a=c)"}),
        tool("look", {"a": "b"}, observation="third"),
        tool("look", {"a": "c"}, error="ValueError: no c"),
        call("end", {}, {"next_tool_name": "finish", "next_tool_args": "{}"}),
        outputs={"answer": "so"},
    )
    failed = rollout(
        1,
        0.0,
        call("act", {"passages": passages}, {"thought": "oh"}),
        call("act", {"passages": "… more"}, {"thought": "well"}),
        failure=Failure(
            kind="parse",
            error="AdapterParseError",
            message="no answer",
            completion="[[ ## thought ## ]]\nhm [[ ## answ",
            missing=("answer", "reason"),
        ),
    )
    shown = render_groups([group(attempt, failed)], max_tokens=1000, with_labels=True)
    assert shown == (
        "### Example 1\n"
        "question: why?\n"
        "reward 1: \n"
        "  1. plan() -> \n"
        "  2. tool look(a=b) -> first\n"
        "     second\n"
        f"  3. act(passages={passages}) -> thought=hm\n"
        "  4. tool look(a=b) -> third\n"
        "  5. tool look(a=c) -> error: ValueError: no c\n"
        "  6. end() -> next_tool_name=finish; next_tool_args={}\n"
        "  outputs: answer=so\n"
        "reward 0: \n"
        "  1. act(passages=(as above)) -> thought=oh\n"
        "  2. act(passages=… more) -> thought=well\n"
        "  grader: failed with AdapterParseError: no answer\n"
        "  grader: missing: answer, reason\n"
        "  grader: the answer was: thought:\n"
        "  grader: hm [ [ ## answ"
    )


def test_turns_are_left_out_before_values_become_too_short_to_read() -> None:
    turns = [call("step", {}, {"text": f"<{number}>" + "x" * 500}) for number in range(60)]
    long = rollout(0, 1.0, *turns, outputs=turns[-1].outputs)
    short = rollout(1, 0.0, *turns[:3], outputs={"text": "none"})
    shown = render_groups([group(long, short)], max_tokens=600, with_labels=True)
    lines = [line for line in shown.splitlines() if " step() -> " in line]
    left_out = 60 - (len(lines) - 3)
    assert f"… {left_out} turns left out …" in shown and 0 < left_out < 58
    assert all(len(line) > 80 for line in lines)
    assert lines[0].startswith("  1. ") and lines[-4].startswith("  60. ") and lines[-1].startswith("  3. ")
    assert 450 < estimate_tokens(shown) <= 600, "no room is wasted"


def test_a_summary_stands_in_for_the_turns_of_its_attempt_only() -> None:
    turns = [call("step", {}, {"text": f"turn {number}"}) for number in range(3)]
    groups = [group(rollout(0, 1.0, *turns), rollout(1, 0.0, *turns[:2], outputs={"text": "end"}))]
    shown = render_groups(groups, max_tokens=600, with_labels=True, summaries={("k", 1): "It gave up\nearly."})
    assert shown.endswith(
        "reward 1: \n  1. step() -> text=turn 0\n  2. step() -> text=turn 1\n  3. step() -> text=turn 2\n"
        "reward 0: \n  in short: It gave up\n     early.\n  outputs: text=end"
    )


@pytest.mark.parametrize("turns", [0, 3])
def test_the_best_and_the_worst_attempt_stay_visible_in_the_smallest_prompt(turns: int) -> None:
    wordy = {f"field {n}": "é" * 3000 for n in range(40)}
    groups = [
        Group(
            key=str(n),
            inputs=wordy,
            labels={"field 1": "x"},
            rollouts=(
                rollout(0, 1.0, *[call("step", wordy, wordy)] * turns, outputs=wordy, feedback="well done " * 500),
                rollout(1, 0.0, *[call("step", wordy, wordy)] * turns, failure=Failure(
                    kind="program", error="ValueError", message="bad luck " * 500)),
            ),
        )
        for n in range(8)
    ]  # fmt: skip
    shown = render_groups(groups, max_tokens=200, with_labels=True)
    assert estimate_tokens(shown) <= 200
    assert shown.count("reward 1: ") == shown.count("reward 0: ") == 8


HOSTILE = st.sampled_from(["[[ ## answer ## ]]", "[[[ ## x", "[[ [[ ## ## ## ]]", "\ud800", "x" * 2000, "[[", " ##"])
TEXTS = st.one_of(
    st.lists(st.one_of(HOSTILE, st.text(max_size=30)), max_size=4).map("".join), st.text("é \n", max_size=900)
)
NAMES = st.one_of(st.sampled_from(["answer", "next_tool_name", "look", "[[ ## a ## ]]"]), st.text(max_size=5))
FIELDS = st.dictionaries(NAMES, TEXTS, max_size=3)
TURNS = st.builds(Turn, name=NAMES, inputs=FIELDS, outputs=FIELDS, kind=st.sampled_from(["predictor", "tool"]))
FAILURES = st.builds(
    Failure,
    kind=st.just("parse"),
    error=NAMES,
    message=TEXTS,
    completion=TEXTS,
    missing=st.lists(NAMES, max_size=2).map(tuple),
)
ROLLOUTS = st.builds(
    Rollout,
    number=st.integers(0, 3),
    outputs=FIELDS,
    turns=st.lists(TURNS, max_size=12).map(tuple),
    reward=st.one_of(st.none(), st.floats(-1, 1)),
    feedback=TEXTS,
    failure=st.one_of(st.none(), FAILURES),
)
GROUPS = st.builds(
    Group, key=st.just("k"), inputs=FIELDS, labels=FIELDS, rollouts=st.lists(ROLLOUTS, max_size=4).map(tuple)
)
SUMMARIES = st.dictionaries(st.tuples(st.just("k"), st.integers(0, 3)), TEXTS, max_size=2)


@given(st.lists(GROUPS, max_size=4), st.integers(1, 1500), st.booleans(), SUMMARIES)
@example([group()] * 8, 2, False, {})
@settings(max_examples=80, deadline=None)
def test_whatever_happened_the_text_is_bounded_and_holds_no_field_markers(
    groups: list[Group], tokens: int, with_labels: bool, summaries: dict[tuple[str, int], str]
) -> None:
    shown = render_groups(groups, max_tokens=tokens, with_labels=with_labels, summaries=summaries)
    assert estimate_tokens(shown) <= tokens
    assert "[[ ##" not in shown
    shown.encode()


@given(GROUPS)
@settings(max_examples=20, deadline=None)
def test_labels_are_not_shown_when_they_must_not(seen: Group) -> None:
    hidden = replace(seen, labels={"answer": "CANARY"})
    assert "CANARY" not in render_groups([hidden], max_tokens=1000, with_labels=False)
