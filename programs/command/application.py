"""What an example program brings to its command."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from programs.task import Task


class CommandError(RuntimeError):
    """Something the user can mend: the message says what was wrong and what to do."""


def _nothing(parser: argparse.ArgumentParser) -> None:
    """No options of its own."""


@dataclass(frozen=True, kw_only=True)
class Application:
    """A program that can be compiled, evaluated and compared from the command line.

    Args:
        name: its package in ``programs``.
        about: what it is, in a sentence; shown by ``--help``.
        open: makes the task from the parsed options, and keeps open what it needs (a server, an interpreter) while the
            task is in use.
        inputs, outputs: columns of a file of the user's own.
        add_options: adds the program's own options to the parser of every subcommand.
        errors: what ``open`` and the task raise when something is missing that the user can get; shown without a
            traceback.
    """

    name: str
    about: str
    open: Callable[[argparse.Namespace], AbstractContextManager[Task]]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    add_options: Callable[[argparse.ArgumentParser], None] = _nothing
    errors: tuple[type[Exception], ...] = ()
