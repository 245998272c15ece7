"""CPython in a plain child process: for trusted code only."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile

from programs.code_interpreter.interpreter import InterpreterUnavailableError
from programs.code_interpreter.limits import Limits
from programs.code_interpreter.process import WORKER, run_worker, worker_command


class Host:
    """Programs run by this Python **without isolation**: they have the user's files, network and processes.

    Time, output, memory (not on macOS) and the size of a single file are limited; what a program leaves running may
    outlive it. Raises `InterpreterUnavailableError` on Windows.
    """

    name = "host"
    abilities = (
        f"It is CPython {sys.version_info.major}.{sys.version_info.minor} with the standard library and the packages "
        "installed beside it."
    )

    def __init__(self, limits: Limits) -> None:
        if os.name != "posix":
            raise InterpreterUnavailableError("the host interpreter needs a POSIX system: its limits do not exist here")
        self.limits = limits

    def run(self, code: str) -> str:
        """See `Interpreter.run`."""
        with tempfile.TemporaryDirectory() as folder:
            command = worker_command(str(WORKER), self.limits)
            return run_worker(command, code, self.limits, kill=_kill_group, cwd=folder)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
