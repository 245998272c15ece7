"""Scoring a program as it is: repeats, failures, tool calls, budgets, and nothing paid for twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dspy
import pytest

from tests.scripted import RULE, Model, exact, examples
from tgrpo_dspy import (
    Budget,
    ConfigurationError,
    Experience,
    ExperienceLibrary,
    LMUnavailableError,
    Performance,
    Sampling,
    evaluate,
    inject,
)
from tgrpo_dspy.testing import Call

LIBRARY = ExperienceLibrary((Experience(id="e1", text=RULE),))


class Moody(Model):
    """Right with the rule; without it in every other call. Says nothing that can be parsed to question number 0."""

    def __call__(self, call: Call) -> Any:
        question = call.fields["question"]
        if question.endswith(" 0") and RULE not in call.system:
            return "no idea"
        return {"answer": question.upper() if RULE in call.system or call.number % 2 else question}


def look(where: str) -> str:
    """Look somewhere."""
    if where == "nowhere":
        raise ValueError("there is no such place")
    return "nothing"


class Looking(Model):
    """Looks once in the cellar and once nowhere, then answers."""

    def __call__(self, call: Call) -> dict[str, Any]:
        done = call.text.count("[[ ## observation_") + call.user.count("observation_")
        step = ("look", {"where": "cellar"}) if not done else ("look", {"where": "nowhere"})
        tool, arguments = step if "no such place" not in call.user else ("finish", {})
        values = {"next_thought": "so", "next_tool_name": tool, "next_tool_args": arguments}
        return {name: values.get(name, call.fields.get("question", "").upper()) for name in call.asks_for}


def score(model: Model, program: dspy.Module, count: int = 4, *, cache: bool = True, **settings: Any) -> Performance:
    with dspy.context(
        lm=model.lm(temperature=0.7, cache=cache), adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)
    ):
        return evaluate(program, devset=examples(count), metric=exact, num_threads=1, **settings)


def test_a_program_is_scored_as_it_is_and_compared_example_by_example() -> None:
    student = dspy.Predict("question -> answer")
    plain, compiled = score(Moody(), student), score(Moody(), inject(student, LIBRARY))
    assert (plain.mean.mean, compiled.mean.mean) == (0.5, 1.0)
    assert plain.failures == {"parse": 1} and not compiled.failures
    difference = compiled.minus(plain)
    assert (difference.mean, difference.wins, difference.ties, difference.losses) == (0.5, 2, 2, 0)


def test_repeats_are_runs_of_their_own() -> None:
    model = Moody()
    done = score(model, dspy.Predict("question -> answer"), repeats=3, sampling=Sampling(failure_score=0.0))
    assert len(model.runs) == 12
    assert [len(scores) for scores in done.scores] == [3, 3, 3, 3]
    assert done.scores[0] == (0.0, 0.0, 0.0)
    assert done.pass_at(3).mean == 0.75 > done.mean.mean
    assert done.usage["evaluation"].calls == 12


def test_tool_calls_count_also_when_they_fail() -> None:
    done = score(Looking(), dspy.ReAct("question -> answer", tools=[look], max_iters=5), 2)
    assert done.tool_calls.mean == 2.0
    assert done.mean.mean == 1.0


def test_what_a_folder_keeps_is_not_run_again(tmp_path: Path) -> None:
    model, student = Moody(), dspy.Predict("question -> answer")
    first = score(model, student, cache=False, run_dir=tmp_path)
    calls = len(model.runs)
    again = score(model, student, cache=False, run_dir=tmp_path)
    assert again.scores == first.scores and len(model.runs) == calls
    score(model, student, cache=False)
    assert len(model.runs) > calls


def test_a_budget_ends_it_and_says_so() -> None:
    done = score(Moody(), dspy.Predict("question -> answer"), budget=Budget(max_rollouts=2))
    assert [len(runs) for runs in done.runs] == [1, 1, 0, 0]
    assert done.stopped_by is not None and "max_rollouts" in done.stopped_by
    assert done.mean.n == 2


def test_an_lm_that_fails_is_an_error_and_no_score() -> None:
    class Down(Model):
        def __call__(self, call: Call) -> Any:
            raise ConnectionError("no route")

    with pytest.raises(LMUnavailableError):
        score(Down(), dspy.Predict("question -> answer"), sampling=Sampling(lm_retries=0, max_lm_failures=3))


@pytest.mark.parametrize(("settings", "says"), [({"repeats": 0}, "repeats"), ({"count": 0}, "devset")])
def test_bad_input_names_the_argument(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        score(Moody(), dspy.Predict("question -> answer"), **settings)
