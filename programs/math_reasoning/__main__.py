"""``python -m programs.math_reasoning``: compile, evaluate or compare a program that solves problems."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from programs.code_interpreter import InterpreterUnavailableError, open_interpreter, python_tool
from programs.code_interpreter.opening import KINDS
from programs.command import Application, run
from programs.math_reasoning.data import DATASETS, splits
from programs.math_reasoning.metric import math_accuracy
from programs.math_reasoning.program import agent, chain_of_thought
from programs.task import Task


def _add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("mathematics")
    group.add_argument("--dataset", choices=tuple(DATASETS), default="gsm8k", help="default: %(default)s")
    group.add_argument(
        "--interpreter",
        choices=("none", "auto", *KINDS),
        default="auto",
        help="isolation of the Python tool; host: none at all; none: reasoning alone, no tool (default: %(default)s)",
    )
    group.add_argument("--max-iters", type=int, default=6, metavar="N", help="turns of the agent (default: 6)")


@contextmanager
def _open(args: argparse.Namespace) -> Iterator[Task]:
    if args.interpreter == "none":
        student = chain_of_thought
    else:
        student = partial(agent, python_tool(open_interpreter(args.interpreter)), max_iters=args.max_iters)
    yield Task(
        name="math_reasoning",
        source=f"{args.dataset}; tool: {args.interpreter}",
        student=student,
        metric=math_accuracy,
        splits=lambda seed, sizes: splits(args.dataset, seed, sizes, args.data_dir),
        sizes=DATASETS[args.dataset].sizes,
        local_lm={"context": 4096, "max_tokens": 768},
    )


APPLICATION = Application(
    name="math_reasoning",
    about="Solves mathematical problems, with a Python tool or by reasoning alone.",
    open=_open,
    inputs=("question",),
    outputs=("answer",),
    add_options=_add_options,
    errors=(InterpreterUnavailableError,),
)

if __name__ == "__main__":
    sys.exit(run(APPLICATION))
