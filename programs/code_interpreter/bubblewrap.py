"""CPython under bubblewrap: namespaces of its own, so that a program sees neither the network nor the host's files."""

from __future__ import annotations

import json
import os
import platform
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from functools import cache, partial
from pathlib import Path
from typing import IO

from programs.code_interpreter.interpreter import CodeError, InterpreterUnavailableError
from programs.code_interpreter.limits import Limits
from programs.code_interpreter.process import WORKER, run_worker, worker_command
from programs.code_interpreter.system_calls import MACHINES, system_call_filter

INSTALL = "apt-get install bubblewrap (dnf, pacman and apk call it bubblewrap too)"
INSIDE_WORKER = "/worker.py"
LIBRARIES = ("/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64")
SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/alternatives", "/usr/share/zoneinfo")
ENVIRONMENT = {
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "PATH": "/usr/bin:/bin",
    # Each thread of a number library, and each heap of malloc, takes address space, which is limited.
    "MALLOC_ARENA_MAX": "2",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
UNUSED_UIDS = range(0x70000000, 0x7F000000)
"""User ids that no system gives to anybody."""
INSIDE_UID = "1000"
KILL_SECONDS = 5.0
FIRST_PROGRAM = """
from fractions import Fraction
from threading import Event, Thread

try:
    for _ in range(2):
        Thread(target=Event().wait, daemon=True).start()
    print("the number of processes is not limited")
except RuntimeError:
    print(Fraction(1, 2))
"""
FIRST_ANSWER = "1/2"


class Bubblewrap:
    """Programs run by this Python, with its installed packages, under `bwrap`.

    A program can read the Python installation and the system's shared libraries, and write to a `/tmp` of its own.
    Raises `InterpreterUnavailableError` where bubblewrap is missing or cannot work.
    """

    name = "bubblewrap"
    abilities = (
        f"It is CPython {sys.version_info.major}.{sys.version_info.minor} with the standard library and the packages "
        "installed beside it. There is no network, and no files but those you write to /tmp."
    )

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._bwrap = shutil.which("bwrap") or ""
        if not self._bwrap:
            raise InterpreterUnavailableError(f"bwrap is not installed: {INSTALL}")
        if reason := _unusable(self._bwrap):
            raise InterpreterUnavailableError(reason)

    def run(self, code: str) -> str:
        """See `Interpreter.run`."""
        try:
            return _run(self._bwrap, code, self.limits)
        except InterpreterUnavailableError as error:
            raise InterpreterUnavailableError(f"bubblewrap could not start Python: {error}") from None


@cache
def _unusable(bwrap: str) -> str:
    """Why bubblewrap cannot be used on this machine, found by using it; "" when it can."""
    if platform.machine() not in MACHINES:
        return f"the filter of system calls knows {' and '.join(MACHINES)}, this machine is a {platform.machine()}"
    try:
        answer = _run(bwrap, FIRST_PROGRAM, Limits(processes=2))
    except (CodeError, InterpreterUnavailableError, OSError) as error:
        return (
            f"bwrap is installed but does not work: {error}. It needs version 0.8 or newer and, unless run by root, "
            "user namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, "
            "kernel.apparmor_restrict_unprivileged_userns; in a container, its security profile)"
        )
    return "" if answer == FIRST_ANSWER else f"bwrap is installed, but under it {answer}"


def _run(bwrap: str, code: str, limits: Limits) -> str:
    user = secrets.choice(UNUSED_UIDS) if _is_real_root() else 0
    filter_out, filter_in = _pipe()
    info_out, info_in = _pipe()
    with filter_out, filter_in, info_out, info_in:
        filter_in.write(system_call_filter())
        filter_in.close()
        descriptors = filter_out.fileno(), info_in.fileno()
        command = [
            bwrap,
            *_sandbox(limits, drop_root=bool(user)),
            *("--seccomp", str(descriptors[0]), "--info-fd", str(descriptors[1]), "--"),
            *worker_command(INSIDE_WORKER, limits, processes=limits.processes, user=user),
        ]
        kill = partial(_kill, info=info_out)
        return run_worker(command, code, limits, kill=kill, cwd="/", pass_fds=descriptors)


def _pipe() -> tuple[IO[bytes], IO[bytes]]:
    out, into = os.pipe()
    return open(out, "rb", buffering=0), open(into, "wb", buffering=0)


def _is_real_root() -> bool:
    """Whether this process is root of the machine, and not only of a user namespace.

    The kernel never limits how many processes the real root has, whatever user namespace they are in. So its worker
    starts without one and becomes a user whom nobody else is. Any other user is limited in a new user namespace.
    """
    return os.geteuid() == 0 and Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]


def _sandbox(limits: Limits, *, drop_root: bool) -> list[str]:
    """The options of bubblewrap, but for those that differ with each call."""
    if drop_root:
        identity = ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        identity = ["--unshare-user", "--uid", INSIDE_UID, "--gid", INSIDE_UID, "--cap-drop", "ALL"]
    own_files = ["--perms", "1777", "--size", str(limits.disk_mb << 20), "--tmpfs"]
    return [
        *identity,
        *("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"),
        # Process 1 of a namespace takes all others with it when it ends, and the kernel waits for that. In a session
        # of its own, a signal to its process group does not leave the namespace.
        *("--as-pid-1", "--new-session", "--die-with-parent"),
        *(argument for name, value in ENVIRONMENT.items() for argument in ("--setenv", name, value)),
        *("--proc", "/proc", "--dev", "/dev", *own_files, "/tmp", *own_files, "/dev/shm"),
        # Without this, bubblewrap makes the folders above a mount for the user who runs it alone.
        *(argument for folder in _folders_above(_readable()) for argument in ("--perms", "0755", "--dir", folder)),
        *(argument for path in _readable() for argument in ("--ro-bind-try", path, path)),
        *("--ro-bind", str(WORKER), INSIDE_WORKER),
        *("--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp"),
    ]


@cache
def _readable() -> tuple[str, ...]:
    """The paths of the Python installation and of the libraries it links to: parts only, as a prefix may be a home."""
    prefixes = (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix)
    places = [place for prefix in prefixes for place in (prefix, os.path.realpath(prefix))]
    parts = [os.path.join(place, part) for place in places for part in ("bin", "lib", "lib64", "pyvenv.cfg")]
    return tuple(dict.fromkeys([*LIBRARIES, *SYSTEM_FILES, *parts]))


def _folders_above(paths: Iterable[str]) -> Iterable[str]:
    return dict.fromkeys(str(folder) for path in paths for folder in reversed(Path(path).parents))


def _kill(process: subprocess.Popen[bytes], info: IO[bytes]) -> None:
    """Kill process 1 of the namespace: bubblewrap then ends too, after the kernel has ended all others in there."""
    if process.poll() is not None:
        return
    os.set_blocking(info.fileno(), False)
    try:
        child = json.loads(info.read() or b"")["child-pid"]
        os.kill(child, signal.SIGKILL)
        process.wait(KILL_SECONDS)
    except (ValueError, ProcessLookupError, subprocess.TimeoutExpired):
        process.kill()
