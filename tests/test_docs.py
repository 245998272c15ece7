"""The examples in the documents are run as they are pasted, on the scripted engine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import dspy
import pytest

from tests.scripted import RULE, Shouting, examples

ROOT = Path(__file__).parent.parent


class Reasoning(Shouting):
    def __call__(self, call: Any) -> dict[str, str]:
        answer = super().__call__(call)
        return {"reasoning": "because", **answer} if "reasoning" in call.asks_for else answer


def run_examples(document: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> dict[str, Any]:
    """Run every Python block of a document in one namespace and return it."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    lm = Reasoning().lm()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(dspy, "LM", lambda name: lm)
    monkeypatch.setattr(dspy, "configure", lambda **settings: None)
    space: dict[str, Any] = {
        f"MY_{name}_DATA": [(e.question, e.answer) for e in examples(3, name.lower())]
        for name in ("TRAINING", "VALIDATION")
    }
    with dspy.context(lm=lm, num_threads=1):
        for block in blocks:
            exec(compile(block, document, "exec"), space)
    return space


def test_the_readme(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_examples("README.md", monkeypatch, tmp_path)
    assert RULE in capsys.readouterr().out
    again = dspy.ChainOfThought("question -> answer")
    again.load(tmp_path / "compiled.json")
    assert RULE in again.predict.signature.instructions


def test_owning_the_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    space = run_examples("docs/editing.md", monkeypatch, tmp_path)
    assert [e.text for e in space["library"]] == [RULE, "Answer in one line."]
    assert "[e2] Answer in one line." in space["compiled"].predict.signature.instructions
    assert [e.text for e in space["merged"]] == [RULE, "Answer in one line.", "Name the source."]
    assert "Name the source." in space["other"].predict.signature.instructions


def test_runs_you_can_trust(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    learn = (ROOT / "README.md").read_text(encoding="utf-8").split("## What to expect")[0]
    (tmp_path / "both.md").write_text(learn + (ROOT / "docs/running.md").read_text(encoding="utf-8"), encoding="utf-8")
    space = run_examples(str(tmp_path / "both.md"), monkeypatch, tmp_path)
    assert space["optimizer"].report.stopped_by is None
    assert {"settings.json", "store", "libraries", "events.jsonl", "report.json", "report.md"} <= {
        path.name for path in (tmp_path / "runs" / "first").iterdir()
    }
    assert "LM calls" in capsys.readouterr().out


def test_learning_that_helps(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    learn = (ROOT / "README.md").read_text(encoding="utf-8").split("## What to expect")[0]
    (tmp_path / "both.md").write_text(learn + (ROOT / "docs/learning.md").read_text(encoding="utf-8"), encoding="utf-8")
    run_examples(str(tmp_path / "both.md"), monkeypatch, tmp_path)
    assert "True the best so far" in capsys.readouterr().out


def test_your_own_program_in_ten_minutes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    space = run_examples("docs/your_own_program.md", monkeypatch, tmp_path)
    assert RULE in space["fresh"].predict.signature.instructions
    assert space["change"].mean > 0
    assert RULE in capsys.readouterr().out
