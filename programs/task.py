"""What a task is, and how its examples are drawn: the test sets are the same for every seed, the others are not."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import dspy

T = TypeVar("T")
HELD_OUT = "held out"
"""Seeds whatever must not depend on the seed of a run."""


class MissingDataError(FileNotFoundError):
    """The data of a task is not on this machine; the message says where it comes from and where it belongs."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How many examples a cell uses, and how much it learns from them."""

    train: int = 16
    val: int = 12
    test: int = 40
    ood: int = 20
    batch_size: int = 8
    epochs: int = 1
    group_size: int = 5


@dataclass(frozen=True, kw_only=True)
class Splits:
    """Examples that have nothing in common; ``ood`` is out-of-domain."""

    train: list[dspy.Example]
    val: list[dspy.Example]
    test: list[dspy.Example]
    ood: list[dspy.Example]


@dataclass(frozen=True, kw_only=True)
class Task:
    """Something to learn.

    Args:
        name: part of file names.
        source: where the data comes from and what is out-of-domain, in a sentence.
        student: makes the program.
        metric: ``(gold, pred, …)`` returning ``dspy.Prediction(score=…, feedback=…)``; 1.0 is all right.
        splits: draws the examples for a seed. Test and out-of-domain examples are the same for every seed.
        sizes: what fits the task.
        allowed: values of the examples that lessons may name, since they belong to the task.
        local_lm: arguments for ``programs.local_lm.local_lm``, such as a larger context.
    """

    name: str
    source: str
    student: Callable[[], dspy.Module]
    metric: Callable[..., Any]
    splits: Callable[[int, Sizes], Splits]
    sizes: Sizes = field(default_factory=Sizes)
    allowed: tuple[str, ...] = ()
    local_lm: Mapping[str, Any] = field(default_factory=dict)


def halves(things: Sequence[T], seed: Hashable) -> tuple[list[T], list[T]]:
    """The things in two halves, drawn by the seed."""
    shuffled = list(things)
    random.Random(str(seed)).shuffle(shuffled)
    middle = len(shuffled) // 2
    return shuffled[:middle], shuffled[middle:]


def take(
    examples: Sequence[dspy.Example], count: int, seed: Hashable, kind: Callable[[dspy.Example], str] | None = None
) -> list[dspy.Example]:
    """``count`` of the examples, drawn by the seed; with ``kind`` the kinds take turns.

    Raises:
        ValueError: when there are not so many.
    """
    if not 0 <= count <= len(examples):
        raise ValueError(f"asked for {count} examples of the {len(examples)} that there are to draw from")
    shuffled = list(examples)
    random.Random(str(seed)).shuffle(shuffled)
    return (in_turns(shuffled, kind) if kind else shuffled)[:count]


def in_turns(examples: Sequence[dspy.Example], kind: Callable[[dspy.Example], str]) -> list[dspy.Example]:
    """The examples in an order in which the kinds take turns as long as they last."""
    seen: dict[str, int] = {}
    rounds: list[tuple[int, dspy.Example]] = []
    for example in examples:
        seen[kind(example)] = seen.get(kind(example), 0) + 1
        rounds.append((seen[kind(example)], example))
    return [example for _, example in sorted(rounds, key=lambda pair: pair[0])]


def exact_match(output: str) -> Callable[..., dspy.Prediction]:
    """A metric: 1.0 when an output is written exactly as in the label, outer blanks aside; feedback shows both."""

    def metric(
        gold: dspy.Example, pred: Any, trace: Any = None, pred_name: str | None = None, pred_trace: Any = None
    ) -> dspy.Prediction:
        expected, written = str(gold[output]).strip(), str(getattr(pred, output, "")).strip()
        if written == expected:
            return dspy.Prediction(score=1.0, feedback="right")
        return dspy.Prediction(score=0.0, feedback=f"{output}: wrote {written!r}, expected {expected!r}")

    return metric


def require_file(path: Path, where_from: str) -> Path:
    """The path of a data file.

    Raises:
        MissingDataError: when it is not there.
    """
    if not path.is_file():
        raise MissingDataError(
            f"{path} is not there. Get it from {where_from} and put it there, or name the folder that has "
            f"{path.parent.name}/{path.name} with --data-dir or TGRPO_DATA_DIR."
        )
    return path
