"""What an interpreter is, and the two ways in which it can fail."""

from __future__ import annotations

from typing import Protocol

from programs.code_interpreter.cut_text import cut
from programs.code_interpreter.limits import Limits

MESSAGE_CHARS = 2_000
FLOOD_MB = 16
"""Output after which a program is stopped: nobody will read it."""
FLOOD = f"stopped: it wrote more than {FLOOD_MB} MB of output"


class Interpreter(Protocol):
    """Runs one Python program a call; nothing of a call is left for the next one. Safe to share between threads."""

    @property
    def name(self) -> str:
        """The kind, such as "bubblewrap"."""
        ...

    @property
    def abilities(self) -> str:
        """What a program can and cannot use, in sentences for the model that writes it."""
        ...

    @property
    def limits(self) -> Limits:
        """What each call may use."""
        ...

    def run(self, code: str) -> str:
        """What `code` printed, then the value of its last expression as a notebook shows it.

        Raises `CodeError` for an error of the program and for every limit it breaks, and
        `InterpreterUnavailableError` when the interpreter itself could not start.
        """
        ...


class CodeError(Exception):
    """The program failed or broke a limit; the message says which, `output` is what it had printed until then."""

    def __init__(self, message: str, output: str = "") -> None:
        super().__init__(cut(message, MESSAGE_CHARS))
        self.output = output.rstrip("\n")


class InterpreterUnavailableError(RuntimeError):
    """An interpreter cannot run on this machine; the message says what is missing and how to get it."""
