"""Mathematical problems: every published form is read alike, nothing is learned on that is tested on."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rapidfuzz import fuzz

from programs.math_reasoning.data import DATASETS, SOURCES, load, splits
from programs.own_data import DataFileError
from programs.task import MissingDataError, Sizes, Splits

DATA = Path(os.environ.get("TGRPO_DATA_DIR", Path(__file__).parents[3] / "shared" / "data"))
SMALL = Sizes(train=3, val=2, test=2, ood=2)
WORDS = "apples bridges candles dragons eagles forests guitars hammers islands jackets kettles lanterns"
NOUNS = WORDS.split()

BEFORE = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
AFTER = '\n\nRemember to put your answer on its own line after "Answer:".'


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def problems(count: int, what: str) -> list[dict[str, str]]:
    """Problems that are not alike."""
    return [{"question": f"{noun} {noun} {what} {noun}?", "answer": str(i)} for i, noun in enumerate(NOUNS[:count])]


def gsm8k(row: Mapping[str, str]) -> dict[str, str]:
    return {"question": row["question"], "answer": f"It is <<1+1=2>>2,\nso it is more.\n#### {row['answer']}"}


def dapo(row: Mapping[str, str]) -> dict[str, Any]:
    """A row as DAPO publishes it."""
    return {
        "data_source": "math_dapo",
        "prompt": [{"role": "user", "content": BEFORE + row["question"] + AFTER}],
        "reward_model": {"ground_truth": row["answer"], "style": "rule-lighteval/MATH_v2"},
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "gsm8k/train.jsonl", [gsm8k(row) for row in problems(12, "in the shop")])
    write(tmp_path / "gsm8k/test.jsonl", [gsm8k(row) for row in problems(3, "left over in the warehouse far away")])
    write(tmp_path / "dapo/train.jsonl", [dapo(row) for row in problems(12, "modulo")])
    write(tmp_path / "aime/aime_2024.jsonl", problems(3, "in the first competition of the year"))
    write(tmp_path / "aime/aime_2025.jsonl", problems(3, "that were counted by the second examiner"))
    return tmp_path


def pairs(name: str, folder: Path) -> list[tuple[str, str]]:
    examples = load(name, folder)
    assert all(example.inputs().keys() == ["question"] for example in examples)
    return [(example.question, example.answer) for example in examples]


@pytest.mark.parametrize(
    ("name", "file", "row", "expected"),
    [
        ("gsm8k train", "gsm8k/train.jsonl", gsm8k({"question": "q", "answer": "1,234"}), ("q", "1234")),
        ("gsm8k test", "gsm8k/test.jsonl", gsm8k({"question": "q", "answer": "-5"}), ("q", "-5")),
        ("gsm8k test", "gsm8k/test.jsonl", {"question": "q", "answer": "7"}, ("q", "7")),
        ("dapo", "dapo/train.jsonl", dapo({"question": "Find $x$.", "answer": "34"}), ("Find $x$.", "34")),
        ("dapo", "dapo/train.jsonl", {"prompt": "Find $x$.", "solution": "34"}, ("Find $x$.", "34")),
        ("dapo", "dapo/train.jsonl", {"question": "Find $x$.", "answer": 34}, ("Find $x$.", "34")),
        ("aime 2024", "aime/aime_2024.jsonl", {"problem": "q", "answer": "033", "solution": "long"}, ("q", "33")),
        ("aime 2024", "aime/aime_2024.jsonl", {"question": "q", "answer": "000"}, ("q", "0")),
        ("aime 2025", "aime/aime_2025.jsonl", {"problem": "q", "answer": "70"}, ("q", "70")),
    ],
)
def test_every_published_form(
    name: str, file: str, row: Mapping[str, Any], expected: tuple[str, str], tmp_path: Path
) -> None:
    write(tmp_path / file, [row])
    assert pairs(name, tmp_path) == [expected]


def test_parquet_as_it_is_published(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    (tmp_path / "dapo").mkdir()
    rows = [dapo({"question": "Find $x$.", "answer": "34"})] * 3
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "dapo/train.parquet")
    assert pairs("dapo", tmp_path) == [("Find $x$.", "34")]


def test_a_problem_that_is_repeated_is_there_once(tmp_path: Path) -> None:
    first, other = problems(2, "modulo")
    write(tmp_path / "dapo/train.jsonl", [dapo(row) for row in (first, other, first, {**first, "answer": "9"})])
    assert pairs("dapo", tmp_path) == [(first["question"], "0"), (other["question"], "1")]


def test_a_row_that_is_not_what_was_published(tmp_path: Path) -> None:
    write(tmp_path / "aime/aime_2024.jsonl", [{"problem": "q", "answer": "1"}, {"problem": "q", "result": "1"}])
    with pytest.raises(DataFileError, match=r"aime 2024, line 2: no problem can be read from problem, result"):
        load("aime 2024", tmp_path)


class Hub(SimpleNamespace):
    """What ``datasets`` finds on the hub: rows by name, config and split."""

    def load_dataset(self, path: str, name: str, *, split: str) -> list[dict[str, Any]]:
        try:
            rows: list[dict[str, Any]] = self.sets[path, name, split]
        except KeyError:
            raise ConnectionError(f"Couldn't reach {path!r} on the Hub") from None
        return rows


def test_what_is_not_in_the_folder_comes_from_the_hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published = {
        ("openai/gsm8k", "main", "train"): gsm8k({"question": "a", "answer": "1,000"}),
        ("openai/gsm8k", "main", "test"): gsm8k({"question": "b", "answer": "2"}),
        ("open-r1/DAPO-Math-17k-Processed", "all", "train"): {"prompt": "c", "solution": "3"},
        ("HuggingFaceH4/aime_2024", "default", "train"): {"id": 60, "problem": "d", "answer": "004"},
        ("yentinglin/aime_2025", "default", "train"): {"problem": "e", "answer": "5"},
    }
    hub = Hub(sets={key: [row] for key, row in published.items()})
    monkeypatch.setitem(sys.modules, "datasets", hub)
    found = [pairs(name, folder / "elsewhere") for name in SOURCES]
    assert found == [[("a", "1000")], [("b", "2")], [("c", "3")], [("d", "4")], [("e", "5")]]
    assert len(pairs("gsm8k train", folder)) == 12, "a local file comes first"


def test_what_can_be_had_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "dapo" / "train.parquet"
    with pytest.raises(MissingDataError) as without_package:
        load("dapo", tmp_path)
    monkeypatch.setitem(sys.modules, "datasets", Hub(sets={}))
    with pytest.raises(MissingDataError) as without_network:
        load("dapo", tmp_path)
    for error in (without_package, without_network):
        assert str(file) in str(error.value) and "/datasets/open-r1/DAPO-Math-17k-Processed" in str(error.value)
    assert "pip install datasets" in str(without_package.value)
    assert "Couldn't reach" in str(without_network.value)


def texts(part: Sequence[Any]) -> list[str]:
    return [example.question for example in part]


@pytest.mark.parametrize("dataset", DATASETS)
def test_the_seed_draws_what_is_learned_on_and_nothing_else(dataset: str, folder: Path) -> None:
    first, again, other = (splits(dataset, seed, SMALL, folder) for seed in (0, 0, 1))
    assert [len(part) for part in vars(first).values()] == [3, 2, 2, 2]
    assert again == first
    assert (other.test, other.ood) == (first.test, first.ood) and other.train != first.train
    everything = [text for part in vars(first).values() for text in texts(part)]
    assert len(set(everything)) == len(everything)


def test_where_the_parts_come_from(folder: Path) -> None:
    known = {name: set(texts(load(name, folder))) for name in SOURCES}
    all_of_it = Sizes(train=8, val=4, test=3, ood=6)
    on_gsm8k = splits("gsm8k", 0, all_of_it, folder)
    assert {*texts(on_gsm8k.train), *texts(on_gsm8k.val)} == known["gsm8k train"]
    assert set(texts(on_gsm8k.test)) == known["gsm8k test"]
    assert set(texts(on_gsm8k.ood)) == known["aime 2024"] | known["aime 2025"]
    on_dapo = splits("dapo", 0, replace(all_of_it, ood=3), folder)
    assert {*texts(on_dapo.train), *texts(on_dapo.val)} == known["dapo"]
    assert set(texts(on_dapo.test)) == known["aime 2024"] and set(texts(on_dapo.ood)) == known["aime 2025"]


def test_dapo_is_a_draw_of_a_hundred(folder: Path) -> None:
    words = [f"{a} {b} {c}" for a in NOUNS for b in NOUNS for c in NOUNS if a < b < c]
    write(folder / "dapo/train.jsonl", [{"prompt": text, "solution": "1"} for text in words])
    assert len(words) > 200
    few, many = (splits("dapo", 0, replace(SMALL, train=train), folder) for train in (10, 98))
    assert texts(few.train) == texts(many.train)[:10] and len(many.train) == 98
    assert {*texts(few.train), *texts(few.val)} <= {*texts(many.train), *texts(many.val)}
    with pytest.raises(ValueError, match=r"train \(99\) and val \(2\) are taken from 100 problems"):
        splits("dapo", 0, replace(SMALL, train=99), folder)


def test_a_tested_problem_is_not_learned_on_however_it_is_written(folder: Path) -> None:
    aime = r"Find the number of ordered pairs $(x,y)$ with $x^2 + y^2 = \tfrac{25}{4}$ and $x < y$."
    alike = [
        aime,
        aime.upper(),
        aime.replace(r"\tfrac", r"\frac").replace("$", ""),
        f"{aime} The answer is an integer, give it in decimal digits.",
        aime.replace("Find the number of", "Determine the number of"),
    ]
    unlike = {"prompt": "How many primes are there below the square of a hundred?", "solution": "1229"}
    write(folder / "aime/aime_2024.jsonl", [{"problem": aime, "answer": "012"}, *problems(1, "counted")])
    write(folder / "dapo/train.jsonl", [*({"prompt": text, "solution": "12"} for text in alike), unlike])
    drawn = splits("dapo", 0, replace(SMALL, train=1, val=0, test=1), folder)
    assert texts(drawn.train) == [unlike["prompt"]]
    with pytest.raises(ValueError, match="taken from 1 problems to learn from"):
        splits("dapo", 0, replace(SMALL, train=2, val=0), folder)


def test_no_two_problems_to_learn_from_are_alike(folder: Path) -> None:
    text = "Tom buys 3 crates with 12 bottles each and gives 5 of the bottles away. How many bottles does he keep?"
    rows = [{"question": text.replace("Tom", name), "answer": "31"} for name in ("Tom", "Ann", "Liu")]
    write(folder / "gsm8k/train.jsonl", [gsm8k(row) for row in [*rows, *problems(1, "in the shop")]])
    with pytest.raises(ValueError, match="taken from 2 problems"):
        splits("gsm8k", 0, replace(SMALL, train=2, val=1), folder)


@pytest.mark.parametrize(
    ("dataset", "sizes", "message"),
    [
        ("math500", SMALL, r"there is no data set 'math500'; there are gsm8k, dapo"),
        ("gsm8k", replace(SMALL, train=-1), r"train \(-1\) and val \(2\)"),
        ("gsm8k", replace(SMALL, test=4), r"asked for 4 examples of the 3"),
        ("dapo", replace(SMALL, ood=4), r"asked for 4 examples of the 3"),
    ],
)
def test_what_cannot_be_drawn(dataset: str, sizes: Sizes, message: str, folder: Path) -> None:
    with pytest.raises(ValueError, match=message):
        splits(dataset, 0, sizes, folder)


def real(name: str) -> list[Any]:
    try:
        return load(name, DATA)
    except MissingDataError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("name", "count", "first", "answer"),
    [
        ("gsm8k train", 7473, "Natalia sold clips to 48 of her friends in April", "72"),
        ("gsm8k test", 1319, "Janet", "18"),
        ("aime 2024", 30, "Let $x,y$ and $z$ be positive real numbers", "33"),
        ("aime 2025", 30, "Find the sum of all integer bases $b>9$", "70"),
    ],
)
def test_real_problems(name: str, count: int, first: str, answer: str) -> None:
    examples = real(name)
    assert len(examples) == count
    assert examples[0].question.startswith(first) and examples[0].answer == answer
    integers = [int(example.answer) for example in examples]
    assert name.startswith("gsm8k") or all(0 <= number <= 999 for number in integers)


def test_a_real_draw() -> None:
    real("gsm8k train"), real("aime 2025")
    sizes = Sizes(train=8, val=4, test=20, ood=20)
    drawn = splits("gsm8k", 0, sizes, DATA)
    assert [len(part) for part in vars(drawn).values()] == [8, 4, 20, 20]
    learned = texts([*drawn.train, *drawn.val])
    assert max(fuzz.ratio(text, other) for text in learned for other in texts([*drawn.test, *drawn.ood])) < 80
    assert isinstance(drawn, Splits) and splits("gsm8k", 1, sizes, DATA).test == drawn.test
