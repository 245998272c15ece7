"""Four tasks of BIG-Bench-Hard, exact match: nothing tells the student how the answer is to be written."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import dspy

from programs.task import HELD_OUT, Sizes, Splits, Task, exact_match, halves, require_file, take

_URL = "https://github.com/suzgunmirac/BIG-Bench-Hard (MIT, folder bbh)"


@dataclass(frozen=True)
class _Part:
    """The items of one BBH file that a condition picks."""

    file: str
    picks: Callable[[str], bool] = lambda question: True


@dataclass(frozen=True)
class _Pair:
    """What is learned on, what is out-of-domain, and how the two differ."""

    inside: _Part
    outside: _Part
    difference: str


# Out-of-domain keeps the form of the answers: another kind of item of the same file, or another file.
_PAIRS = {
    "sports_understanding": _Pair(
        _Part("sports_understanding", lambda question: " in the " not in question),
        _Part("sports_understanding", lambda question: " in the " in question),
        "sentences that say when or in which competition",
    ),
    "snarks": _Pair(_Part("snarks"), _Part("hyperbaton"), "hyperbaton, two options as well"),
    "navigate": _Pair(
        _Part("navigate", lambda question: "Always face forward" in question),
        _Part("navigate", lambda question: "Always face forward" not in question),
        "instructions that turn around",
    ),
    "date_understanding": _Pair(
        _Part("date_understanding"), _Part("temporal_sequences"), "temporal_sequences, options as well"
    ),
}


class AnswerQuestion(dspy.Signature):
    """Answer the question."""

    question: str = dspy.InputField()
    answer: str = dspy.OutputField()


def tasks(folder: Path) -> list[Task]:
    """The tasks, read from a folder with BBH's JSON files."""
    return [_task(name, pair, folder) for name, pair in _PAIRS.items()]


def _task(name: str, pair: _Pair, folder: Path) -> Task:
    def splits(seed: int, sizes: Sizes) -> Splits:
        test, rest = halves(_load(pair.inside, folder), HELD_OUT)
        train, val = halves(rest, seed)
        return Splits(
            train=take(train, sizes.train, seed),
            val=take(val, sizes.val, seed),
            test=take(test, sizes.test, HELD_OUT),
            ood=take(_load(pair.outside, folder), sizes.ood, HELD_OUT),
        )

    return Task(
        name=name,
        source=f"BIG-Bench-Hard {pair.inside.file} (MIT); out-of-domain: {pair.difference}",
        student=lambda: dspy.Predict(AnswerQuestion),
        metric=exact_match("answer"),
        splits=splits,
    )


def _load(part: _Part, folder: Path) -> list[dspy.Example]:
    file = require_file(folder / f"{part.file}.json", _URL)
    items = json.loads(file.read_text(encoding="utf-8"))["examples"]
    return [
        dspy.Example(question=item["input"], answer=item["target"]).with_inputs("question")
        for item in items
        if part.picks(item["input"])
    ]
