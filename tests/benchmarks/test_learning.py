"""Cells are measured once, go on after a failure, cost the same whatever ran before, and make the table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy.utils.exceptions import LMAuthError

from benchmarks.cells import Cell, Models, is_measured, measure
from benchmarks.charging import charging
from benchmarks.compare import main, measure_missing
from benchmarks.learning import ABLATIONS, VARIANTS
from benchmarks.rows import read
from benchmarks.tables import table
from benchmarks.variants import Bench, Demonstrations, MissingFeatureError, Ours, UnfinishedError
from programs.task import Sizes, Splits, Task, exact_match
from tests.scripted import RULE, Shouting, examples
from tgrpo_dspy import LMUnavailableError
from tgrpo_dspy.runs.usage import UsageLedger
from tgrpo_dspy.testing import Call

SIZES = Sizes(train=4, val=3, test=3, ood=2, batch_size=2, epochs=1, group_size=3)


def draw(seed: int, sizes: Sizes) -> Splits:
    return Splits(
        train=examples(sizes.train, f"train {seed}"),
        val=examples(sizes.val, f"val {seed}"),
        test=examples(sizes.test, "test"),
        ood=examples(sizes.ood, "elsewhere"),
    )


TOY = Task(
    name="toy",
    source="made up",
    student=lambda: dspy.Predict("question -> answer"),
    metric=exact_match("answer"),
    splits=draw,
    sizes=SIZES,
)


class Model(Shouting):
    """The model of the toy task, which can also write rules from a description; its key is refused from a call on."""

    def __init__(self, dies_at: int = 10**6) -> None:
        super().__init__()
        self.dies_at, self.answered = dies_at, 0

    def __call__(self, call: Call) -> dict[str, str]:
        if call.number >= self.dies_at:
            raise LMAuthError("the key is refused")
        self.answered += 1
        return {"rules": RULE} if "count" in call.fields else super().__call__(call)


def cell(variant: str, model: Model, seed: int = 0, **lm: Any) -> Cell:
    models = Models(lm="test/scripted", reflection_lm=None, open=lambda: (model.lm(**lm), None))
    return Cell(task=TOY, variant=variant, seed=seed, sizes=SIZES, models=models)


def run(*cells: Cell, folder: Path) -> int:
    return measure_missing(cells, out=folder / "results", runs=folder / "runs", threads=1)


def result(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "results" / f"{name}.json").read_text(encoding="utf-8"))
    return found


def calls(found: dict[str, Any], what: str) -> int:
    return sum(usage["calls"] for usage in found[what].values())


def test_a_cell_is_measured_once(tmp_path: Path) -> None:
    model = Model()
    assert run(cell("full", model), folder=tmp_path) == 0
    found = result(tmp_path, "toy-full-0")
    assert found["scores"] == {"validation": [1.0] * 3, "held-out": [1.0] * 3, "out-of-domain": [1.0] * 2}
    assert [len(keys) for keys in found["items"].values()] == [3, 3, 2]
    assert found["library"] == [RULE] and found["demos"] == {"self": []}
    assert found["sizes"]["train"] == 4 and found["settings"]["sampling"]["solved_score"] == 1.0
    assert set(found["versions"]) == {"tgrpo_dspy", "dspy", "python"}
    assert found["prompt_tokens_per_call"]["estimated"] > 50 < found["prompt_tokens_per_call"]["provider"]
    assert [step["validation"] for step in found["course"]["steps"]] == [1.0, 1.0]
    before = len(model.engine.calls)
    assert run(cell("full", model), folder=tmp_path) == 0
    assert len(model.engine.calls) == before


def test_a_file_of_other_sizes_or_another_model_is_not_taken_for_the_cell(tmp_path: Path) -> None:
    run(cell("student", Model()), folder=tmp_path)
    other = Models(lm="test/other", reflection_lm=None, open=lambda: pytest.fail("no model is needed"))
    with pytest.raises(ValueError, match=r"another lm and sizes; use another --out"):
        is_measured(Cell(task=TOY, variant="student", seed=0, sizes=Sizes(), models=other), folder=tmp_path / "results")


@pytest.mark.parametrize("variant", ["student", "paper", "full", "direct", "labeled_fewshot_2", "bootstrap_fewshot"])
def test_every_call_is_counted_the_same_way(variant: str, tmp_path: Path) -> None:
    model = Model()
    assert run(cell(variant, model), folder=tmp_path) == 0
    found = result(tmp_path, f"toy-{variant}-0")
    assert calls(found, "usage") + calls(found, "scoring_usage") == len(model.engine.calls)
    tokens = sum(u["prompt_tokens"] for what in ("usage", "scoring_usage") for u in found[what].values())
    assert tokens == sum(len(call.text) // 4 for call in model.engine.calls)
    assert found["this_try"]["from_cache"] == 0


def test_a_cell_costs_the_same_whatever_ran_before(tmp_path: Path) -> None:
    model = Model()
    run(cell("full", model), cell("full", model, seed=1), folder=tmp_path)
    paid = len(model.engine.calls)
    again = tmp_path / "again"
    run(cell("full", model), cell("full", model, seed=1), folder=again)
    assert len(model.engine.calls) == paid, "all of it is in DSPy's cache"
    for seed in (0, 1):
        first, second = result(tmp_path, f"toy-full-{seed}"), result(again, f"toy-full-{seed}")
        assert second["usage"] == first["usage"] and second["this_try"]["from_cache"] > 0
        assert (second["scores"], second["library"]) == (first["scores"], first["library"])


def test_an_answer_is_charged_once_a_cell() -> None:
    model, totals = Model(), []
    for _ in range(2):
        ledger = UsageLedger()
        with dspy.context(lm=model.lm()), charging() as cache, ledger.count("rollout"):
            for question in ("one", "two", "one"):
                dspy.Predict("question -> answer")(question=question)
        totals.append((ledger.total()["rollout"], cache.charged))
    (first, charged_first), (second, charged_second) = totals
    assert first == second and (first.calls, first.cached) == (2, 1)
    assert (charged_first, charged_second) == (0, 2) and len(model.engine.calls) == 2


def test_an_interrupted_cell_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = Model()
    run(cell("paper", whole, cache=False), folder=tmp_path / "whole")
    broken = Model(dies_at=8)
    assert run(cell("paper", broken, cache=False), folder=tmp_path) == 1
    assert "toy-paper-0" in capsys.readouterr().err and not list((tmp_path / "results").glob("*"))
    later = Model()
    assert run(cell("paper", later, cache=False), folder=tmp_path) == 0
    assert broken.answered == 8 and broken.answered + later.answered == whole.answered
    found = result(tmp_path, "toy-paper-0")
    assert found["this_try"]["resumed"] and found["usage"]["rollout"]["calls"] == 12


@pytest.mark.parametrize("variant", ["student", "bootstrap_fewshot"])
def test_a_failing_model_is_no_score(variant: str, tmp_path: Path) -> None:
    with pytest.raises((UnfinishedError, LMUnavailableError)):
        measure(cell(variant, Model(dies_at=3)), VARIANTS[variant], out=tmp_path, runs=tmp_path, threads=2)
    assert not list(tmp_path.glob("*.json"))


def test_one_cell_that_fails_does_not_keep_the_others_from_being_measured(tmp_path: Path) -> None:
    model = Model()
    assert run(cell("full", Model(dies_at=0)), cell("student", model), folder=tmp_path) == 1
    assert [found["variant"] for found in read(tmp_path / "results")] == ["student"]


def bench(folder: Path) -> Bench:
    return Bench(
        task=TOY,
        data=draw(0, SIZES),
        seed=0,
        sizes=SIZES,
        lm=Model().lm(),
        reflection_lm=None,
        threads=1,
        run_dir=folder,
    )


ALL = {**VARIANTS, **ABLATIONS}


@pytest.mark.parametrize("name", [name for name, variant in ALL.items() if hasattr(variant, "optimizer")])
def test_every_variant_makes_an_optimizer_with_its_settings(name: str, tmp_path: Path) -> None:
    variant = ALL[name]
    assert isinstance(variant, Ours | Demonstrations)
    optimizer = variant.optimizer(bench(tmp_path))
    for setting, value in variant.settings.items():
        found = getattr(optimizer, setting)
        if callable(value):
            assert all(getattr(found, part) is not None for part in value())
        elif isinstance(value, dict):
            assert {part: getattr(found, part) for part in value} == value
        else:
            assert found == value


def test_a_variant_that_the_package_is_too_old_for_says_so(tmp_path: Path) -> None:
    with pytest.raises(MissingFeatureError, match="wings"):
        Ours("of a later version", {"limits": {"wings": 2}}).optimizer(bench(tmp_path))


def test_the_table_is_made_from_the_files(tmp_path: Path) -> None:
    run(*(cell(variant, Model(), seed) for variant in ("student", "full") for seed in (0, 1)), folder=tmp_path)
    run(cell("paper", Model()), folder=tmp_path)
    lines = table(read(tmp_path / "results"), ["student", "paper", "full"], [0, 1, 2]).splitlines()
    assert lines[:3] == [
        "### toy",
        "",
        "made up. test/scripted; train 4, val 3, test 3, ood 2, batch_size 2, epochs 1, group_size 3.",
    ]
    rows = {row[0]: dict(zip(lines[4].strip("| ").split(" | "), row, strict=True)) for row in map(split, lines[6:9])}
    full = rows["full"]
    assert full["seeds"] == "0 1" and full["held-out"] == "1.000 ± 0.000 (1.000, 1.000)"
    assert full["held-out - paper"] == "+0.000 ± 0.000 (0/3/0; p=1)"
    assert full["held-out - student"].startswith("+0.") and "/0; p=" in full["held-out - student"]
    assert full["seconds"].isdigit() and rows["student"]["held-out - student"] == "-"
    assert rows["paper"]["seeds"] == "0" and int(rows["full"]["LM calls"]) > 12
    assert lines[-1] == "Missing: student 2, paper 1, paper 2, full 2."


def split(line: str) -> list[str]:
    return line.strip("| ").split(" | ")


def test_results_measured_before_there_were_budgets_can_be_read(tmp_path: Path) -> None:
    run(cell("student", Model()), folder=tmp_path)
    file = tmp_path / "results" / "toy-student-0.json"
    found = result(tmp_path, "toy-student-0")
    for name in ("spent", "refused"):
        del found["this_try"][name]
    file.write_text(json.dumps(found), encoding="utf-8")
    assert "budget" not in found and is_measured(cell("student", Model()), tmp_path / "results")
    assert "| student | 0 |" in table(read(tmp_path / "results"), ["student"], [0])


def test_results_of_two_models_make_no_table(tmp_path: Path) -> None:
    run(cell("student", Model()), folder=tmp_path)
    one = result(tmp_path, "toy-student-0")
    with pytest.raises(ValueError, match="cannot be compared"):
        table([one, {**one, "lm": "another", "seed": 1}], ["student"], [0, 1])


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", str(tmp_path)]
    assert main(["--table", "--task", "snarks", *out]) == 0
    assert "Nothing is measured yet" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(out)
    nowhere = ["--data-dir", str(tmp_path / "nowhere")]
    assert main(["--task", "snarks", "--variants", "student", "--seeds", "0", *out, *nowhere]) == 1
    assert "snarks.json is not there. Get it from https://" in capsys.readouterr().err
