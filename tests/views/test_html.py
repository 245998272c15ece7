"""The HTML page of a run: it holds the run's data as data, needs nothing beside it, and opens groups in a browser."""

from __future__ import annotations

import html
import json
import math
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import dspy
import pytest

from tests.scripted import RULE, Shouting, add, exact, examples, reflects
from tgrpo_dspy import Budget, LibraryLimits, RunDirError, Sampling, TrainingFreeGRPO
from tgrpo_dspy.library import Evidence, Experience, ExperienceLibrary
from tgrpo_dspy.records import (
    Choice,
    CompileReport,
    Demonstration,
    Evaluation,
    Exemplar,
    Failure,
    Group,
    Measured,
    Rollout,
    StepRecord,
    Turn,
)
from tgrpo_dspy.runs.events import RolloutFinished, StepStarted
from tgrpo_dspy.testing import Call
from tgrpo_dspy.views.html import html_of_run, report_to_html
from tgrpo_dspy.views.page_data import page_data
from tgrpo_dspy.views.recorded import Recorded, cut_rollout
from tgrpo_dspy.views.report import report_from_json, report_to_json

HOSTILE = "</script><script>document.title='taken'</script><img src=x onerror=alert(1)> & {{script}}"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Hostile(Shouting):
    """Wrong answers hold markup, and some are in no form at all."""

    def __init__(self) -> None:
        super().__init__(add(), add("question number 1"))
        self.runs_so_far = 0

    def __call__(self, call: Call) -> Any:
        answer = super().__call__(call)
        if reflects(call):
            return answer
        self.runs_so_far += 1
        if self.runs_so_far % 7 == 0:
            return f"No form. {HOSTILE}"
        right = answer["answer"].isupper()
        return answer if right else {"answer": HOSTILE}


def look_up(question: str) -> str:
    return f"about {question}"


class Looking(dspy.Module):
    """Looks every question up before it answers."""

    def __init__(self) -> None:
        super().__init__()
        self.look = dspy.Tool(look_up)
        self.answer = dspy.Predict("question, found -> answer")

    def forward(self, question: str) -> Any:
        return self.answer(question=question, found=self.look(question=question))


def learn(run_dir: Path | None, *, listeners: tuple[Any, ...] = (), budget: Budget | None = None) -> CompileReport:
    optimizer = TrainingFreeGRPO(
        metric=exact, epochs=1, batch_size=3, group_size=3, num_threads=1, sampling=Sampling(lm_retries=0)
    )
    with dspy.context(lm=Hostile().lm(), adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)):
        optimizer.compile(
            Looking(),
            trainset=examples(6),
            valset=examples(2, "val"),
            run_dir=run_dir,
            listeners=listeners,
            budget=budget,
            verbose=False,
        )
    assert optimizer.report is not None
    return optimizer.report


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "first"
    learn(folder)
    return folder


def data_in(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_the_data_of_a_run_comes_back_from_its_page(run: Path) -> None:
    page = (run / "report.html").read_text(encoding="utf-8")
    assert page == html_of_run(run)
    data = data_in(page)
    report = report_from_json((run / "report.json").read_text(encoding="utf-8"))
    recorded = Recorded.read(run / "events.jsonl")
    settings = json.loads((run / "settings.json").read_text(encoding="utf-8"))
    again = page_data(report, recorded, settings)
    assert data == json.loads(json.dumps(again)) | {"title": "first"}
    assert [e["text"] for e in data["library"]] == [RULE]
    assert data["steps"][0]["refused"][0]["reason"].startswith("quotes the training value")
    assert data["steps"][0]["changes"][0] == {
        "kind": "added",
        "id": "e1",
        "target": None,
        "words": [["+", RULE]],
        "why": "",
    }


def test_an_experience_leads_to_the_groups_that_taught_it_with_all_their_turns(run: Path) -> None:
    data = data_in(html_of_run(run))
    groups = {group["id"]: group for group in data["groups"]}
    evidence = data["library"][0]["evidence"]
    assert evidence and all(groups[name]["step"] == 1 for name in evidence)
    group = groups[evidence[0]]
    assert group["labels"]["answer"] == group["inputs"]["question"].upper()
    assert len(group["attempts"]) == 3
    turns = [turn for attempt in group["attempts"] for turn in attempt["turns"]]
    assert {(turn["name"], turn["kind"]) for turn in turns} == {("look_up", "tool"), ("answer", "predictor")}
    assert {failed["kind"] for g in groups.values() for a in g["attempts"] if (failed := a["failure"])} == {"parse"}
    assert {g["step"] for g in groups.values() if g["stage"] == "validation"} >= {0, 1}


def test_the_prompts_before_and_after_are_those_of_the_program(run: Path) -> None:
    (prompt,) = data_in(html_of_run(run))["prompts"]
    assert prompt["name"] == "answer" and "`question`" in prompt["before"] and RULE not in prompt["before"]
    assert prompt["after"].startswith(prompt["before"]) and f"[e1] {RULE}" in prompt["after"]


def test_what_models_wrote_is_never_markup(run: Path) -> None:
    page = html_of_run(run)
    assert HOSTILE in json.dumps(data_in(page), ensure_ascii=False)
    assert page.count("<script") == page.count("</script>") == 2
    assert "<img" not in page


def test_the_page_loads_nothing(run: Path) -> None:
    page = html_of_run(run)
    ours = page.replace(page[page.index('id="data">') : page.index("</script>")], "")
    assert not re.search(r"\b(?:src|href)=(?!\"(?:#|data:,))|@import|url\(|fetch\(|XMLHttp|WebSocket|import\(", ours)
    assert set(re.findall(r"https?://[^\"'\s]+", ours)) == {"http://www.w3.org/2000/svg"}
    assert "default-src 'none'" in ours and "innerHTML" not in ours


def test_without_a_folder_the_page_has_what_a_listener_heard() -> None:
    recorded = Recorded()
    report = learn(None, listeners=(recorded,))
    data = data_in(report_to_html(report, recorded=recorded))
    assert all(attempt["turns"] for group in data["groups"] for attempt in group["attempts"] if not attempt["failure"])
    assert data["prompts"][0]["name"] == "every predictor" and RULE in data["prompts"][0]["after"]
    brief = data_in(report_to_html(report))
    assert not any(attempt["turns"] for group in brief["groups"] for attempt in group["attempts"])
    assert "6 groups are shown in brief" in brief["notes"][0]
    assert {g["stage"] for g in brief["groups"]} == {"learning"}


def test_a_torn_last_event_and_missing_events_are_told_in_the_page(run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    events = (copy / "events.jsonl").read_text(encoding="utf-8")
    (copy / "events.jsonl").write_text(events + events.splitlines()[1][:40], encoding="utf-8")
    assert data_in(html_of_run(copy))["notes"] == ["1 lines of events.jsonl could not be read."]
    (copy / "events.jsonl").unlink()
    shutil.rmtree(copy / "store")
    assert "6 groups are shown in brief" in data_in(html_of_run(copy))["notes"][0]


def test_a_resumed_run_shows_the_turns_of_the_calls_before_too(tmp_path: Path) -> None:
    def turns() -> dict[str, list[int]]:
        groups = data_in((tmp_path / "report.html").read_text(encoding="utf-8"))["groups"]
        return {g["id"]: [len(a["turns"]) for a in g["attempts"]] for g in groups if g["stage"] == "learning"}

    first = learn(tmp_path, budget=Budget(max_lm_calls=16))
    assert first.stopped_by and len(first.steps) == 1
    before = turns()
    assert len(learn(tmp_path).steps) == 2
    after = turns()
    assert len(before) == 3 and before.items() <= after.items() and len(after) == 6
    assert all(count for counts in after.values() for count in counts)


@pytest.mark.parametrize(
    ("report", "says"), [(None, "is not there"), ("{", "cut off"), ('{"steps": 3}', "not a report"), ("[]", "report")]
)
def test_a_folder_without_a_whole_report_is_an_error_that_names_the_file(
    tmp_path: Path, report: str | None, says: str
) -> None:
    if report is not None:
        (tmp_path / "report.json").write_text(report, encoding="utf-8")
    with pytest.raises(RunDirError, match=says) as error:
        html_of_run(tmp_path)
    assert "report.json" in str(error.value)


def test_numbers_and_characters_that_json_does_not_have_are_no_obstacle(tmp_path: Path) -> None:
    measured = {"e1": Measured(mean=0.5, standard_error=math.inf, n=2)}
    report = replace(big_report(1), effects=measured)
    assert report_from_json(report_to_json(report)) == report
    half = Rollout(number=0, outputs={"answer": "half \ud83d of\u2028it"}, reward=1.0)
    recorded = Recorded()
    recorded(StepStarted(step=1, examples=1, group_size=1))
    recorded(RolloutFinished(rollout=half, evaluation=False, example="k0"))
    page = report_to_html(report, recorded=recorded, settings={"broken": math.nan})
    assert page.encode("utf-8") and "\u2028" not in page
    data = data_in(page)
    assert data["settings"] == {"broken": None}
    assert data["groups"][0]["attempts"][0]["outputs"]["answer"] == "half \ud83d of\u2028it"


def test_a_rollout_of_any_length_takes_a_bounded_place_and_says_what_is_missing() -> None:
    turns = tuple(Turn(name="t", inputs={"q": "x" * 50_000}, outputs={"a": "y" * 50_000}) for _ in range(300))
    failure = Failure(kind="parse", error="E", message="m" * 50_000, completion="c" * 50_000)
    shown = cut_rollout(Rollout(number=0, turns=turns, failure=failure, feedback="f" * 50_000))
    assert len(json.dumps([turn.inputs | turn.outputs for turn in shown.turns])) < 30_000
    assert shown.turns[0].inputs["q"].endswith("more characters)")
    assert shown.failure is not None and len(shown.failure.completion) < 5_000


def big_report(groups: int, size: int = 5) -> CompileReport:
    """A report of one step with so many groups."""
    rollouts = tuple(Rollout(number=n, outputs={"answer": f"answer {n}"}, reward=n / 4) for n in range(size))
    step = StepRecord(
        step=1,
        epoch=1,
        groups=tuple(
            Group(key=f"k{n}", inputs={"question": f"q {n}"}, labels={"answer": "a"}, rollouts=rollouts)
            for n in range(groups)
        ),
        informative=groups,
        advantages=(),
        applied=(),
        refused=(),
        evicted=(),
        joined=(),
        dropped=(),
        effects={},
        before=ExperienceLibrary(),
        after=ExperienceLibrary(),
        evaluation=None,
        ran=(),
        usage={},
        seconds=1.0,
    )
    return CompileReport(steps=(step,), student=None, library=ExperienceLibrary(), best_step=1, usage={}, seconds=1.0)


def recorded_of(report: CompileReport) -> Recorded:
    recorded = Recorded()
    recorded(StepStarted(step=1, examples=1, group_size=1))
    for group in report.steps[0].groups:
        for rollout in group.rollouts:
            turns = (Turn(name="self", inputs=group.inputs, outputs=rollout.outputs),)
            recorded(RolloutFinished(rollout=replace(rollout, turns=turns), evaluation=False, example=group.key))
    return recorded


def test_the_page_of_5000_rollouts_grows_with_their_number_only() -> None:
    small, large = big_report(100), big_report(1000)
    sizes = [len(report_to_html(report, recorded=recorded_of(report))) for report in (small, large)]
    assert (sizes[1] - sizes[0]) / 4500 < 400


def test_a_run_without_a_folder_writes_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    learn(None)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def dump(tmp_path: Path) -> Callable[[Path, str], str]:
    """The DOM of a page as a browser has built it, opened with a hash."""

    def opened(page: Path, fragment: str) -> str:
        quiet = ("gpu", "quic", "background-networking", "component-update", "sync")
        flags = ["--headless", "--no-sandbox", "--no-first-run", *(f"--disable-{name}" for name in quiet)]
        flags += ["--virtual-time-budget=4000", "--dump-dom", f"--user-data-dir={tmp_path / 'browser'}"]
        done = subprocess.run(
            [str(CHROMIUM), *flags, f"{page.as_uri()}#{fragment}"],
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=300,
            check=True,
        )
        return done.stdout

    return opened


needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")


@needs_browser
def test_a_hash_opens_the_group_with_its_attempts_and_markup_stays_text(
    run: Path, dump: Callable[[Path, str], str]
) -> None:
    data = data_in(html_of_run(run))
    wrong = [g for g in data["groups"] if any(HOSTILE in a["outputs"].get("answer", "") for a in g["attempts"])]
    group = next(g for g in wrong if g["stage"] == "learning")
    dom = dump(run / "report.html", group["id"])
    dialog = dom[dom.index("<dialog") : dom.index("</dialog>")]
    assert " open" in dialog[: dialog.index(">")]
    assert [f"Attempt {n}<" in dialog for n in (1, 2, 3, 4)] == [True, True, True, False]
    assert group["labels"]["answer"] in dialog and "tool look_up" in dialog
    assert html.escape(HOSTILE, quote=False) in dialog
    assert "<img" not in dom and dom.count("<script") == 2
    assert "<title>first" in dom


@needs_browser
def test_a_large_page_shows_a_part_and_opens_any_group(tmp_path: Path, dump: Callable[[Path, str], str]) -> None:
    report = big_report(1000)
    page = tmp_path / "large.html"
    page.write_text(report_to_html(report, recorded=recorded_of(report)), encoding="utf-8")
    dom = dump(page, "group-1-k999")
    assert "Group of example k999" in dom and "q 999" in dom[dom.index("<dialog") : dom.index("</dialog>")]
    assert dom.count('href="#group-1-') == 60 and "Show 60 of 940 more" in dom
    assert "<svg" in dom[: dom.index("<dialog")]


@needs_browser
def test_what_only_some_runs_have_is_shown_too(tmp_path: Path, dump: Callable[[Path, str], str]) -> None:
    member = Experience(
        id="e1",
        text="Write <b>bold</b>.",
        created=1,
        evidence=(Evidence(example="k1", rewards=(0.0, 0.25, 0.5, 0.75, 1.0)), Evidence(example="old", rewards=(0.5,))),
    )
    shown = Demonstration(predictor="self", values={"question": "q 0", "answer": "shown answer"})
    report = replace(
        big_report(2),
        student=Evaluation(repeats=((0.0,), (1.0,))),
        library=ExperienceLibrary((member,)),
        effects={"e1": Measured(mean=0.5, standard_error=math.inf, n=2)},
        pruned=(Experience(id="e2", text="A harmful lesson."),),
        exemplars=(Exemplar(example="k0", step=1, reward=1.0, spread=1.0, demonstrations=(shown,)),),
        choices=(Choice(label="library", experiences=1, exemplars=1, score=None, prompt_tokens=1234, chosen=True),),
        stopped_by="budget: max_lm_calls=5",
        frozen=("retriever",),
    )
    page = tmp_path / "some.html"
    page.write_text(report_to_html(report), encoding="utf-8")
    dom = dump(page, "experience-e1")
    opened = dom[dom.index('id="experience-e1"') :]
    opened = opened[: opened.index("</details>")]
    assert "+0.500 ± unknown" in opened and "Write &lt;b&gt;bold&lt;/b&gt;." in opened
    assert 'href="#group-1-k1"' in opened and "example old: rewards 0.5" in opened
    for text in (
        "A harmful lesson.",
        "example k0",
        "1,234",
        "budget: max_lm_calls=5",
        "left alone: retriever",
        "chosen",
    ):
        assert text in dom[: dom.index("<dialog")], text


def test_limits_are_part_of_the_settings_shown(run: Path) -> None:
    assert data_in(html_of_run(run))["settings"]["settings"]["limits"]["words"] == LibraryLimits().words
