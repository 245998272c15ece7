"""Runs one program: the child's side of `process.py`, started as a file by a Python of its own.

    python -I worker.py ready 512 64 11 8 0 < program

The program's output, its error output too, goes to standard output. Standard error gets the word "ready" before the
program begins, then why it failed, if it does. This file stands alone, because inside an isolation the package is not
there, and imports little, because every call waits for it.
"""

from __future__ import annotations

import ast
import linecache
import os
import resource
import sys
import traceback
from types import ModuleType

PROGRAM = "<program>"
FRAMES = 6
"""Innermost calls that a traceback shows."""
OPEN_FILES = 64
MB = 1 << 20


def main() -> None:
    """Run the program on standard input; exit with 1 when it fails.

    The arguments are the word for "ready", MB of memory, MB of a file, seconds of CPU time, processes (0: any number)
    and the user to become (0: nobody else).
    """
    ready, *numbers = sys.argv[1:]
    memory, disk, seconds, processes, user = map(int, numbers)
    # What the program writes to standard error belongs to its output; the real one is kept for the report.
    report = os.fdopen(os.dup(2), "w", encoding="utf-8", errors="replace")
    os.dup2(1, 2)
    code = sys.stdin.buffer.read().decode("utf-8")
    # Process 1 counts too, if it is of the same user.
    restrict(memory, disk, seconds, processes + (not user) if processes else 0)
    if os.getpid() == 1:
        leave_process_1(user)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace", line_buffering=True)  # type: ignore[union-attr]
    print(ready, file=report, flush=True)
    sys.argv = [PROGRAM]
    failure = run(code, f"out of memory ({memory} MB)")
    print(failure, file=report, end="", flush=True)
    sys.exit(1 if failure else 0)


def restrict(memory: int, disk: int, seconds: int, processes: int) -> None:
    """Set hard limits, which cannot be raised again."""
    wanted = {
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_FSIZE: disk * MB,
        resource.RLIMIT_NOFILE: OPEN_FILES,
        resource.RLIMIT_CORE: 0,
    }
    if processes:
        wanted[resource.RLIMIT_NPROC] = processes
    if sys.platform != "darwin":  # macOS refuses any limit of the address space
        wanted[resource.RLIMIT_AS] = memory * MB
    for what, most in wanted.items():
        allowed = resource.getrlimit(what)[1]
        value = most if allowed == resource.RLIM_INFINITY else min(most, allowed)
        resource.setrlimit(what, (value, value))


def leave_process_1(user: int) -> None:
    """Go on in a child, which becomes `user` unless that is 0; process 1 of the isolation waits for it, then ends all.

    So the program has the usual process: process 1 gets no signal from inside. And bubblewrap, which has given up its
    privileges, may still end process 1, which is of the same user.
    """
    child = os.fork()
    if not child:
        if user:
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
        return
    while True:
        ended, status = os.wait()
        if ended == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def run(code: str, out_of_memory: str) -> str:
    """Run the program as the main module and show the value of its last expression; why it failed, or ""."""
    main_module = sys.modules["__main__"] = ModuleType("__main__")
    namespace = main_module.__dict__
    linecache.cache[PROGRAM] = (len(code), None, code.splitlines(keepends=True), PROGRAM)
    try:
        tree = ast.parse(code, PROGRAM)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, PROGRAM, "exec"), namespace)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), PROGRAM, "eval"), namespace)
            if value is not None:
                print(repr(value))
    except MemoryError:
        namespace.clear()
        return out_of_memory
    except SystemExit as end:
        return "" if not end.code else f"SystemExit: {end.code}"
    except BaseException as error:
        return described(error)
    return ""


def described(error: BaseException) -> str:
    """The traceback from the program's own lines on."""
    trace = error.__traceback__
    while trace and trace.tb_frame.f_code.co_filename != PROGRAM:
        trace = trace.tb_next
    summary = traceback.TracebackException(type(error), error, trace, limit=-FRAMES, compact=True)
    return "".join(summary.format(chain=False)).rstrip()


if __name__ == "__main__":
    main()
