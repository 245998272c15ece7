"""The command of the example programs: what it learns, saves, scores and prints, and what it says to a mistake."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dspy
import pytest

from programs.command import Application, models, run
from programs.country_records.__main__ import APPLICATION as COUNTRY_RECORDS
from programs.task import MissingDataError, Sizes, Splits, Task, exact_match
from tests.scripted import RULE, Shouting, examples
from tgrpo_dspy import Experience, ExperienceLibrary, save_library

TOY = Task(
    name="toy",
    source="made up",
    student=lambda: dspy.Predict("question -> answer"),
    metric=exact_match("answer"),
    splits=lambda seed, sizes: draw(sizes),
    sizes=Sizes(train=4, val=3, test=4, ood=2, batch_size=4, group_size=4),
)


def draw(sizes: Sizes) -> Splits:
    if sizes.train > 20:
        raise ValueError(f"asked for {sizes.train} examples of the 20 that there are to draw from")
    return Splits(
        train=examples(sizes.train, "train"),
        val=examples(sizes.val, "val"),
        test=examples(sizes.test, "test"),
        ood=examples(sizes.ood, "ood"),
    )


class Toy:
    """The toy task as an application, which says whether it is open."""

    def __init__(self) -> None:
        self.opened = 0
        self.application = Application(
            name="toy", about="A toy.", open=self.open, inputs=("question",), outputs=("answer",)
        )

    @contextmanager
    def open(self, args: argparse.Namespace) -> Iterator[Task]:
        self.opened += 1
        try:
            yield TOY
        finally:
            self.opened -= 1


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Shouting:
    """A scripted model in place of the local one."""
    model = Shouting(lucky=4)
    monkeypatch.setattr(models, "local_lm", lambda **kwargs: model.lm(**kwargs))
    monkeypatch.delenv("TGRPO_LM", raising=False)
    monkeypatch.delenv("TGRPO_REFLECTION_LM", raising=False)
    return model


def start(*arguments: str, folder: Path) -> int:
    toy = Toy()
    code = run(toy.application, [*arguments, "--run-dir", str(folder), "--threads", "1"])
    assert toy.opened == 0, "what the application opened must be closed"
    return code


def test_compile_saves_a_program_that_is_then_evaluated(
    model: Shouting, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert start("compile", "--quiet", folder=tmp_path) == 0
    printed = capsys.readouterr().out
    assert "LM calls" in printed and RULE in printed
    compiled = dspy.Predict("question -> answer")
    compiled.load(tmp_path / "compiled.json")
    assert RULE in compiled.signature.instructions
    assert RULE in (tmp_path / "experiences.md").read_text(encoding="utf-8")
    assert start("evaluate", "--program", str(tmp_path / "compiled.json"), folder=tmp_path) == 0
    found = json.loads((tmp_path / "evaluation.json").read_text(encoding="utf-8"))
    assert found["held-out"]["compiled"]["mean"] == {"mean": 1.0, "standard_error": 0.0, "n": 4}
    assert found["out-of-domain"]["compiled"]["mean"]["n"] == 2


def test_compare_scores_all_on_the_same_examples_and_a_second_time_costs_nothing(
    model: Shouting, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("compare", "--quiet", "--few-shot", "1", "--repeats", "2", "--temperature", "0.5")
    assert start(*arguments, folder=tmp_path) == 0
    calls, first = len(model.engine.calls), (tmp_path / "comparison.json").read_text(encoding="utf-8")
    printed = capsys.readouterr().out
    assert "LabeledFewShot(k=1)" in printed and "minus student" in printed and "Pass@2" in printed
    found = json.loads(first)["held-out"]
    assert found["student"]["mean"]["mean"] < found["compiled"]["mean"]["mean"] == 1.0
    assert [len(runs) for runs in found["student"]["scores"]] == [2] * 4
    assert start(*arguments, folder=tmp_path) == 0
    assert len(model.engine.calls) == calls


def test_an_estimate_asks_no_model(model: Shouting, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert start("compile", "--estimate", "--epochs", "2", folder=tmp_path) == 0
    assert "rollouts           32" in capsys.readouterr().out
    assert not model.engine.calls and not list(tmp_path.iterdir())


def test_a_budget_ends_it_and_the_same_command_goes_on(
    model: Shouting, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert start("compile", "--quiet", "--max-lm-calls", "5", folder=tmp_path) == 0
    assert "Stopped early (budget" in capsys.readouterr().out
    assert start("compile", "--quiet", folder=tmp_path) == 0
    assert RULE in capsys.readouterr().out


def test_a_library_of_another_program_can_be_tried(model: Shouting, tmp_path: Path) -> None:
    library = ExperienceLibrary((Experience(id="e1", text=RULE, target="elsewhere"),))
    save_library(library, tmp_path / "foreign.json")
    assert start("evaluate", "--library", str(tmp_path / "foreign.json"), folder=tmp_path) == 0
    found = json.loads((tmp_path / "evaluation.json").read_text(encoding="utf-8"))
    assert found["held-out"]["student with foreign"]["mean"]["mean"] == 1.0


def write(file: Path, *rows: dict[str, Any]) -> str:
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return str(file)


def test_files_of_the_users_own_take_the_place_of_the_data(model: Shouting, tmp_path: Path) -> None:
    rows = [{"question": f"mine {i}", "answer": f"MINE {i}", "note": "x"} for i in range(6)]
    train, test = write(tmp_path / "mine.jsonl", *rows), write(tmp_path / "test.jsonl", *rows[:2])
    code = start("compare", "--quiet", "--train", train, "--val", "2", "--test", test, "--ood", "0", folder=tmp_path)
    assert code == 0
    asked = {call.fields["question"] for call in model.runs}
    assert asked == {row["question"] for row in rows}
    found = json.loads((tmp_path / "comparison.json").read_text(encoding="utf-8"))
    assert set(found) == {"held-out"} and found["held-out"]["student"]["mean"]["n"] == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("compile", "--train", "nowhere.jsonl"), "nowhere.jsonl"),
        (("compile", "--train", "{folder}/bad.jsonl"), "there is no answer; there is question, reply"),
        (("compile", "--train", "{folder}/few.jsonl"), "give fewer with --val"),
        (("compile", "--train", "21"), "asked for 21 examples of the 20"),
        (("compile", "--group-size", "0"), "group_size"),
        (("evaluate", "--program", "{folder}/compiled.pkl"), "must be a .json file"),
        (("evaluate", "--program", "{folder}/missing.json"), "missing.json"),
        (("evaluate", "--library", "{folder}/bad.jsonl"), "bad.jsonl"),
        (("compile", "--lm", "openai/gpt-4o-mini"), "needs OPENAI_API_KEY"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(
    arguments: tuple[str, ...],
    says: str,
    model: Shouting,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    write(tmp_path / "bad.jsonl", {"question": "q", "reply": "a"})
    write(tmp_path / "few.jsonl", {"question": "q", "answer": "a"})
    assert start(*(argument.format(folder=tmp_path) for argument in arguments), "--quiet", folder=tmp_path / "run") == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and says in error and "Traceback" not in error
    assert not model.engine.calls


@pytest.mark.parametrize("value", ["many", "-3"])
def test_a_set_is_a_number_or_a_file(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(Toy().application, ["compile", f"--train={value}"])
    assert "neither a number nor a file name" in capsys.readouterr().err


def test_missing_data_of_the_program_is_told_before_a_model_is_needed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(seed: int, sizes: Sizes) -> Splits:
        raise MissingDataError("toys.jsonl is not there. Get it from the shop.")

    @contextmanager
    def open_it(args: argparse.Namespace) -> Iterator[Task]:
        yield Task(name="toy", source="", student=TOY.student, metric=TOY.metric, splits=missing)

    application = Application(name="toy", about="", open=open_it, inputs=("question",), outputs=("answer",))
    assert run(application, ["evaluate", "--run-dir", str(tmp_path)]) == 1
    assert "Get it from the shop" in capsys.readouterr().err


def test_an_interruption_is_no_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(**kwargs: Any) -> dspy.LM:
        raise KeyboardInterrupt

    monkeypatch.setattr(models, "local_lm", interrupt)
    monkeypatch.delenv("TGRPO_LM", raising=False)
    assert start("evaluate", folder=tmp_path) == 130
    assert "goes on from here" in capsys.readouterr().err


def test_country_records_has_real_data_and_no_options_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        run(COUNTRY_RECORDS, ["compile", "--estimate", "--train", "8", "--val", "6", "--run-dir", str(tmp_path)]) == 0
    )
    assert "rollouts           40" in capsys.readouterr().out
