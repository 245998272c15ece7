"""Questions about the local web, checked by eye against the raw text and by machine against the pages."""

from __future__ import annotations

import html
import http.client
import json
import logging
import re
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import dspy
import pytest

from programs.own_data import DataFileError
from programs.task import MissingDataError
from programs.web_search.local_web.question import Question
from programs.web_search.local_web.questions import OOD_REGION, question_of, questions, splits, to_example
from programs.web_search.local_web.server import LocalWeb
from programs.web_search.local_web.site import Site
from programs.web_search.local_web.world import spoken, the_world
from programs.web_search.question_sets import AFM_WEB, WEB_WALKER_QA

# Written down from the raw Factbook text: kind, words of the question (with | between them), answer.
BY_EYE = [
    ("capital", "of Chad", "N'Djamena"),
    ("currency", "of Samoa", "SAT"),  # "tala (SAT) per US dollar -", the source's own code
    ("highest_point", "the United Kingdom", "Ben Nevis"),  # "Ben Nevis 1,345 m"
    ("highest_elevation", "Ecuador", "6,267"),  # "Chimborazo 6,267", without a unit
    ("internet_code", "Kosovo", ".xk"),
    ("national_holiday", "Italy", "2 June"),  # "Republic Day, 2 June (1946)"
    ("independence", "Kuwait", "1961"),  # "19 June 1961 (from the UK)"
    ("aircraft_prefix", "Austria", "OE"),
    ("coastline", "Denmark", "7,314"),  # "7,314 km"
    ("land_boundaries", "Switzerland", "1,770"),  # "1,770 km"
    ("median_age", "Switzerland", "44.4"),  # "44.4 years (2025 est.)"
    ("airports", "Algeria", "95"),  # "95 (2025)"
    ("longest_border", "Switzerland", "Rome"),  # "Italy 698 km" of five
    ("longest_border", "Chile", "Buenos Aires"),  # "Argentina 6,691 km" of three
    ("largest_customer", "Switzerland", "Berlin"),  # "Germany 14%, China 12%, USA 11%, …"
    ("largest_customer", "Greenland", "Copenhagen"),  # "Denmark 50%, China 23%, …"
    ("neighbour_by_currency", "Switzerland|CHF", "Liechtenstein"),  # the others have the euro
    ("neighbour_by_currency", "Chad|NGN", "Nigeria"),
    ("most_populous_neighbour", "Austria", "Germany"),  # of eight
    ("most_populous_neighbour", "Peru", "Brazil"),  # of five
    ("common_neighbour", "Estonia|Finland", "Russia"),
    ("common_neighbour", "Bangladesh|Nepal", "India"),  # Burma, India; China, India
    ("place_in_region", "South Asia|the largest total area", "India"),  # 3,287,263 sq km, then Pakistan 796,095
    ("place_in_region", "Europe|second largest total area", "Ukraine"),  # 603,550 sq km, after France 643,801
    ("capital_by_highest_point", "Grossglockner", "Vienna"),
    ("capital_by_highest_point", "Ben Nevis", "London"),
    ("code_by_capital", "Oslo", ".no"),
    ("code_by_capital", "Praia", ".cv"),
]

# Seen in the raw text: why there is no such question.
BY_EYE_LEFT_OUT = [
    ("capital", "Benin"),  # "Porto-Novo (constitutional capital); Cotonou (seat of government)"
    ("capital", "Vietnam"),  # "Hanoi (Ha Noi)"
    ("capital", "Singapore"),  # names its own answer
    ("capital", "Nauru"),  # "no official capital; …"
    ("currency", "Eswatini"),  # "emalangeni per US dollar -"
    ("highest_point", "Albania"),  # "Maja e Korabit (Golem Korab)"
    ("highest_point", "Benin"),  # "unnamed elevation 675 m; …"
    ("highest_point", "Finland"),  # "Halti (alternatively Haltia, …)"
    ("internet_code", "France"),  # six of them
    ("national_holiday", "Algeria"),  # two of them
    ("independence", "Guinea-Bissau"),  # "24 September 1973 (declared); 10 September 1974 (from Portugal)"
    ("coastline", "Switzerland"),  # "0 km (landlocked)"
    ("land_boundaries", "Japan"),  # none
    ("neighbour_by_currency", "Switzerland|EUR"),  # five of them
    ("common_neighbour", "Argentina|Brazil"),  # several
    ("common_neighbour", "Brazil|Suriname"),  # Guyana, and French Guiana, which has no page
    ("capital_by_highest_point", "Mount Everest"),  # China and Nepal
    ("capital_by_highest_point", "Mount Olympus"),  # Greece and Cyprus
    ("capital_by_highest_point", "Mont Nimba"),  # "Mont Nimba 1,752 m" and "Monts Nimba 1,752 m"
    ("code_by_capital", "Kingston"),  # Jamaica and Norfolk Island
    ("most_populous_neighbour", "Portugal"),  # it has one
    ("airports", "European Union"),
]


@pytest.fixture(scope="module")
def site() -> Site:
    return Site()


def found(kind: str, words: str) -> list[Question]:
    """The questions of a kind that have all the words."""
    wanted = [re.compile(rf"(?<![\w-]){re.escape(word)}(?![\w-])") for word in words.split("|")]
    return [
        question
        for question in questions()
        if question.kind == kind and all(word.search(question.question) for word in wanted)
    ]


def fetch(web: LocalWeb, path: str) -> str:
    """The words of a page as served, without any white space."""
    connection = http.client.HTTPConnection(urlsplit(web.url).netloc, timeout=10)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        assert answer.status == 200, path
        return squeezed(html.unescape(re.sub(r"<[^>]+>", "", answer.read().decode())))
    finally:
        connection.close()


def squeezed(text: str) -> str:
    return "".join(text.split())


# The questions


@pytest.mark.parametrize(("kind", "words", "answer"), BY_EYE)
def test_answer_checked_by_eye(kind: str, words: str, answer: str) -> None:
    assert [question.answer for question in found(kind, words)] == [answer]


@pytest.mark.parametrize(("kind", "words"), BY_EYE_LEFT_OUT)
def test_what_has_no_single_answer_is_not_asked(kind: str, words: str) -> None:
    assert found(kind, words) == []


def test_every_kind_was_checked_by_eye_and_has_enough_questions() -> None:
    counts = Counter(question.kind for question in questions())
    hops = {question.kind: question.hops for question in questions()}
    checked = Counter(kind for kind, _, _ in BY_EYE)
    assert checked == {kind: hops[kind] for kind in counts}
    assert min(counts.values()) >= 100 and sum(hop == 2 for hop in hops.values()) >= 6


def test_questions_are_told_apart_by_their_words_and_do_not_name_their_answer() -> None:
    assert len({question.question for question in questions()}) == len(questions())
    for question in questions():
        assert question.question[0].isupper() and question.question[-1] in "?." and "{" not in question.question
        assert question.answer == question.answer.strip() != "" and len(question.answer) <= 60
        if question.hops == 1 and not question.answer[0].isdigit() and len(question.answer) > 3:
            assert question.answer not in question.question, question


def test_the_words_vary() -> None:
    starts: dict[str, set[str]] = {}
    for question in questions():
        starts.setdefault(question.kind, set()).add(question.question[:14])
    assert {kind for kind, several in starts.items() if len(several) == 1} == set()


def test_every_evidence_page_is_served_and_shows_what_it_must(site: Site) -> None:
    paths = {evidence.path for question in questions() for evidence in question.evidence}
    with LocalWeb(site) as web:
        pages = {path: fetch(web, path) for path in paths}
    for question in questions():
        assert len(question.evidence) == question.hops
        for evidence in question.evidence:
            assert squeezed(evidence.text) in pages[evidence.path], (question.question, evidence)
        assert squeezed(question.answer) in pages[question.evidence[-1].path], question


def test_places_in_a_region_follow_from_the_pages(site: Site) -> None:
    places = ["", "second ", "third ", "fourth ", "fifth "]
    asked = [question for question in questions() if question.kind == "place_in_region"]
    for question in asked:
        region, ranking = (site.page(evidence.path) for evidence in question.evidence)
        assert region is not None and ranking is not None
        inside = set(re.findall(r'<th scope="row"><a href="([^"]+)"', region.main))
        lines = re.findall(r'<td>(\d+)</td><th scope="row"><a href="([^"]+)"', ranking.main)
        order = [(rank, link) for rank, link in lines if link in inside]
        place = next(number for number in (4, 3, 2, 1, 0) if f"the {places[number]}" in question.question)
        rank, link = order[place]
        answer = site.page(link)
        assert answer is not None and answer.title == question.answer, question.question
        assert [other for other, _ in order].count(rank) == 1, question.question
        assert spoken(region.title) in question.question


def test_common_neighbours_follow_from_the_pages(site: Site) -> None:
    for question in questions():
        if question.kind == "common_neighbour":
            first, second = (neighbours(site, evidence.path) for evidence in question.evidence)
            assert first & second == {question.answer}, question.question


def neighbours(site: Site, path: str) -> set[str]:
    page = site.page(path)
    assert page is not None
    (row,) = re.findall(r"<th scope=\"row\">Border countries</th><td>(.*?)</td>", page.main)
    return {html.unescape(name) for name in re.findall(r"<a [^>]*>([^<]+)</a>", row)}


def test_the_page_asked_for_is_among_the_first_five(site: Site) -> None:
    asked = [question for question in questions() if question.hops == 1][::9]
    with LocalWeb(site) as web:
        hits = [[hit.url for hit in web.engine.search(question.question, 5)] for question in asked]
        right = [web.url + question.evidence[0].path in urls for question, urls in zip(asked, hits, strict=True)]
    assert sum(right) / len(right) >= 0.9


# The splits


def test_splits_share_no_country_and_have_the_sizes_asked_for() -> None:
    drawn = splits(3, train=40, val=30, test=80, ood=60)
    sets = [drawn.train, drawn.val, drawn.test, drawn.ood]
    assert [len(part) for part in sets] == [40, 30, 80, 60]
    countries = [set().union(*(question_of(example).countries for example in part)) for part in sets]
    assert len(set().union(*countries)) == sum(len(codes) for codes in countries)
    assert all(len(codes) > 10 for codes in countries)


@pytest.mark.parametrize("seed", range(3))
def test_the_region_held_out_is_in_no_other_set(seed: int) -> None:
    drawn = splits(seed)
    regions = {country.code: country.region for country in the_world()}

    def regions_of(examples: list[dspy.Example]) -> set[str]:
        return {regions[code] for example in examples for code in question_of(example).countries}

    assert regions_of(drawn.ood) == {OOD_REGION}
    assert OOD_REGION not in regions_of([*drawn.train, *drawn.val, *drawn.test])


def test_the_seed_draws_train_and_validation_and_leaves_the_held_out_sets_alone() -> None:
    assert splits(1) == splits(1)
    assert splits(1).train != splits(2).train and splits(1).val != splits(2).val
    assert splits(1).test == splits(2).test and splits(1).ood == splits(2).ood


def test_the_kinds_take_turns() -> None:
    kinds = Counter(question_of(example).kind for example in splits(0, test=40).test)
    assert len(kinds) == 20 and set(kinds.values()) == {2}


def test_an_example_shows_a_question_and_an_answer_and_nothing_else() -> None:
    example = splits(0).train[0]
    assert example.inputs().keys() == ["question"] and example.labels().keys() == ["answer"]
    question = question_of(example)
    assert (question.question, question.answer) == (example.question, example.answer)
    assert to_example(question) == example


def test_a_foreign_question_has_no_evidence() -> None:
    with pytest.raises(ValueError, match="not a question about the local web: 'Why'"):
        question_of(dspy.Example(question="Why", answer="because").with_inputs("question"))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"train": 9999}, r"train: asked for 9999 examples of the \d+ that there are"),
        ({"ood": 9999}, r"ood: asked for 9999 examples"),
        ({"val": -1}, r"val: asked for -1 examples"),
    ],
)
def test_sizes_that_cannot_be_had(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        splits(0, **sizes)


# Published question sets

WALKER_ROWS: list[dict[str, Any]] = [
    {
        "question": " When is the deadline? ",
        "answer": "March 2025.",
        "root_url": "https://example.org/",
        "info": {"domain": "conference", "golden_path": ["root->call"], "difficulty_level": "medium", "lang": "en"},
    },
    {"question": "谁?", "answer": "张三", "root_url": "https://example.org/", "info": {"lang": "zh"}},
]
AFM_ROWS: list[dict[str, Any]] = [
    {"data_source": "web", "extra_info": {"question": "Who wrote it?", "answer": ["Ada"], "index": 0}},
    {"data_source": "web", "extra_info": {"question": "Who knew?", "answer": ["Bob", "Eve"], "index": 1}},
    {"data_source": "web", "extra_info": {"question": "When?", "answer": ["1843"], "index": 2}},
]


def write(file: Path, rows: list[dict[str, Any]]) -> Path:
    if file.suffix == ".parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        pyarrow = pytest.importorskip("pyarrow")
        parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    elif file.suffix == ".json":
        file.write_text(json.dumps(rows), encoding="utf-8")
    else:
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def pairs(examples: list[dspy.Example]) -> list[tuple[str, str]]:
    assert all(example.inputs().keys() == ["question"] and len(example.keys()) == 2 for example in examples)
    return [(example.question, example.answer) for example in examples]


@pytest.mark.parametrize("suffix", [".json", ".jsonl", ".parquet"])
def test_question_sets_are_read_from_files(tmp_path: Path, suffix: str, caplog: Any) -> None:
    walker = WEB_WALKER_QA.load(write(tmp_path / f"main{suffix}", WALKER_ROWS))
    assert pairs(walker) == [("When is the deadline?", "March 2025."), ("谁?", "张三")]
    with caplog.at_level(logging.INFO, "programs.web_search.question_sets"):
        afm = AFM_WEB.load(str(write(tmp_path / f"afm{suffix}", AFM_ROWS)))
    assert pairs(afm) == [("Who wrote it?", "Ada"), ("When?", "1843")]
    assert "1 questions with several answers are left out" in caplog.text


def test_columns_may_be_capitalised(tmp_path: Path) -> None:
    rows = [{"Question": "Where?", "Answer": "There", "Root_Url": "", "Info": {}}]
    assert pairs(WEB_WALKER_QA.load(write(tmp_path / "main.jsonl", rows))) == [("Where?", "There")]


@pytest.mark.parametrize(
    ("set_", "rows", "message"),
    [
        (
            WEB_WALKER_QA,
            [{"question": "a", "root_url": "b"}],
            "line 1: there is no answer; there is question, root_url",
        ),
        (WEB_WALKER_QA, [WALKER_ROWS[0], {"question": "a", "answer": " "}], "line 2: answer is empty"),
        (WEB_WALKER_QA, [{"question": None, "answer": "b"}], "line 1: question is empty"),
        (AFM_WEB, [{"question": "a", "answer": "b"}], "line 1: there is no extra_info.question; there is question"),
        (AFM_WEB, [{"extra_info": None}], "line 1: there is no extra_info.question; there is nothing"),
        (AFM_WEB, [AFM_ROWS[0], {"extra_info": {"question": "a", "answer": []}}], "line 2: extra_info.answer is empty"),
        (AFM_WEB, [{"extra_info": {"question": "a", "answer": ["b", ""]}}], "line 1: extra_info.answer is empty"),
        (AFM_WEB, [AFM_ROWS[1]], "rows.jsonl has no question with one answer"),
        (AFM_WEB, [], "rows.jsonl has no question with one answer"),
    ],
)
def test_a_row_that_is_not_as_published_is_named(tmp_path: Path, set_: Any, rows: Any, message: str) -> None:
    with pytest.raises(DataFileError, match=re.escape(message)):
        set_.load(write(tmp_path / "rows.jsonl", rows))


def test_a_missing_file_says_where_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"none\.jsonl is not there.*datasets/callanwu/WebWalkerQA"):
        WEB_WALKER_QA.load(tmp_path / "none.jsonl")


def test_an_unknown_kind_of_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_text("question")
    with pytest.raises(DataFileError, match=r"rows\.txt: the name of the file must end in one of"):
        AFM_WEB.load(tmp_path / "rows.txt")


def test_the_hub_is_asked_for_the_set_and_the_split(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    hub = {
        ("callanwu/WebWalkerQA", "main"): WALKER_ROWS[:1],
        ("callanwu/WebWalkerQA", "silver"): WALKER_ROWS[1:],
        ("PersonalAILab/AFM-WebAgent-RL-Dataset", "train"): AFM_ROWS,
    }
    monkeypatch.setattr(datasets, "load_dataset", lambda name, *, split: datasets.Dataset.from_list(hub[name, split]))
    assert pairs(WEB_WALKER_QA.load()) == [("When is the deadline?", "March 2025.")]
    assert pairs(WEB_WALKER_QA.load(split="silver")) == [("谁?", "张三")]
    assert pairs(AFM_WEB.load()) == [("Who wrote it?", "Ada"), ("When?", "1843")]


def test_without_a_network_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    with pytest.raises(MissingDataError, match=r"AFM could not be downloaded from https://\S+AFM-WebAgent-RL-Dataset"):
        AFM_WEB.load()
