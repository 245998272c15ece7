"""The command ``tgrpo`` on files that real programs and runs have saved."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import dspy
import pytest

from tests.scripted import RULE, Shouting, exact, examples
from tgrpo_dspy import Experience, ExperienceLibrary, TrainingFreeGRPO, inject, load_library, read_library, save_library
from tgrpo_dspy.cli import main
from tgrpo_dspy.library import Evidence

LEARNED = ExperienceLibrary(
    (
        Experience(
            id="e1",
            text="Write dates as YYYY-MM-DD.",
            created=1,
            changed=2,
            proposed=3,
            effect=0.25,
            evidence=(Evidence(example="abc", rewards=(0.0, 1.0)),),
        ),
        Experience(id="e4", text="Name the source.", target="answer", created=2, changed=2),
    ),
    next_number=6,
)


class Two(dspy.Module):
    """A program of two predictors."""

    def __init__(self) -> None:
        super().__init__()
        self.draft = dspy.ChainOfThought("question -> draft")
        self.answer = dspy.Predict("question, draft -> answer")


def saved(program: dspy.Module, path: Path) -> str:
    program.save(str(path))
    return str(path)


@pytest.fixture
def library(tmp_path: Path) -> str:
    save_library(LEARNED, tmp_path / "library.json")
    return str(tmp_path / "library.json")


@pytest.fixture
def program(tmp_path: Path) -> str:
    return saved(inject(Two(), LEARNED), tmp_path / "program.json")


Capture = pytest.CaptureFixture[str]


def output(capsys: Capture, *arguments: object) -> str:
    assert main([str(a) for a in arguments]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def error(capsys: Capture, *arguments: object) -> str:
    """The one line on stderr of a command that fails."""
    assert main([str(a) for a in arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("tgrpo: ") and err.count("\n") == 1
    return err


def test_show_prints_lessons_by_target_with_what_is_known_of_them(library: str, program: str, capsys: Capture) -> None:
    out = output(capsys, "show", library)
    assert "(library): 2 experiences" in out
    assert "step 1, changed in step 2, proposed 3 times, 1 group, effect +0.250" in out
    assert out.index("YYYY-MM-DD") < out.index("for answer:") < out.index("[e4] Name the source.")
    out = output(capsys, "show", program)
    assert "(program): 2 experiences; predictors: draft.predict, answer" in out and "proposed" not in out


def test_show_as_json(library: str, program: str, capsys: Capture) -> None:
    data = json.loads(output(capsys, "show", program, "--json"))
    assert data["kind"] == "program" and data["predictors"] == ["draft.predict", "answer"]
    assert [(e["id"], e["text"], e["target"]) for e in data["experiences"]] == [
        ("e1", "Write dates as YYYY-MM-DD.", None),
        ("e4", "Name the source.", "answer"),
    ]
    assert json.loads(output(capsys, "show", library, "--json"))["experiences"][0]["effect"] == 0.25


def test_a_program_of_one_bare_predictor(tmp_path: Path, library: str, capsys: Capture) -> None:
    path = saved(
        inject(dspy.Predict("question -> answer"), ExperienceLibrary(LEARNED.experiences[:1])), tmp_path / "p.json"
    )
    assert "predictors: self" in output(capsys, "show", path)


def test_diff_tells_what_was_added_removed_changed_and_moved(tmp_path: Path, library: str, capsys: Capture) -> None:
    text = "- [e1] Write dates as ISO 8601.\n- [e4] Name the source.\n- Be brief.\n"
    (tmp_path / "edited.md").write_text(text, encoding="utf-8")
    lines = output(capsys, "diff", library, tmp_path / "edited.md").splitlines()
    assert lines == [
        "~ [e1] Write dates as YYYY-MM-DD. -> Write dates as ISO 8601.",
        "~ [e4] Name the source. (for all, was for answer)",
        "+ Be brief.",
    ]
    back = json.loads(output(capsys, "diff", tmp_path / "edited.md", library, "--json"))
    assert [edit["operation"] for edit in back] == ["DELETE", "UPDATE", "UPDATE"]
    assert output(capsys, "diff", library, library) == "no difference\n"


def test_merge_keeps_the_ids_of_the_first_and_joins_what_is_equal(
    tmp_path: Path, library: str, capsys: Capture
) -> None:
    theirs = ExperienceLibrary(
        (
            Experience(id="e1", text="Be brief."),
            Experience(id="e2", text="write dates as yyyy-mm-dd."),
            Experience(id="e3", text="word " * 40 + "end"),
        )
    )
    save_library(theirs, tmp_path / "theirs.json")
    out = output(capsys, "merge", library, tmp_path / "theirs.json", "-o", tmp_path / "merged.json")
    assert "3 experiences" in out and "refused: word" in out
    merged = load_library(tmp_path / "merged.json")
    assert [(e.id, e.text) for e in merged] == [*((e.id, e.text) for e in LEARNED), ("e6", "Be brief.")]
    assert merged["e1"].proposed == 4
    output(capsys, "merge", library, library, "-o", tmp_path / "merged.md", "--json")
    assert (tmp_path / "merged.md").read_text(encoding="utf-8").startswith("# Experiences")
    assert load_library(library) == LEARNED


def test_apply_puts_a_library_into_a_program_that_then_loads_with_it(
    tmp_path: Path, library: str, capsys: Capture
) -> None:
    old = ExperienceLibrary((Experience(id="e9", text="An old lesson."),))
    source = saved(inject(Two(), old), tmp_path / "old.json")
    before = Path(source).read_bytes()
    out = output(capsys, "apply", source, library, "-o", tmp_path / "new.json")
    assert "carries 2 experiences, in draft.predict, answer" in out
    loaded = Two()
    loaded.load(str(tmp_path / "new.json"))
    expected = inject(Two(), LEARNED)
    instructions = [p.signature.instructions for p in loaded.predictors()]
    assert instructions == [p.signature.instructions for p in expected.predictors()]
    assert [e.text for e in read_library(loaded)] == [e.text for e in LEARNED]
    assert Path(source).read_bytes() == before


def test_applied_state_differs_from_the_saved_one_in_the_instructions_only(
    tmp_path: Path, library: str, capsys: Capture
) -> None:
    plain = Two()
    plain.answer.demos = [dspy.Example(question="naïve?", draft="d", answer="a").with_inputs("question", "draft")]
    source = saved(plain, tmp_path / "plain.json")
    output(capsys, "apply", source, library, "-o", tmp_path / "with.json")
    output(capsys, "strip", tmp_path / "with.json", "-o", tmp_path / "without.json", "--json")

    def read(name: str) -> Any:
        return json.loads((tmp_path / name).read_text(encoding="utf-8"))

    assert read("with.json") != read("plain.json") == read("without.json")


def test_apply_refuses_a_library_for_another_program(tmp_path: Path, library: str, capsys: Capture) -> None:
    other = saved(dspy.ChainOfThought("question -> answer"), tmp_path / "other.json")
    message = error(capsys, "apply", other, library, "-o", tmp_path / "out.json")
    assert "other.json: experience e4 is for predictor 'answer', but the program has predict" in message
    assert not (tmp_path / "out.json").exists()
    assert "is not a saved program" in error(capsys, "strip", library, "-o", tmp_path / "out.json")


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("text", "Write dates as YYYY-MM-DD.\nanswer: Name the source.\n"),
        ("markdown", "# Experiences\n\n- [e1] Write dates as YYYY-MM-DD.\n\n## answer\n\n- [e4] Name the source.\n"),
    ],
)
def test_export(library: str, tmp_path: Path, capsys: Capture, form: str, expected: str) -> None:
    assert output(capsys, "export", library, "--format", form) == expected
    assert output(capsys, "export", library, "--format", form, "-o", tmp_path / "out") == ""
    assert (tmp_path / "out").read_text(encoding="utf-8") == expected


def test_what_is_exported_can_be_read_again(library: str, tmp_path: Path, capsys: Capture) -> None:
    output(capsys, "export", library, "--format", "json", "-o", tmp_path / "again.json")
    assert load_library(tmp_path / "again.json") == LEARNED
    output(capsys, "export", library, "--format", "markdown", "-o", tmp_path / "again.md")
    assert output(capsys, "diff", library, tmp_path / "again.md") == "no difference\n"


def test_a_run_is_shown_and_reported_from_its_folder(tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "run"
    optimizer = TrainingFreeGRPO(metric=exact, epochs=1, group_size=2, num_threads=1)
    with dspy.context(lm=Shouting().lm()):
        student = dspy.Predict("question -> answer")
        optimizer.compile(student, trainset=examples(2), run_dir=folder, verbose=False)
    capsys.readouterr()
    assert RULE in output(capsys, "show", folder)
    (folder / "report.html").unlink()
    assert output(capsys, "report", folder).strip() == str(folder / "report.html")
    assert output(capsys, "report", folder, "-o", tmp_path / "page.html").strip() == str(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_bytes() == (folder / "report.html").read_bytes()
    (folder / "report.json").unlink()
    assert "its step 1" in output(capsys, "show", folder)
    assert "report.json is not there" in error(capsys, "report", folder)


BROKEN = [
    ("missing.json", None, "No such file"),
    ("empty.json", b"", "not whole JSON"),
    ("cut.json", b'{"format": "tgrpo_dspy.library", "vers', "was it cut off?"),
    ("list.json", b"[1, 2]", "neither a saved program"),
    ("other.json", b'{"model": {"weights": []}}', "neither a saved program"),
    ("deep.json", b"[" * 100_000, "not whole JSON"),
    (
        "newer.json",
        b'{"format": "tgrpo_dspy.library", "version": 99, "next_number": 1, "experiences": []}',
        "version 99",
    ),
    ("foreign.json", b'{"format": "another", "version": 1}', "not an experience library"),
    ("image.json", b"\xff\xd8\xff\xe0", "not a text file"),
    ("loose.md", b"Some prose.", "line 1 of the Markdown"),
    ("program.pkl", b"anything", "is a pickle"),
    ("renamed.json", b"\x80\x04\x95\x10", "is a pickle"),
]


@pytest.mark.parametrize(("name", "content", "says"), BROKEN, ids=[name for name, _, _ in BROKEN])
def test_a_file_that_cannot_be_used_is_one_line_that_names_it(
    tmp_path: Path, capsys: Capture, name: str, content: bytes | None, says: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    for command in (
        ["show", path],
        ["apply", path, path, "-o", tmp_path / "out"],
        ["export", path, "--format", "text"],
    ):
        message = error(capsys, *command)
        assert name in message and says in message


def test_two_texts_under_one_id_are_an_error_that_names_the_file(tmp_path: Path, capsys: Capture) -> None:
    program = inject(Two(), ExperienceLibrary((Experience(id="e1", text="One."),)))
    program.answer.signature = program.answer.signature.with_instructions(
        program.answer.signature.instructions.replace("One.", "Two.")
    )
    assert "torn.json: experience e1 stands for two texts" in error(
        capsys, "show", saved(program, tmp_path / "torn.json")
    )


def test_folders_that_are_no_run(tmp_path: Path, capsys: Capture) -> None:
    assert "is not the run_dir" in error(capsys, "show", tmp_path)
    Two().save(str(tmp_path / "whole"), save_program=True)
    capsys.readouterr()
    assert "pickle" in error(capsys, "show", tmp_path / "whole")
    assert "is not a folder" in error(capsys, "report", tmp_path / "none")
    (tmp_path / "report.json").write_text("{}", encoding="utf-8")
    assert "report.json cannot be read" in error(capsys, "show", tmp_path)


def test_an_output_that_cannot_be_written(tmp_path: Path, program: str, capsys: Capture) -> None:
    assert "is a folder" in error(capsys, "strip", program, "-o", tmp_path)
    assert "there is no folder" in error(capsys, "strip", program, "-o", tmp_path / "no" / "out.json")


@pytest.mark.parametrize("usage", [[], ["nonsense"], ["strip", "x"], ["merge", "a", "-o", "b"], ["export", "x"]])
def test_wrong_usage_is_exit_code_2(usage: list[str], capsys: Capture) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(usage)
    assert stopped.value.code == 2 and "usage: tgrpo" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["show", "diff", "merge", "apply", "strip", "report", "export"])
def test_every_command_has_help(command: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"])
    assert stopped.value.code == 0 and f"usage: tgrpo {command}" in capsys.readouterr().out


def test_it_runs_as_a_module(library: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tgrpo_dspy", "export", library, "--format", "text"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("Write dates as YYYY-MM-DD.\n")


# estimate


QUESTIONS = [{"question": f"What is {n} + 1?", "answer": str(n + 1), "note": "easy"} for n in range(6)]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "my_programs", None)
    del sys.modules["my_programs"]
    path = tmp_path / "train.jsonl"
    path.write_text("\n".join(map(json.dumps, QUESTIONS)) + "\n", encoding="utf-8")
    (tmp_path / "val.json").write_text(json.dumps(QUESTIONS[:2]), encoding="utf-8")
    (tmp_path / "my_programs.py").write_text(
        "import dspy\n"
        "class Two(dspy.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.draft = dspy.Predict('question -> draft')\n"
        "        self.answer = dspy.Predict('question, draft -> answer')\n"
        "    def forward(self, question):\n"
        "        return self.answer(question=question, draft=self.draft(question=question).draft)\n"
        "ready = Two()\n"
        "number = 3\n",
        encoding="utf-8",
    )
    return path


@pytest.mark.parametrize("program", ["question -> answer", "my_programs:Two", "my_programs:ready"])
def test_an_estimate_is_that_of_the_optimizer(program: str, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["estimate", program, "--train", str(data), "--val", "val.json", "--inputs", "question"]
    assert main([*asked, "--epochs", "2", "--group-size", "3", "--lm", "openai/gpt-4o-mini", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["rollouts"], found["evaluations"], found["steps"]) == (2 * 3 * 6, 3 * 2, 2)
    predictors = 1 if "->" in program else 2
    low, high = found["lm_calls"]
    assert low >= 2 * 3 * 6 + 2 and high >= predictors * (2 * 3 * 6 + 3 * 2) and found["cost"][0] > 0
    assert main(asked) == 0
    assert "cost               unknown" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("program", "fields", "message"),
    [
        ("my_programs:Three", "question", "my_programs:Three cannot be imported and made: AttributeError"),
        ("my_programs:number", "question", "my_programs:number cannot be imported and made: TypeError"),
        ("no_such_module:Two", "question", "No module named 'no_such_module'"),
        ("nothing", "question", "neither module:name nor a signature"),
        ("question -> two words", "question", "is no signature"),
        ("question -> answer", "query", "example 1: there is no query in question, answer, note"),
    ],
)
def test_what_cannot_be_estimated_is_named(
    program: str, fields: str, message: str, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["estimate", program, "--train", str(data), "--inputs", fields]) == 2
    assert message in capsys.readouterr().err
    data.write_text("[1, 2", encoding="utf-8")
    assert main(["estimate", program, "--train", str(data), "--inputs", fields]) == 2
    assert f"{data} cannot be read as JSON" in capsys.readouterr().err
