"""Country records: labels checked by eye against the raw text, the splits, the metric."""

from __future__ import annotations

from typing import Any

import dspy
import pytest

from programs.country_records import data
from programs.country_records.data import FIELDS, OOD_REGION, Fact, UnparsableError, load_records, splits
from programs.country_records.metric import field_accuracy
from programs.country_records.program import program

# Written down from the raw Factbook text: independence_date, currency, landlocked, population.
BY_EYE = {
    "ag": ("1962-07-05", "DZD", "no", "47735685"),  # Algeria: "5 July 1962 (from France)"
    "as": ("1901-01-01", "AUD", "no", "27490921"),  # Bahrain
    "lo": ("1993-01-01", "EUR", "yes", "5563649"),  # Slovakia: "(Czechoslovakia split into …)", 2024 estimate
    "ls": ("1719-01-23", "CHF", "yes", "40547"),  # Liechtenstein: two dates; "0 km (doubly landlocked)"
    "cf": ("1960-08-15", "XAF", "no", "6097665"),  # Congo (Brazzaville): CFA francs with a long name
    "fi": ("1917-12-06", "EUR", "no", "5550449"),  # Finland: coastline "1,250 km"
    "iv": ("1960-08-07", "XOF", "no", "31855971"),  # Côte d'Ivoire: accents in the name
    "ct": ("1960-08-13", "XAF", "yes", "5750570"),  # Central African Republic: short name "none"
    "in": ("1947-08-15", "INR", "no", "1419316933"),  # India: above a thousand million
    "nl": ("1581-07-26", "EUR", "no", "17833885"),  # Netherlands: sixteenth century
    "sw": ("1523-06-06", "SEK", "no", "10643745"),  # Sweden: "6 June 1523 (Gustav VASA elected king …"
    "ba": ("1971-08-15", "BHD", "no", "1566888"),  # Bahrain
    "ws": ("1962-01-01", "SAT", "no", "210223"),  # Samoa: "tala (SAT)", the source's own code
    "kv": ("2008-02-17", "EUR", "yes", "1977093"),  # Kosovo
    "tx": ("1991-10-27", "TMM", "yes", "5744151"),  # Turkmenistan: "manat (TMM)"
    "mr": ("1960-11-28", "MRO", "no", "5202109"),  # Mauritania: "ouguiyas (MRO)"
    "vt": ("1929-02-11", "EUR", "yes", "1000"),  # Holy See: "1,000 (2024)"
    "ha": ("1804-01-01", "HTG", "no", "11898812"),  # Haiti
    "fj": ("1970-10-10", "FJD", "no", "951611"),  # Fiji: below a million
    "ic": ("1918-12-01", "ISK", "no", "364036"),  # Iceland: two dates
}

# Seen in the raw text: why each of these has no record.
BY_EYE_SKIPPED = {
    "ec": "no currency with a three-letter code",  # Ecuador: "the US dollar is used"
    "wz": "no currency with a three-letter code",  # Eswatini: "emalangeni per US dollar -"
    "pa": "no full date of independence",  # Paraguay: "14-15 May 1811 (from Spain)"
    "lu": "no full date of independence",  # Luxembourg: "1839 (from the Netherlands)"
    "ee": "no country name",  # European Union
}


def raw(code: str) -> tuple[str, Any]:
    return next((region, content) for key, region, content in data.raw_countries() if key == code)


def under(text: str, *path: str) -> Any:
    node: Any = {"text": text}
    for key in reversed(path):
        node = {key: node}
    return node


@pytest.mark.parametrize("code", BY_EYE)
def test_label_checked_by_eye(code: str) -> None:
    record = next(record for record in load_records().records if record.code == code)
    assert tuple(record.label[field] for field in FIELDS) == BY_EYE[code]


@pytest.mark.parametrize("code", BY_EYE_SKIPPED)
def test_unreadable_country_is_left_out_with_its_reason(code: str) -> None:
    assert code not in {record.code for record in load_records().records}
    with pytest.raises(UnparsableError, match=BY_EYE_SKIPPED[code]):
        data.parse(code, *raw(code))


def test_the_prose_keeps_the_wording_of_the_source() -> None:
    assert data.parse("ag", *raw("ag")).text == (
        "Algeria has been independent since 5 July 1962 and has a coastline of 998 km. "
        "47,735,685 people live there and pay in Algerian dinars (DZD)."
    )
    assert data.parse("ct", *raw("ct")).text.startswith("Central African Republic has been ")
    assert "is landlocked. " in data.parse("ls", *raw("ls")).text


def test_every_country_is_a_record_or_is_counted() -> None:
    loaded = load_records()
    assert len(loaded.records) + loaded.skipped.total() == 256
    assert set(loaded.skipped) >= set(BY_EYE_SKIPPED.values())


def test_records_are_complete_and_short() -> None:
    for record in load_records().records:
        assert tuple(record.label) == FIELDS
        assert all(record.label.values())
        assert len(record.text) <= 240, record.text  # the longest is 68 tokens with the local model's tokenizer
        assert "none" not in record.text
        assert "<" not in record.text and "&" not in record.text


def test_a_trailing_blank_in_a_key_and_html_in_a_value_are_cleaned() -> None:
    assert data.raw_text(under("<p>5&nbsp;sq km</p>", "Geography", "Area", "total "), "Geography", "Area", "total") == (
        "5 sq km"
    )
    assert data.raw_text({"Geography": "not a mapping"}, "Geography", "Area") == ""


@pytest.mark.parametrize("text", ["31 Brumaire 1799", "none (territory of the US)", "ca. 965", ""])
def test_independence_without_a_full_date(text: str) -> None:
    with pytest.raises(UnparsableError):
        data.independence(under(text, "Government", "Independence"))


def test_first_date_counts() -> None:
    text = "4 April 1960 (from France); 20 August 1960 (full independence)"
    assert data.independence(under(text, "Government", "Independence")) == Fact("4 April 1960", "1960-04-04")


def test_splits_are_disjoint_by_country_and_have_the_sizes_asked_for() -> None:
    drawn = splits(3, train=5, val=4, test=6, ood=7)
    assert [len(part) for part in (drawn.train, drawn.val, drawn.test, drawn.ood)] == [5, 4, 6, 7]
    texts = [example.text for part in (drawn.train, drawn.val, drawn.test, drawn.ood) for example in part]
    assert len(set(texts)) == 22


def test_the_seed_draws_train_and_validation_and_leaves_the_held_out_sets_alone() -> None:
    assert splits(1) == splits(1)
    assert splits(1).train != splits(2).train
    assert splits(1).test == splits(2).test and splits(1).ood == splits(2).ood


@pytest.mark.parametrize("seed", range(3))
def test_the_region_is_held_out(seed: int) -> None:
    regions = {record.text: record.region for record in load_records().records}
    drawn = splits(seed)
    assert {regions[example.text] for example in drawn.ood} == {OOD_REGION}
    assert OOD_REGION not in {regions[e.text] for part in (drawn.train, drawn.val, drawn.test) for e in part}


def test_only_the_text_is_an_input() -> None:
    example = splits(0).train[0]
    assert example.inputs().keys() == ["text"]
    assert tuple(example.labels().keys()) == FIELDS


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (
            {"test": 4000},
            r"train \+ val \+ test \(16 \+ 12 \+ 4000\) asks for 4028 countries; \d+ can be parsed outside",
        ),
        ({"ood": 300}, r"ood \(300\) asks for 300 countries; \d+ can be parsed in africa"),
        ({"val": -1}, r"val must not be negative, is -1"),
    ],
)
def test_sizes_that_cannot_be_had(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        splits(0, **sizes)


GOLD = dspy.Example(
    text="…",
    independence_date="1962-07-05",
    currency="DZD",
    landlocked="no",
    population="47735685",
).with_inputs("text")


def test_metric_all_right_ignores_outer_blanks() -> None:
    pred = dspy.Prediction(**{**GOLD.labels().toDict(), "currency": " DZD\n"})
    result = field_accuracy(GOLD, pred)
    assert result.score == 1.0
    assert result.feedback == "right: independence_date, currency, landlocked, population"


def test_metric_shows_both_values_of_each_wrong_field() -> None:
    pred = dspy.Prediction(**{**GOLD.labels().toDict(), "population": "47,735,685", "landlocked": "No"})
    result = field_accuracy(GOLD, pred, None, "predict", None)
    assert result.score == 0.5
    assert result.feedback.splitlines() == [
        "landlocked: wrote 'No', expected 'no'",
        "population: wrote '47,735,685', expected '47735685'",
        "right: independence_date, currency",
    ]


def test_metric_with_missing_and_non_text_values() -> None:
    result = field_accuracy(GOLD, dspy.Prediction(population=47735685, landlocked=False))
    assert result.score == 0.0
    assert "currency: wrote nothing, expected 'DZD'" in result.feedback
    assert "population: wrote 47735685 (not text), expected '47735685'" in result.feedback
    assert "right:" not in result.feedback


def test_the_program_has_the_fields_of_the_labels_and_tells_no_convention() -> None:
    signature = program().signature
    assert tuple(signature.output_fields) == FIELDS
    assert signature.instructions == "Fill in the country record from the text."
    assert all(field.json_schema_extra["desc"] == f"${{{name}}}" for name, field in signature.output_fields.items())
