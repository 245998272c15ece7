"""The pages of the site: their examples run and print what they say; links and navigation lead somewhere."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dspy
import pytest

import tgrpo_dspy
from tests import test_docs
from tests.scripted import RULE, Model, add, edits, reflects
from tests.test_architecture import ROOMS
from tests.test_docs import ROOT, Reasoning, run_examples
from tgrpo_dspy.testing import Call

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))


class _Patch:
    """What ``run_examples`` needs of a monkeypatch; a page may make any LM, which is the model by another name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, model: Model) -> None:
        self._monkeypatch, self._model, self._real = monkeypatch, model, dspy.LM
        self.chdir = monkeypatch.chdir

    def setattr(self, target: Any, name: str, value: Any) -> None:
        self._monkeypatch.setattr(target, name, self._lm if (target, name) == (dspy, "LM") else value)

    def _lm(self, name: str, **settings: Any) -> dspy.LM:
        is_scripted = "engine" in settings  # by a ScriptedEngine, the page's own or the model's
        return self._real(name, **settings) if is_scripted else self._model.lm(model=name, **settings)


def run_page(page: str, model: Model, monkeypatch: pytest.MonkeyPatch, folder: Path) -> dict[str, Any]:
    """Run the blocks of a page on a model, and return what they have made."""
    monkeypatch.setattr(test_docs, "Reasoning", lambda: model)
    return run_examples(f"docs/{page}", _Patch(monkeypatch, model), folder)  # type: ignore[arg-type]


def printed_in(page: str) -> str:
    """What the page says its code prints."""
    shown = re.findall(r"```text\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)
    assert shown
    return str(shown[-1])


def test_the_quick_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    space = run_page("index.md", Reasoning(), monkeypatch, tmp_path)
    assert space["compiled"].signature.instructions + "\n" == printed_in("index.md")
    assert capsys.readouterr().out.endswith(printed_in("index.md"))
    step = space["optimizer"].report.steps[0]
    assert [len(group.rollouts) for group in step.groups] == [5] * 4, "the page says 20 rollouts"
    again = dspy.Predict("question -> answer")
    again.load(tmp_path / "compiled.json")
    assert RULE in again.signature.instructions


def test_concepts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_page("concepts.md", Reasoning(), monkeypatch, tmp_path)
    assert capsys.readouterr().out == printed_in("concepts.md")


class Judging(Reasoning):
    """Can also tell whether an answer is polite."""

    def __call__(self, call: Any) -> dict[str, Any]:
        if "polite" in call.asks_for:
            return {"polite": call.fields["answer"].isupper(), "reason": "only capitals are polite"}
        return super().__call__(call)


def test_a_metric_that_teaches(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Judging()
    space = run_page("guides/metrics.md", model, monkeypatch, tmp_path)
    first, *_, last = model.reflections
    assert "grader: the words are right, the case is not" in first.user
    assert "grader: only capitals are polite" in last.user
    assert RULE in space["compiled"].signature.instructions
    assert RULE in space["judged_program"].signature.instructions
    asked = [call for call in model.engine.calls if "polite" in call.asks_for]
    assert capsys.readouterr().out.splitlines()[-1] == str(len(asked)) != "0"


class Looking(Model):
    """An agent's model: with the lesson it looks the style up, without it in every other run; then it knows."""

    LESSON = "Look the word letters up before answering."

    def __init__(self) -> None:
        super().__init__()
        self.begun: Counter[str] = Counter()

    def __call__(self, call: Call) -> dict[str, Any]:
        if reflects(call):
            return edits(call, add(self.LESSON))
        question = call.fields["question"]
        knows = "capitals" in call.user
        if "next_tool_name" not in call.asks_for:
            return {"reasoning": "because", "answer": question.upper() if knows else question}
        self.begun[question] += not knows
        if not knows and (self.LESSON in call.system or self.begun[question] % 2 == 0):
            return {"next_thought": "?", "next_tool_name": "look_up", "next_tool_args": {"word": "letters"}}
        return {"next_thought": "!", "next_tool_name": "finish", "next_tool_args": {}}


def test_agents(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = Looking()
    space = run_page("guides/agents.md", model, monkeypatch, tmp_path)
    attempts = model.reflections[0].user
    assert "tool look_up(word=letters) -> capitals" in attempts
    assert "grader: answered without the style guide" in attempts
    for name, predictor in space["compiled"].named_predictors():
        before = dict(space["agent"].named_predictors())[name].signature.instructions
        assert predictor.signature.instructions.startswith(before) and model.LESSON in predictor.signature.instructions
    assert capsys.readouterr().out.splitlines()[-1] == "score +1.00, tool calls 0.0 -> 1.0"


class Writing(Model):
    """Writes a draft and polishes it; the lesson is for the second step."""

    def __call__(self, call: Call) -> dict[str, Any]:
        if reflects(call):
            return edits(call, add(f"polish: {RULE}"))
        question = call.fields["question"]
        if "draft" in call.asks_for:
            return {"reasoning": "because", "draft": f"draft {call.number}"}
        return {"answer": question.upper() if RULE in call.system or call.number % 4 == 1 else question}


def test_several_predictors(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    space = run_page("guides/several_predictors.md", Writing(), monkeypatch, tmp_path)
    assert capsys.readouterr().out == printed_in("guides/several_predictors.md") + "('draft',)\n"
    lessons = {name: RULE in p.signature.instructions for name, p in space["compiled"].named_predictors()}
    assert lessons == {"draft": False, "polish": True}
    lessons = {name: RULE in p.signature.instructions for name, p in space["moved"].named_predictors()}
    assert lessons == {"draft": True, "polish": False}
    half = space["half"]
    assert RULE in half.polish.signature.instructions and RULE not in half.draft.predict.signature.instructions


class Unsure(Reasoning):
    """Its wrong answers differ from the right ones in words too."""

    def __call__(self, call: Any) -> dict[str, str]:
        answer = super().__call__(call)
        wrong = "answer" in answer and not answer["answer"].isupper()
        return {**answer, "answer": f"perhaps {call.number}"} if wrong else answer


def test_without_right_answers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Unsure()
    space = run_page("guides/no_ground_truth.md", model, monkeypatch, tmp_path)
    assert RULE in space["by_checking"].signature.instructions
    assert RULE in space["by_agreement"].predict.signature.instructions
    checked, agreed = model.reflections[0].user, model.reflections[-1].user
    assert "grader: the style wants capital letters" in checked and "reward" in checked
    assert "agreement" in agreed and not any(word in agreed for word in ("grader", "reward", "style"))
    rewards = {float(text) for text in re.findall(r"\d\.\d+", capsys.readouterr().out)}
    assert rewards and all(0 < reward < 1 for reward in rewards)


def test_other_models(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = Reasoning()
    space = run_page("guides/other_models.md", model, monkeypatch, tmp_path)
    assert {call.request.model for call in model.reflections} == {"openai/gpt-4o"}
    assert {"openai/gpt-4.1-nano", "test/scripted"} == {call.request.model for call in model.runs}
    assert RULE in space["compiled"].signature.instructions and RULE in space["further"].signature.instructions
    out = capsys.readouterr().out
    assert re.search(r"^reflection 1 calls, \d+ tokens in, \d+ out$", out, re.MULTILINE)
    assert re.search(r"^\+\d\.\d{3} ± \d\.\d{3}$", out, re.MULTILINE)


def test_deploying(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    space = run_page("guides/deploying.md", Reasoning(), monkeypatch, tmp_path)
    assert capsys.readouterr().out == "ONE MORE QUESTION\n"
    space["test_the_lessons_reach_the_model"]()
    space["plain"].save("compiled.json")
    with pytest.raises(AssertionError):
        space["test_the_lessons_reach_the_model"]()


def test_how_it_works_inside(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_page("inside.md", Reasoning(), monkeypatch, tmp_path)
    assert capsys.readouterr().out == printed_in("inside.md")
    text = (DOCS / "inside.md").read_text(encoding="utf-8")
    tree = re.findall(r"^  (\w+)(?:\.py|/) ", text, re.MULTILINE)
    assert sorted(tree) == sorted(room for room in ROOMS if room != "__main__")
    order = [room for room in ROOMS if room in tree]
    assert tree == order, "a file imports only from rooms above its own"
    for named in re.findall(r"`(\w+/\w+\.py)`", text):
        assert (ROOT / "tgrpo_dspy" / named).exists(), named


def test_how_it_compares(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    space = run_page("compares.md", Reasoning(), monkeypatch, tmp_path)
    assert RULE in space["both"].signature.instructions and len(space["both"].demos) == 2
    known = re.findall(r"^\| (`.+?`(?:, `.+?`)*) \|", (DOCS / "compares.md").read_text(encoding="utf-8"), re.MULTILINE)
    names = [name for cell in known for name in re.findall(r"`(\w+)`", cell)]
    assert len(names) == 13
    for name in names:
        assert hasattr(dspy, name) or hasattr(tgrpo_dspy, name) or name == "GRPO", name


def test_contributing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_page("contributing.md", Reasoning(), monkeypatch, tmp_path)
    assert capsys.readouterr().out == "IS IT ON?\n1 ('answer',)\n"
    text = (DOCS / "contributing.md").read_text(encoding="utf-8")
    for path in re.findall(r"`((?:tests|benchmarks|programs)/[\w./]+)`", text):
        assert (ROOT / path).exists(), path


def test_the_notebook(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(DOCS / "quickstart.ipynb", as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code), "outputs are not committed"
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    monkeypatch.setenv("DSPY_CACHEDIR", str(tmp_path / "cache"))
    nbclient.NotebookClient(notebook, timeout=60, resources={"metadata": {"path": str(tmp_path)}}).execute()
    printed = ["".join(map(_printed, cell.outputs)) for cell in code]
    assert printed[2] == "score before: 0.0\n"
    assert re.search(r"^rollouts +40$", printed[3], re.MULTILINE)
    student, *steps = printed[4].replace("\n", " ").split("step ")
    assert student == "student: validation score 0.000 "
    assert [re.sub(r", \d+ s $", "", step) for step in steps] == [
        "1/2: reward 0.400, 4/4 groups differ, 1 edit, validation 1.000",
        "2/2: reward 1.000, 0/4 groups differ, 0 edits, validation 1.000",
    ]
    assert printed[5].endswith(f"[e1] {RULE}\n</experiences>\n")
    assert printed[6:] == ["score after: 1.0 change: 1.0\n", "A TILE IS LOOSE\n"]


def _printed(output: Any) -> str:
    """What a cell shows; a message of its own is one of rich, which shows lines in a notebook this way."""
    return str(output["text"] if output.output_type == "stream" else output["data"]["text/plain"])


def _links(page: Path) -> Iterator[tuple[str, str]]:
    """The relative links of a page: the file and the heading."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+:", target):
            file, _, heading = target.partition("#")
            yield file, heading


def _headings(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_every_link_leads_somewhere_inside_the_site(page: Path) -> None:
    for file, heading in _links(page):
        target = (page.parent / file).resolve() if file else page
        assert target.is_file() and target.is_relative_to(DOCS), f"{file} leaves the site"
        assert not heading or heading in _headings(target), f"{file} has no heading {heading}"


def test_every_page_is_in_the_navigation_and_the_other_way_round() -> None:
    yaml = pytest.importorskip("yaml")
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    entries = [entry for part in settings["nav"] for chapter in part.values() for entry in chapter]
    pages = [entry if isinstance(entry, str) else next(iter(entry.values())) for entry in entries]
    assert sorted(pages) == sorted(page.relative_to(DOCS).as_posix() for page in PAGES)


def test_the_reference_has_every_public_name() -> None:
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    told = re.findall(r"^::: tgrpo_dspy\.(\w+)$", text, re.MULTILINE)
    assert sorted(told) == sorted([*tgrpo_dspy.__all__, "testing"])
