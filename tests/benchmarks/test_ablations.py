"""The ablations change one decision each, and are measured and shown like everything else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import ablations
from benchmarks.learning import ABLATIONS
from benchmarks.variants import Ours
from programs.task import Sizes
from tests.benchmarks.test_learning import Model, bench, cell, result, run
from tests.scripted import RULE
from tgrpo_dspy.testing import Call


def changed(name: str, folder: Path) -> dict[str, Any]:
    """What an ablation sets differently from all defaults."""
    full, ablated = ABLATIONS["full"], ABLATIONS[name]
    assert isinstance(full, Ours) and isinstance(ablated, Ours)
    given = replace(bench(folder), sizes=Sizes())
    one, other = full.optimizer(given).get_params(), ablated.optimizer(given).get_params()
    parts = {}
    for setting, value in one.items():
        theirs = other[setting]
        fields = getattr(value, "__dataclass_fields__", None)
        if fields is None:
            parts |= {setting: theirs} if value != theirs else {}
        else:
            parts |= {part: getattr(theirs, part) for part in fields if getattr(value, part) != getattr(theirs, part)}
    return parts


@pytest.mark.parametrize("name", [name for name, variant in ABLATIONS.items() if isinstance(variant, Ours)])
def test_an_ablation_changes_one_thing(name: str, tmp_path: Path) -> None:
    assert len(changed(name, tmp_path)) == (0 if name == "full" else 1)


def test_reflection_without_demonstrations_is_shown_none(tmp_path: Path) -> None:
    shown = {}
    for name in ("full", "no_demonstrations"):
        model = Model()
        assert run(cell(name, model), folder=tmp_path) == 0
        shown[name] = model.reflections[0].text
        assert result(tmp_path, f"toy-{name}-0")["library"] == [RULE]
    assert "lapwing" in shown["full"] and "lapwing" not in shown["no_demonstrations"]


class Divided(Model):
    """Proposes two lessons that overlap, and reconciles what it is asked to."""

    def __call__(self, call: Call) -> dict[str, str]:
        if "proposals" in call.fields:
            return {"edits": '[{"operation": "ADD", "lesson": "Shout it."}]'}
        answer = super().__call__(call)
        if "rules" in answer and "attempts" in call.fields:
            return {
                **answer,
                "rules": "Write the answer in capital letters only.\nWrite the answer in capital letters.",
            }
        return answer


def test_without_curation_what_overlaps_is_all_kept(tmp_path: Path) -> None:
    libraries = {}
    for name in ("full", "no_curation"):
        assert run(cell(name, Divided()), folder=tmp_path) == 0
        libraries[name] = result(tmp_path, f"toy-{name}-0")["course"]["steps"][0]["experiences"]
    assert libraries["full"] == ["Shout it."]
    assert len(libraries["no_curation"]) == 2


def test_the_command_shows_the_ablations_beside_all_defaults(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("full", "no_failures"):
        run(cell(name, Model()), folder=tmp_path)
    assert ablations.main(["--table", "--seeds", "0", "--out", str(tmp_path / "results")]) == 0
    shown = capsys.readouterr().out
    assert "| held-out - full |" in shown and "| no_failures | 0 |" in shown
    assert "Missing: no_ground_truth 0" in shown and "GEPA" not in shown
