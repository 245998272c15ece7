"""The command of math_reasoning: with the Python tool, without it, and what it says when data is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("math_verify")

from programs.command import models, run
from programs.math_reasoning.__main__ import APPLICATION
from tests.scripted import Model
from tgrpo_dspy.testing import Call


class Reckoner(Model):
    """Runs the question as a program where it has a tool, and answers what it saw; else it answers 6."""

    def __call__(self, call: Call) -> dict[str, Any]:
        observed = call.fields.get("observation_0")
        values = {
            "reasoning": "so",
            "next_thought": "count",
            "next_tool_name": "finish" if observed else "python",
            "next_tool_args": {} if observed else {"code": f"print({call.fields['question']})"},
            "answer": observed or "6",
        }
        return {name: values[name] for name in call.asks_for}


@pytest.fixture
def problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(models, "local_lm", lambda **kwargs: Reckoner().lm())
    monkeypatch.delenv("TGRPO_LM", raising=False)
    rows = [{"question": "2 * 3", "answer": "6.0"}, {"question": "21 * 2", "answer": "42"}]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return str(tmp_path / "mine.jsonl")


@pytest.mark.parametrize(("interpreter", "score", "tool_calls"), [("none", 0.5, 0.0), ("monty", 1.0, 1.0)])
def test_with_and_without_the_tool(
    interpreter: str, score: float, tool_calls: float, problems: str, tmp_path: Path
) -> None:
    if interpreter == "monty":
        pytest.importorskip("pydantic_monty")
    arguments = ["--test", problems, "--ood", "0", "--quiet", "--run-dir", str(tmp_path)]
    assert run(APPLICATION, ["evaluate", "--interpreter", interpreter, *arguments]) == 0
    found = json.loads((tmp_path / "evaluation.json").read_text(encoding="utf-8"))["held-out"]["student"]
    assert (found["mean"]["mean"], found["tool_calls"]["mean"]) == (score, tool_calls)


def test_problems_that_are_nowhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("programs.math_reasoning.data._from_hub", unreachable)
    assert run(APPLICATION, ["evaluate", "--interpreter", "none", "--data-dir", str(tmp_path)]) == 1
    assert "no network" in capsys.readouterr().err


def unreachable(*arguments: Any) -> Any:
    raise ConnectionError("no network")
