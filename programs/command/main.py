"""Running a command, and telling the user in a line what went wrong."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

import dspy
from dspy.utils.exceptions import DSPyError
from rich.console import Console

from programs.command import actions
from programs.command.application import Application, CommandError
from programs.command.arguments import parser
from programs.command.data import splits
from programs.command.models import lm_of, reflection_lm_of
from programs.local_lm import LocalRuntimeMissingError, LocalServerError
from programs.own_data import DataFileError
from programs.task import MissingDataError
from tgrpo_dspy import TGRPOError

_EXPECTED = (
    TGRPOError,
    DSPyError,
    MissingDataError,
    DataFileError,
    CommandError,
    LocalRuntimeMissingError,
    LocalServerError,
    OSError,
)
_ACTIONS = {"compile": actions.compile_program, "evaluate": actions.evaluate_program, "compare": actions.compare}


def run(application: Application, arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code: 0 when it is done, 1 when something went wrong, 130 when it was interrupted."""
    args = parser(application).parse_args(arguments)
    try:
        _run(application, args)
    except KeyboardInterrupt:
        print("\nStopped. What is finished is kept: the same command goes on from here.", file=sys.stderr)
        return 130
    except (*_EXPECTED, *application.errors) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _run(application: Application, args: argparse.Namespace) -> None:
    logging.getLogger("dspy").setLevel(logging.WARNING)
    with application.open(args) as task:
        data = splits(args, application, task)  # first: without data no model is needed
        if getattr(args, "estimate", False):
            print(actions.estimate(task, data, args))
            return
        with dspy.context(lm=lm_of(args, task)):
            _ACTIONS[args.command](task, data, args, reflection_lm_of(args), Console(soft_wrap=True))
