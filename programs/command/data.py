"""The examples a command works on: drawn from the program's own data, or from files of the user's."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import dspy

from programs.command.application import Application, CommandError
from programs.command.arguments import SETS, Set
from programs.own_data import examples_from_file
from programs.task import Sizes, Splits, Task, take

_USED_BY = {"compile": ("train", "val"), "evaluate": ("test", "ood"), "compare": SETS}


def splits(args: argparse.Namespace, application: Application, task: Task) -> Splits:
    """The four sets. Validation examples that no file gives are drawn from the training file, if there is one.

    Raises:
        MissingDataError: when a file, or the program's own data, is not there.
        DataFileError: when a file cannot be read.
        CommandError: when there are not as many examples as asked for.
    """
    asked: dict[str, Set] = {name: _asked(args, name, task.sizes) for name in SETS}
    found = {
        name: examples_from_file(value, application.inputs, application.outputs)
        for name, value in asked.items()
        if isinstance(value, Path)
    }
    if "train" in found and "val" not in found:
        found["val"] = _some(found["train"], _count(asked["val"]), args.seed)
        found["train"] = [example for example in found["train"] if not any(example is v for v in found["val"])]
    drawn = {name: _count(value) for name, value in asked.items() if name not in found}
    if any(drawn.values()):
        sizes = replace(task.sizes, **{name: drawn.get(name, 0) for name in SETS})
        own = _own(task, args.seed, sizes)
        found |= {name: getattr(own, name) for name in drawn}
    return Splits(**{name: found.get(name, []) for name in SETS})


def _some(examples: list[dspy.Example], count: int, seed: int) -> list[dspy.Example]:
    if count >= len(examples):
        raise CommandError(
            f"--train has {len(examples)} examples, of which {count} would be taken to validate: give fewer with --val"
        )
    return take(examples, count, f"validation {seed}")


def _own(task: Task, seed: int, sizes: Sizes) -> Splits:
    try:
        return task.splits(seed, sizes)
    except ValueError as error:
        raise CommandError(str(error)) from error


def _asked(args: argparse.Namespace, name: str, sizes: Sizes) -> Set:
    given: Set | None = getattr(args, name)
    if given is not None:
        return given
    return getattr(sizes, name) if name in _USED_BY[args.command] else 0


def _count(value: Set) -> int:
    assert isinstance(value, int)
    return value
