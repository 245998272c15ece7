"""One program in a child process: the code goes in, bounded output comes out, and the child ends in time."""

from __future__ import annotations

import codecs
import math
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import IO

from programs.code_interpreter.cut_text import CutText
from programs.code_interpreter.interpreter import (
    FLOOD,
    FLOOD_MB,
    MESSAGE_CHARS,
    CodeError,
    InterpreterUnavailableError,
)
from programs.code_interpreter.limits import Limits

WORKER = Path(__file__).with_name("worker.py")
READY = "ready"
START_SECONDS = 30.0
"""Until the worker is ready, on a busy machine."""
CHUNK = 1 << 16
TICK = 0.1


def worker_command(worker: str, limits: Limits, *, processes: int = 0, user: int = 0) -> list[str]:
    """The command line of the worker; `processes` 0: any number of them, `user`: whom it becomes, 0: nobody else."""
    numbers = limits.memory_mb, limits.disk_mb, math.ceil(limits.seconds) + 1, processes, user
    return [sys.executable, "-I", "-B", "-X", "utf8", worker, READY, *map(str, numbers)]


def run_worker(
    command: Sequence[str],
    code: str,
    limits: Limits,
    *,
    kill: Callable[[subprocess.Popen[bytes]], None],
    cwd: str | None = None,
    pass_fds: Sequence[int] = (),
) -> str:
    """Run `code` in the worker that `command` starts, with an empty environment; what it printed.

    `kill` ends what is left of the child, whether it ended by itself or not. Raises `CodeError`, and
    `InterpreterUnavailableError` when the worker does not get ready.
    """
    with subprocess.Popen(
        command,
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=cwd,
        env={},
        pass_fds=pass_fds,
        start_new_session=True,
    ) as process:
        try:
            dialogue = _Dialogue(process, code, limits)
            stopped = dialogue.hold()
        finally:
            kill(process)
    output = str(dialogue.output).rstrip("\n")
    report = str(dialogue.report).strip()
    if not dialogue.ready:
        raise InterpreterUnavailableError(report or stopped or f"the worker ended with code {process.returncode}")
    failure = stopped or report.removeprefix(READY).lstrip("\n") or _end_of(process.returncode)
    if failure:
        raise CodeError(failure, output)
    return output


class _Dialogue:
    """What goes to a child and comes from it, until it ends or has to be stopped."""

    def __init__(self, process: subprocess.Popen[bytes], code: str, limits: Limits) -> None:
        self.output = CutText(limits.output_chars)
        self.report = CutText(MESSAGE_CHARS)
        self.ready = False
        self._process = process
        self._code = memoryview(code.encode("utf-8", errors="replace"))
        self._seconds = limits.seconds
        self._deadline = time.monotonic() + START_SECONDS
        self._received = 0

    def hold(self) -> str:
        """Send and receive to the end; "" when the child ended by itself, else why it must be stopped."""
        process = self._process
        assert process.stdin and process.stdout and process.stderr
        os.set_blocking(process.stdin.fileno(), False)
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdin, selectors.EVENT_WRITE, (self._send, process.stdin))
            for pipe, text in ((process.stdout, self.output), (process.stderr, self.report)):
                decoder = codecs.getincrementaldecoder("utf-8")("replace")
                receive = partial(self._receive, decoder=decoder, text=text)
                selector.register(pipe, selectors.EVENT_READ, (receive, pipe))
            while selector.get_map():
                if self._left() <= 0:
                    return self._late()
                events = selector.select(min(self._left(), TICK))
                if not events and process.poll() is not None:
                    break  # a process that it left behind holds the pipes
                for key, _ in events:
                    step, pipe = key.data
                    if not step(pipe):
                        selector.unregister(pipe)
                        pipe.close()
                if self._received > FLOOD_MB << 20:
                    return FLOOD
        try:
            process.wait(max(0.0, self._left()))
        except subprocess.TimeoutExpired:
            return self._late()
        return ""

    def _left(self) -> float:
        return self._deadline - time.monotonic()

    def _late(self) -> str:
        return f"stopped after {self._seconds:g} s" if self.ready else f"not ready after {START_SECONDS:g} s"

    def _send(self, pipe: IO[bytes]) -> bool:
        """Send a piece of the code; whether there is more."""
        try:
            self._code = self._code[os.write(pipe.fileno(), self._code[:CHUNK]) :]
        except BrokenPipeError:
            self._code = self._code[:0]
        return bool(self._code)

    def _receive(self, pipe: IO[bytes], decoder: codecs.IncrementalDecoder, text: CutText) -> bool:
        """Take a piece of output; whether there may be more."""
        data = os.read(pipe.fileno(), CHUNK)
        text.add(decoder.decode(data, final=not data))
        self._received += len(data)
        if not self.ready and str(self.report).startswith(READY):
            self.ready = True
            self._deadline = time.monotonic() + self._seconds
        return bool(data)


def _end_of(code: int) -> str:
    """How a child ended, "" when well; shells and bubblewrap add 128 to the number of the signal that killed it."""
    number = -code if code < 0 else code - 128
    if number in set(signal.Signals):
        return f"killed by {signal.Signals(number).name}"
    return f"ended with exit code {code}" if code else ""
