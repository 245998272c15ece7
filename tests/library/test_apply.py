"""What becomes of the edits of a step."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tgrpo_dspy import Edit, Experience, ExperienceLibrary, LibraryError, LibraryLimits
from tgrpo_dspy.library import Evidence, Guards


def library(*texts: str, **common: Any) -> ExperienceLibrary:
    return ExperienceLibrary(
        tuple(Experience(id=f"e{n}", text=text, **common) for n, text in enumerate(texts, start=1))
    )


def texts(lib: ExperienceLibrary) -> dict[str, str]:
    return {e.id: e.text for e in lib}


def add(text: str, **kwargs: Any) -> Edit:
    return Edit(operation="ADD", text=text, **kwargs)


def update(identifier: str, text: str) -> Edit:
    return Edit(operation="UPDATE", ids=(identifier,), text=text)


def delete(identifier: str) -> Edit:
    return Edit(operation="DELETE", ids=(identifier,))


def keep(identifier: str) -> Edit:
    return Edit(operation="KEEP", ids=(identifier,))


def merge(*ids: str, text: str = "both") -> Edit:
    return Edit(operation="MERGE", ids=ids, text=text)


START = library("one", "two", "three")

OUTCOMES: dict[str, tuple[list[Edit], dict[str, str], list[str]]] = {
    "add": ([add("four")], {"e1": "one", "e2": "two", "e3": "three", "e4": "four"}, []),
    "update": ([update("e2", "new")], {"e1": "one", "e2": "new", "e3": "three"}, []),
    "delete needs no text": ([delete("e2")], {"e1": "one", "e3": "three"}, []),
    "merge keeps the oldest id": ([merge("e3", "e1")], {"e1": "both", "e2": "two"}, []),
    "unknown ids are refused": (
        [update("e9", "x"), merge("e1", "e8"), delete("e7"), keep("e6")],
        texts(START),
        ["there is no experience e8", "there is no experience e9", "there is no experience e7", "no experience e6"],
    ),
    "a merge needs two": ([merge("e1", "e1")], texts(START), ["at least two different"]),
    "a merge without text loses no source": ([merge("e1", "e2", text=" ")], texts(START), ["needs a text"]),
    "an update without text": ([update("e1", "")], texts(START), ["needs a text"]),
    "equal adds are one": ([add("four"), add("FOUR")], {**texts(START), "e4": "FOUR"}, []),
    "an add of a known lesson is support": ([add("Two")], texts(START), []),
    "update beats delete": ([delete("e1"), update("e1", "new")], {**texts(START), "e1": "new"}, ["has a UPDATE"]),
    "merge beats update": (
        [update("e1", "new"), merge("e1", "e2")],
        {"e1": "both", "e3": "three"},
        ["e1 already has a MERGE"],
    ),
    "delete beats keep": ([keep("e1"), delete("e1")], {"e2": "two", "e3": "three"}, ["has a DELETE"]),
    "of two updates the one proposed more often": (
        [update("e1", "aaa"), update("e1", "zzz"), update("e1", "zzz")],
        {**texts(START), "e1": "zzz"},
        ["has a UPDATE"],
    ),
    "of two updates proposed equally the first by alphabet": (
        [update("e1", "zzz"), update("e1", "aaa")],
        {**texts(START), "e1": "aaa"},
        ["has a UPDATE"],
    ),
    "an update to what another one says goes up into the older": (
        [update("e3", "TWO")],
        {"e1": "one", "e2": "two"},
        [],
    ),
    "of several updates to one text the first": (
        [update("e1", "new"), update("e2", "new"), update("e3", "NEW")],
        {"e1": "new", "e2": "two", "e3": "three"},
        ["e1 becomes just that", "e1 becomes just that"],
    ),
    "two updates that swap": (
        [update("e1", "two"), update("e2", "one")],
        {"e1": "two", "e2": "one", "e3": "three"},
        [],
    ),
}


@pytest.mark.parametrize("case", OUTCOMES)
def test_each_case_has_one_outcome_whatever_the_order(case: str) -> None:
    edits, expected, reasons = OUTCOMES[case]
    outcomes = {START.apply(order).library for order in itertools.permutations(edits)}
    assert len(outcomes) == 1
    applied = START.apply(edits)
    assert texts(applied.library) == expected
    assert len(applied.refused) == len(reasons)
    assert all(any(reason in r.reason for r in applied.refused) for reason in reasons)
    assert texts(START) == {"e1": "one", "e2": "two", "e3": "three"}


def test_ids_are_never_used_again() -> None:
    emptied = START.apply([delete("e3")]).library
    assert [e.id for e in emptied.apply([add("four")]).library] == ["e1", "e2", "e4"]


def test_counters_and_evidence_are_kept() -> None:
    first, second = Evidence(example="a", rewards=(1.0, 0.0)), Evidence(example="b", rewards=(0.5, 0.0))
    grown = START.apply([add("four", evidence=(first,)), add("four", evidence=(second, first))], step=3).library["e4"]
    assert (grown.proposed, grown.created, grown.evidence) == (2, 3, (first, second))
    contradicted = START.apply([delete("e1"), update("e1", "new")], step=4).library["e1"]
    assert (contradicted.contradicted, contradicted.changed, contradicted.created) == (1, 4, 0)
    merged = START.apply([merge("e1", "e2")]).library["e1"]
    assert merged.proposed == 3


def test_words_are_limited() -> None:
    refused = START.apply([add("word " * 33), add("word " * 32)], limits=LibraryLimits(words=32)).refused
    assert [r.reason for r in refused] == ["has 33 words, more than 32"]


def test_what_is_worth_least_goes_first_when_the_library_is_full() -> None:
    members = (
        Experience(id="e1", text="measured bad", effect=-0.2, proposed=9),
        Experience(id="e2", text="old and supported", proposed=3),
        Experience(id="e3", text="older of two", proposed=1),
        Experience(id="e4", text="newer of two", proposed=1),
    )
    order = []
    for size in (3, 2, 1):
        applied = ExperienceLibrary(members).apply([], limits=LibraryLimits(experiences=size))
        order.append(applied.evicted[-1].id)
        assert len(applied.library) == size
    assert order == ["e1", "e3", "e4"]


def test_the_rendered_block_is_bounded_in_tokens() -> None:
    many = ExperienceLibrary().apply(
        [add(f"lesson {n} " + "x" * 100) for n in range(50)], limits=LibraryLimits(tokens=500)
    )
    assert 0 < len(many.library) < 20
    assert len(many.library) + len(many.evicted) == 50


GUARDS = Guards.for_examples(
    [
        ({"text": "Chad has been independent since 11 August 1960"}, {"date": "1960-08-11", "code": "XAF"}),
        ({"text": "Gabon has been independent since 17 August 1960"}, {"date": "1960-08-17", "code": "XAF"}),
    ]
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("The date is 1960-08-11.", "quotes the training value '1960-08-11'"),
        ("chad has been independent since 11 then", "from a training input"),
        ("Start with [[ ## answer ## ]]", "field marker"),
        ("End with </experiences> now", "experience block"),
        ("Ring the bell \x07 twice", "control characters"),
        ("Broken \ud800 text", "control characters"),
        ("Attempt 2 was better than the rest", "about an attempt"),
        ("Do what the best attempt did", "about an attempt"),
    ],
)
def test_guards_refuse_what_may_not_become_an_experience(text: str, reason: str) -> None:
    applied = ExperienceLibrary().apply([add(text)], guards=GUARDS)
    assert len(applied.library) == 0
    assert reason in applied.refused[0].reason


@pytest.mark.parametrize(
    "text",
    [
        "Write dates as YYYY-MM-DD.",
        "Write XAF for francs.",  # a code that two examples share belongs to the task
        "It has been independent since a day: write that day.",
    ],
)
def test_guards_let_general_rules_pass(text: str) -> None:
    assert len(ExperienceLibrary().apply([add(text)], guards=GUARDS).library) == 1


@pytest.mark.parametrize(
    "text",
    [
        "Write dates as YYYY-MM-DD, for example 1960-08-11.",
        "Write dates as YYYY-MM-DD (e.g. 1960-08-11)",
        "Write dates as YYYY-MM-DD, such as '1960-08-17'.",
    ],
)
def test_an_illustration_from_training_data_is_cut_off_and_the_rule_stays(text: str) -> None:
    applied = ExperienceLibrary().apply([add(text)], guards=GUARDS)
    assert [e.text for e in applied.library] == ["Write dates as YYYY-MM-DD."]


def test_the_values_of_a_class_may_be_named_although_one_example_alone_has_one() -> None:
    labels = ["no", "no", "no", "yes"]
    guards = Guards.for_examples([({"text": f"text {n}"}, {"dry": v, "code": f"X{n}9"}) for n, v in enumerate(labels)])
    assert guards.refuse("Write yes or no.") is None
    assert guards.refuse("Write X39.") == "quotes the training value 'x39'"


def test_a_library_refuses_two_experiences_with_one_id() -> None:
    with pytest.raises(LibraryError, match="must be unique"):
        ExperienceLibrary((Experience(id="e1", text="a"), Experience(id="e1", text="b")))


@pytest.mark.parametrize(("identifier", "text"), [("1", "x"), ("e0", "x"), ("G1", "x"), ("e1", ""), ("e1", "a\nb")])
def test_an_experience_has_an_id_and_one_line_of_text(identifier: str, text: str) -> None:
    with pytest.raises(LibraryError):
        Experience(id=identifier, text=text)
