"""A user's own file: every kind is read alike, and what is wrong with one is said with its place."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dspy
import pytest

from programs.own_data import DataFileError, examples_from_file
from programs.task import MissingDataError

ROWS = [
    {"question": "What is 2 + 3,\nin words?", "answer": "five", "level": "easy"},
    {"question": "Wie groß ist 2²?", "answer": "vier", "level": "leicht"},
]


def write_jsonl(path: Path) -> None:
    path.write_text("\n\n".join(json.dumps(row) for row in ROWS), encoding="utf-8")


def write_json(path: Path) -> None:
    path.write_text(json.dumps(ROWS, ensure_ascii=False), encoding="utf-8-sig")


def write_csv(path: Path) -> None:
    lines = ["level,question,answer", *(f'{row["level"]},"{row["question"]}",{row["answer"]}' for row in ROWS)]
    path.write_text("\r\n".join(lines), encoding="utf-8", newline="")


def write_parquet(path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)


@pytest.mark.parametrize(
    ("name", "write"),
    [("a.jsonl", write_jsonl), ("a.JSON", write_json), ("a.csv", write_csv), ("a.parquet", write_parquet)],
)
def test_every_kind_of_file(name: str, write: Callable[[Path], None], tmp_path: Path) -> None:
    write(tmp_path / name)
    examples = examples_from_file(tmp_path / name)
    assert examples == [
        dspy.Example(question=row["question"], answer=row["answer"]).with_inputs("question") for row in ROWS
    ]
    assert [example.inputs().keys() for example in examples] == [["question"], ["question"]]


def test_columns_by_name_keep_their_types(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text('{"text": "x", "lang": "en", "label": 3, "tags": ["a"]}\n', encoding="utf-8")
    (example,) = examples_from_file(path, inputs=("text", "lang"), outputs=("label", "tags"))
    assert example.inputs().toDict() == {"text": "x", "lang": "en"}
    assert example.labels().toDict() == {"label": 3, "tags": ["a"]}


GOOD = '{"question": "q", "answer": "a"}\n'


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "question", r"a\.txt: the name of the file must end in one of \.jsonl, \.json, \.csv, \.parquet"),
        ("a.jsonl", GOOD + '{"question": "q" "answer"}', r"a\.jsonl, line 2, is not JSON: Expecting ',' delimiter"),
        ("a.jsonl", GOOD + "\n[1]\n", r"a\.jsonl, line 3: must be an object, is a list"),
        ("a.jsonl", GOOD + "true", r"line 2: must be an object, is a truth value"),
        (
            "a.jsonl",
            '{"question": "q", "label": 1, "x": null}',
            r"line 1: there is no answer; there is question, label",
        ),
        ("a.jsonl", "{}", r"line 1: there is no question, answer; there is nothing"),
        ("a.jsonl", '{"question": null, "answer": "a"}', r"line 1: there is no question; there is answer"),
        ("a.jsonl", "", r"a\.jsonl has no examples"),
        ("a.jsonl", " \n\n", r"a\.jsonl has no examples"),
        ("a.json", '{"examples": []}', r"a\.json must hold a list of objects, holds an object"),
        ("a.json", "[1]", r"a\.json, item 1: must be an object, is a number"),
        ("a.json", "[]", r"a\.json has no examples"),
        ("a.json", "", r"a\.json, as a whole, is not JSON"),
        ("a.csv", "question,answer\nq\n", r"a\.csv, line 2: there is no answer; there is question"),
        ("a.csv", "question,answer\nq,a,b\n", r"a\.csv, line 2: more values than columns in the head line"),
        ("a.csv", 'question,answer\nq,"a\n', r"a\.csv, line 2: unexpected end of data"),
        ("a.csv", "question;answer\nq;a\n", r"line 2: there is no question, answer; there is question;answer"),
        ("a.csv", "question,answer\n", r"a\.csv has no examples"),
        ("a.csv", "", r"a\.csv has no examples"),
    ],
)
def test_what_is_wrong_with_a_file(name: str, content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(DataFileError, match=message):
        examples_from_file(tmp_path / name)


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv"])
def test_text_in_another_encoding(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes("question,answer\nWie groß?,zwölf\n".encode("latin-1"))
    with pytest.raises(DataFileError, match=r"is not text in UTF-8"):
        examples_from_file(tmp_path / name)


def test_a_broken_parquet_file(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "a.parquet").write_bytes(b"no such thing")
    with pytest.raises(DataFileError, match=r"a\.parquet cannot be read as Parquet"):
        examples_from_file(tmp_path / "a.parquet")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"own\.jsonl is not there"):
        examples_from_file(tmp_path / "own.jsonl")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(MissingDataError, match=r"folder\.csv is no file"):
        examples_from_file(tmp_path / "folder.csv")


@pytest.mark.parametrize("columns", [{"inputs": ()}, {"inputs": ("a",), "outputs": ("a",)}, {"inputs": ("a", "a")}])
def test_columns_that_make_no_example(columns: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="name at least one input, and no column twice"):
        examples_from_file(tmp_path / "own.jsonl", **columns)
