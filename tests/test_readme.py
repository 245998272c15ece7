"""The README's example is run as it is pasted, on the scripted engine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import dspy
import pytest

from tests.scripted import RULE, Shouting, examples

README = Path(__file__).parent.parent / "README.md"


def test_the_example_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    model = Reasoning()
    lm = model.lm()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(dspy, "LM", lambda name: lm)
    monkeypatch.setattr(dspy, "configure", lambda **settings: None)
    data = {
        f"MY_{name}_DATA": [(e.question, e.answer) for e in examples(3, name.lower())]
        for name in ("TRAINING", "VALIDATION")
    }
    with dspy.context(lm=lm):
        exec(compile(code, "README.md", "exec"), {**data})
    assert RULE in capsys.readouterr().out
    again = dspy.ChainOfThought("question -> answer")
    again.load("compiled.json")
    assert RULE in again.predict.signature.instructions


class Reasoning(Shouting):
    def __call__(self, call: Any) -> dict[str, str]:
        answer = super().__call__(call)
        return {"reasoning": "because", **answer} if "reasoning" in call.asks_for else answer
