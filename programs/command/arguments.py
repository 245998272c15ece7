"""The arguments of the command."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TypeAlias

from programs.command.application import Application

Set: TypeAlias = int | Path
"""How many examples of the program's own data, or a file of the user's."""

SETS = ("train", "val", "test", "ood")


def parser(application: Application) -> argparse.ArgumentParser:
    """The parser of an application's command."""
    whole = argparse.ArgumentParser(prog=f"python -m programs.{application.name}", description=application.about)
    commands = whole.add_subparsers(dest="command", required=True, metavar="compile|evaluate|compare")
    for name, about, own in (
        ("compile", "learn a library and save the compiled program", _compile),
        ("evaluate", "score the program, or a saved one, on unseen examples", _evaluate),
        ("compare", "compile, then score student, compiled and few-shot program side by side", _compare),
    ):
        command = commands.add_parser(name, help=about, description=f"{application.about} Here: {about}.")
        _data(command)
        own(command)
        _models(command)
        application.add_options(command)
        command.set_defaults(run_dir=Path("runs") / application.name)
    return whole


def _compile(command: argparse.ArgumentParser) -> None:
    _learning(command)


def _evaluate(command: argparse.ArgumentParser) -> None:
    command.add_argument("--program", type=Path, metavar="FILE", help="a compiled.json (default: the student)")
    command.add_argument(
        "--library",
        type=Path,
        metavar="FILE",
        help="put this library in first, of this program or another",
    )
    _scoring(command)


def _compare(command: argparse.ArgumentParser) -> None:
    _learning(command)
    command.add_argument(
        "--few-shot", type=int, default=2, metavar="K", help="examples of LabeledFewShot; 0: without (default: 2)"
    )
    _scoring(command)


def _data(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group(
        "data", "a number draws examples of the program's own data, a .jsonl, .json, .csv or .parquet file is yours"
    )
    what = dict(zip(SETS, ("training", "validation", "held-out", "out-of-domain"), strict=True))
    for name, kind in what.items():
        group.add_argument(f"--{name}", type=_set, metavar="N|FILE", help=f"{kind} examples")
    group.add_argument(
        "--data-dir",
        type=Path,
        default=Path(os.environ.get("TGRPO_DATA_DIR", "data")),
        metavar="DIR",
        help="folder of downloaded data sets (default: TGRPO_DATA_DIR, or %(default)s)",
    )
    group.add_argument("--seed", type=int, default=0, help="of the draw and the rollouts (default: %(default)s)")


def _learning(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("learning")
    group.add_argument("--epochs", type=int, metavar="N", help="passes over the training examples")
    group.add_argument("--group-size", type=int, metavar="N", help="rollouts of an example")
    group.add_argument("--batch-size", type=int, metavar="N", help="examples of a step")
    group.add_argument("--exemplars", type=int, default=0, metavar="N", help="demonstrations to keep (default: 0)")
    group.add_argument("--no-ground-truth", action="store_true", help="learn from agreement, without labels or rewards")
    group.add_argument("--max-lm-calls", type=int, metavar="N", help="budget; the same command later goes on")
    group.add_argument("--max-cost", type=float, metavar="USD", help="budget in US dollars, where prices are known")
    group.add_argument("--estimate", action="store_true", help="print what it would take, and do nothing")


def _scoring(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("scoring")
    group.add_argument(
        "--repeats", type=int, default=1, metavar="K", help="runs of every example, for Mean@K and Pass@K (default: 1)"
    )


def _models(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("models and running")
    group.add_argument("--lm", help="a LiteLLM model name (default: TGRPO_LM, or a local model)")
    group.add_argument("--reflection-lm", help="another model to reflect with (default: TGRPO_REFLECTION_LM, or --lm)")
    group.add_argument("--temperature", type=float, help="of the model when it is scored; rollouts always sample")
    group.add_argument("--max-tokens", type=int, metavar="N", help="bound on a completion")
    group.add_argument("--threads", type=int, default=4, metavar="N", help="runs at once (default: %(default)s)")
    group.add_argument("--run-dir", type=Path, metavar="DIR", help="keeps everything; the same command resumes")
    group.add_argument("--quiet", action="store_true", help="no progress bar")


def _set(text: str) -> Set:
    if text.isdecimal():
        return int(text)
    if Path(text).suffix:
        return Path(text)
    raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor a file name with a suffix")
