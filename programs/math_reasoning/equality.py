"""Whether expressions are equal, by math-verify in a process of its own, which is ended when it takes too long.

``9^{9^{9^9}}`` is one operation of the interpreter: no signal or exception ends it, only the end of the process.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import IO, Any, cast

_START_SECONDS = 120.0


class TooHardError(Exception):
    """Two expressions could not be compared before the deadline."""


class CheckerError(RuntimeError):
    """math-verify cannot be used, or failed; this says nothing about an answer."""


class Equality:
    """Compares expressions, one comparison at a time, from any thread. The process starts with the first one.

    Args:
        seconds: how long a comparison may take.

    Example:
        >>> with Equality() as equal:
        ...     equal(["0.5"], [r"\\frac{1}{2}"])
        True
    """

    def __init__(self, seconds: float = 5.0) -> None:
        if seconds <= 0:
            raise ValueError(f"seconds must be positive, is {seconds}")
        self.seconds = seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def __call__(self, labels: Sequence[str], answers: Sequence[str]) -> bool:
        """Whether one of the labels is equal to one of the answers, all in LaTeX.

        Raises:
            TooHardError: when it takes longer than ``seconds``.
            CheckerError: when math-verify is missing or fails.
        """
        with self._lock:
            try:
                process = self._process = self._process or _start()
                request = json.dumps({"labels": list(labels), "answers": list(answers), "seconds": self.seconds})
                return bool(_ask(process, request, self.seconds)["equal"])
            except BaseException:  # also an interruption: what the process would still say belongs to no later question
                self._end()
                raise

    def close(self) -> None:
        """End the process; a later comparison starts another."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            _stop(process)

    def __enter__(self) -> Equality:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _start() -> subprocess.Popen[str]:
    if importlib.util.find_spec("math_verify") is None:
        raise CheckerError("answers are compared by math-verify: pip install 'math-verify[antlr4_13_2]'")
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", f"{__package__}.equality_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [os.getcwd(), *sys.path]))},
    )
    try:
        answer = _ask(process, "", _START_SECONDS)
    except TooHardError as error:
        _stop(process)
        raise CheckerError(f"math-verify was not ready after {_START_SECONDS:.0f} s") from error
    except BaseException:
        _stop(process)
        raise
    if "error" in answer:
        _stop(process)
        raise CheckerError(f"math-verify cannot be used here: {answer['error']}")
    return process


def _ask(process: subprocess.Popen[str], request: str, seconds: float) -> dict[str, Any]:
    """What the process says to a request (to none: when it has started), unless it takes too long: then it is ended."""
    stdin, stdout = cast("IO[str]", process.stdin), cast("IO[str]", process.stdout)
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        process.kill()

    watchdog = threading.Timer(seconds, expire)
    watchdog.start()
    line = ""
    try:
        if request:
            stdin.write(f"{request}\n")
            stdin.flush()
        line = stdout.readline()
    except OSError:
        pass  # it has ended; what that means is said below
    finally:
        watchdog.cancel()
        watchdog.join()
    if expired.is_set():
        raise TooHardError(f"no result within {seconds:g} s")
    if not line:
        raise CheckerError(f"math-verify's process ended with {process.wait()} at the request {request or 'to start'}")
    return cast("dict[str, Any]", json.loads(line))


def _stop(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()
