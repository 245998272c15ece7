"""What compiling a program would take, from the command line."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import dspy

from tgrpo_dspy.errors import ConfigurationError
from tgrpo_dspy.optimizer import TrainingFreeGRPO
from tgrpo_dspy.settings import Budget

_OF_THE_OPTIMIZER = ("group_size", "epochs", "batch_size")


def add_estimate(command: argparse.ArgumentParser) -> None:
    """Add the arguments of ``estimate``."""
    command.add_argument(
        "program",
        metavar="PROGRAM",
        help="module:name of a dspy.Module or of something that makes one, imported from here; or a signature such as "
        "'question -> answer'",
    )
    command.add_argument("--train", type=Path, required=True, metavar="FILE", help="examples, .jsonl or .json")
    command.add_argument("--val", type=Path, metavar="FILE", help="validation examples")
    command.add_argument("--inputs", nargs="+", required=True, metavar="FIELD", help="the fields that are inputs")
    for name in _OF_THE_OPTIMIZER:
        command.add_argument(f"--{name.replace('_', '-')}", type=int, metavar="N", help="as for TrainingFreeGRPO")
    command.add_argument("--lm", metavar="NAME", help="a LiteLLM model name, for prices")
    command.add_argument("--reflection-lm", metavar="NAME", help="the same, of the model that reflects")
    command.add_argument("--max-lm-calls", type=int, metavar="N", help="a budget; warns when it is too small")
    command.add_argument("--max-cost", type=float, metavar="USD", help="the same in US dollars")


def estimate(options: argparse.Namespace) -> None:
    """Print what ``compile`` would take."""
    given = {name: value for name in _OF_THE_OPTIMIZER if (value := getattr(options, name)) is not None}
    reflection_lm = dspy.LM(options.reflection_lm) if options.reflection_lm else None
    optimizer = TrainingFreeGRPO(_no_metric, reflection_lm=reflection_lm, **given)
    trainset = _examples(options.train, options.inputs)
    valset = _examples(options.val, options.inputs) if options.val else None
    budget = Budget(max_lm_calls=options.max_lm_calls, max_cost=options.max_cost)
    with dspy.context(lm=dspy.LM(options.lm) if options.lm else None):
        found = optimizer.estimate(_program(options.program), trainset=trainset, valset=valset, budget=budget)
    print(json.dumps(asdict(found), indent=2) if options.json else found)


def _no_metric(*_: Any, **__: Any) -> float:
    raise AssertionError("an estimate runs nothing")


def _program(told: str) -> dspy.Module:
    """The program: imported, or made of a signature."""
    if "->" in told:
        try:
            return dspy.Predict(told)
        except Exception as error:  # DSPy raises what its parser happens to
            raise ConfigurationError(f"{told!r} is no signature: {error}") from error
    module, _, name = told.partition(":")
    if not (module and name):
        raise ConfigurationError(f"{told!r} is neither module:name nor a signature with '->'")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        made = found if isinstance(found, dspy.Module) else found()  # type: ignore[operator]
    except Exception as error:  # the user's own code: it is named, and so is what it raised
        raise ConfigurationError(f"{told} cannot be imported and made: {type(error).__name__}: {error}") from error
    if not isinstance(made, dspy.Module):
        raise ConfigurationError(f"{told} gives a {type(made).__name__}, not a dspy.Module")
    return made


def _examples(path: Path, inputs: list[str]) -> list[dspy.Example]:
    text = path.read_text(encoding="utf-8-sig")
    try:
        rows = json.loads(text) if path.suffix.lower() == ".json" else [json.loads(line) for line in _lines(text)]
    except ValueError as error:
        raise ConfigurationError(f"{path} cannot be read as JSON: {error}") from error
    if not (isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows)):
        raise ConfigurationError(f"{path} must hold objects: one on every line, or a list of them in a .json file")
    for number, row in enumerate(rows, start=1):
        missing = [name for name in inputs if name not in row]
        if missing:
            raise ConfigurationError(f"{path}, example {number}: there is no {', '.join(missing)} in {', '.join(row)}")
    return [dspy.Example(**row).with_inputs(*inputs) for row in rows]


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]
