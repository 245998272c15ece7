"""Monty, an interpreter for untrusted code that comes with pip: a part of Python, and no operating system under it."""

from __future__ import annotations

import io
import tokenize
from typing import TYPE_CHECKING

from programs.code_interpreter.cut_text import CutText
from programs.code_interpreter.interpreter import FLOOD, FLOOD_MB, CodeError, InterpreterUnavailableError
from programs.code_interpreter.limits import Limits

if TYPE_CHECKING:
    from pydantic_monty import MontyRuntimeError

INSTALL = "pydantic-monty is not installed: pip install pydantic-monty"
GRACE_SECONDS = 5.0
"""After which a worker that does not stop by itself is killed."""
FRAMES = 6


class Monty:
    """Programs in Monty's part of Python, each in a worker process of its own.

    Raises `InterpreterUnavailableError` where `pydantic-monty` is not installed.
    """

    name = "monty"
    abilities = (
        "It is a small Python: functions, classes without inheritance, the built-in types, and of the standard library "
        "math, re, json, datetime, decimal, itertools, functools, collections, random, bisect, copy, dataclasses and "
        "typing. There is no yield and no del, no other module, no network and no file; time.sleep returns at once."
    )

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        try:
            import pydantic_monty

            pydantic_monty.Monty()  # looks for the worker's program; starts nothing
        except (ImportError, FileNotFoundError) as error:
            raise InterpreterUnavailableError(f"{INSTALL} ({error})") from None

    def run(self, code: str) -> str:
        """See `Interpreter.run`."""
        try:
            return self._feed(_showing_last_value(code), code)
        except _WrongSyntaxError:
            # Found before anything ran: the last statement is no expression, or the code was wrong as it came.
            return self._feed(code, code)

    def _feed(self, code: str, source: str) -> str:
        """Run code in a fresh worker; `source` is the code as the program's author wrote it."""
        import pydantic_monty

        printed = _Printed(self.limits.output_chars)
        seconds, memory = self.limits.seconds, self.limits.memory_mb << 20
        pool = pydantic_monty.Monty(min_processes=0, max_processes=1, request_timeout=seconds + GRACE_SECONDS)
        session = pool.checkout(
            limits={"max_feed_duration_secs": seconds, "max_memory": memory},
            os_policy={"sleep": "zero"},  # a sleep would not count as time of the program
        )
        try:
            with pool, session:
                session.feed_run(code, print_callback=printed)
        except pydantic_monty.MontySyntaxError as error:
            raise _WrongSyntaxError(error.display(), str(printed.text)) from None
        except pydantic_monty.MontyRuntimeError as error:
            raise CodeError(FLOOD if printed.too_much else self._described(error, source), str(printed.text)) from None
        except pydantic_monty.MontyError as error:
            raise CodeError(f"the interpreter was stopped: {error}", str(printed.text)) from None
        return str(printed.text).rstrip("\n")

    def _described(self, error: MontyRuntimeError, source: str) -> str:
        message = error.display("type-msg")
        if message.startswith("TimeoutError: feed time limit exceeded"):
            return f"stopped after {self.limits.seconds:g} s"
        if message.startswith(("MemoryError: memory limit exceeded", "MemoryError: the worker exceeded")):
            return f"out of memory ({self.limits.memory_mb} MB)"
        lines = source.split("\n")
        frames = [
            f"line {frame.line}, in {frame.function_name or '<module>'}: {lines[frame.line - 1].strip()}"
            for frame in error.traceback()[-FRAMES:]
            if frame.filename != "<string>" and frame.line <= len(lines)
        ]
        return "\n".join([*frames, message])


class _WrongSyntaxError(CodeError):
    pass


class _Printed:
    """Takes what a program prints, until it is too much."""

    def __init__(self, limit: int) -> None:
        self.text = CutText(limit)
        self._size = 0

    @property
    def too_much(self) -> bool:
        return self._size > FLOOD_MB << 20

    def __call__(self, _: str, text: str) -> None:
        self._size += len(text)
        if self.too_much:
            raise RuntimeError(FLOOD)
        self.text.add(text)


def _showing_last_value(code: str) -> str:
    """The code with its last statement printed as a notebook would; wrong syntax if that is no expression.

    Monty would hand the value itself to this process, of any size, and without the program's own `__repr__`. The code
    is cut into tokens only: CPython's parser is not safe from hostile code.
    """
    start, level, fresh = 0, 0, True
    try:
        for token in tokenize.generate_tokens(io.StringIO(code).readline):
            if token.type in (tokenize.INDENT, tokenize.DEDENT):
                level += 1 if token.type == tokenize.INDENT else -1
            elif token.type == tokenize.NEWLINE:
                fresh = True
            elif fresh and token.type not in (tokenize.NL, tokenize.COMMENT, tokenize.ENDMARKER):
                fresh = False
                start = start if level else token.start[0]
    except (tokenize.TokenError, SyntaxError, UnicodeEncodeError):
        return code
    if not start:
        return code
    lines = code.split("\n")
    lines[start - 1] = f"_ = ({lines[start - 1]}"
    return "\n".join([*lines, ")", "if _ is not None: print(repr(_))"])
