"""Hostile programs: each gets an error or nothing, the host keeps what it has, and the next call works as before."""

from __future__ import annotations

import errno
import os
import socket
import struct
import subprocess
import sys
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from programs.code_interpreter import InterpreterUnavailableError, Limits, open_interpreter, python_tool
from programs.code_interpreter.system_calls import system_call_filter

pytestmark = pytest.mark.isolation

LIMITS = Limits(seconds=30, memory_mb=128, disk_mb=4, processes=4, output_chars=2000)
SHORT = 0.5
"""Seconds for programs that do not end."""
SECRET = "canary-7281-1640"


class Attack:
    """Runs a hostile program, and then a small one, which must work."""

    def __init__(self, kind: Any) -> None:
        try:
            self._tool = python_tool(open_interpreter(kind, limits=LIMITS))
            self._short_tool = python_tool(open_interpreter(kind, limits=replace(LIMITS, seconds=SHORT)))
        except InterpreterUnavailableError as error:
            pytest.skip(str(error))

    def __call__(self, code: str, *, endless: bool = False) -> str:
        answer: str = (self._short_tool if endless else self._tool)(code=code)
        assert len(answer) < 5000
        assert self._tool(code="print(1+1)") == "2"
        return answer


@pytest.fixture(params=["bubblewrap", "monty"])
def attack(request: pytest.FixtureRequest) -> Attack:
    return Attack(request.param)


@pytest.fixture
def cpython_attack() -> Attack:
    return Attack("bubblewrap")


def host_processes(marker: str) -> list[str]:
    """The processes of this machine with the marker in their command line."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # it ended meanwhile
        if marker.encode() in words:
            found.append(folder.name)
    return found


# --- what it must not see ---


def test_a_file_of_the_host(attack: Attack, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text(SECRET, encoding="utf-8")
    secret.chmod(0o644)
    paths = [str(secret), f"/proc/1/root{secret}", f"/proc/1/cwd/..{secret}", "/etc/passwd", "/etc/shadow"]
    answer = attack(
        f"for path in {paths}:\n    try: print(open(path).read())\n    except Exception as error: print(type(error))"
    )
    assert answer.count("<class") == len(paths)
    assert SECRET not in answer and "root:" not in answer


def test_the_environment(attack: Attack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODE_INTERPRETER_CANARY", SECRET)
    answer = attack(
        "import os\nfor look in (lambda: os.environ, lambda: os.getenv('CODE_INTERPRETER_CANARY')):\n"
        "    try: print(look())\n    except Exception as error: print(type(error))"
    )
    assert answer and SECRET not in answer


def test_the_environment_and_the_command_lines_of_every_process(
    cpython_attack: Attack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CODE_INTERPRETER_CANARY", SECRET)
    wait = "import time; print(flush=True); time.sleep(30)"
    with subprocess.Popen([sys.executable, "-c", wait, SECRET], stdout=subprocess.PIPE) as neighbour:
        try:
            assert neighbour.stdout and neighbour.stdout.readline()
            assert len(host_processes(SECRET)) == 1
            answer = cpython_attack(
                "import glob\n"
                "for name in glob.glob('/proc/[0-9]*/environ') + glob.glob('/proc/[0-9]*/cmdline'):\n"
                "    try: print(open(name).read())\n"
                "    except OSError: pass\n"
                "print(len(glob.glob('/proc/[0-9]*')))"
            )
        finally:
            neighbour.kill()
    assert SECRET not in answer
    assert answer.splitlines()[-1] == "2"  # process 1 and the program


def test_the_network(attack: Attack) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        answer = attack(f"import socket\nsocket.create_connection({server.getsockname()!r}, 1)\nprint('connected')")
        assert answer.startswith("error: ") and "connected" not in answer
        with pytest.raises(BlockingIOError):
            server.accept()


def test_a_unix_socket_without_a_file(cpython_attack: Attack) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0{SECRET}")
        server.listen()
        server.setblocking(False)
        answer = cpython_attack(f"import socket\nsocket.socket(socket.AF_UNIX).connect('\\0{SECRET}')")
        assert "ConnectionRefusedError" in answer
        with pytest.raises(BlockingIOError):
            server.accept()


# --- what it must not use up ---


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import time\nwhile True: time.sleep(100)",
        "try:\n    while True: pass\nexcept BaseException: pass\nwhile True: pass",
    ],
)
def test_it_never_ends(attack: Attack, code: str) -> None:
    assert attack(f"print('begun')\n{code}", endless=True) == "error: stopped after 0.5 s\nprinted before that:\nbegun"


@pytest.mark.parametrize(
    "code",
    [
        "x = 'x' * 10_000_000_000",
        "x = [0] * 10_000_000_000",
        "x = ['x' * 1_000_000]\nwhile True: x.append(x[-1] + 'x')",
    ],
)
def test_memory(attack: Attack, code: str) -> None:
    assert attack(f"print('begun')\n{code}") == "error: out of memory (128 MB)\nprinted before that:\nbegun"


def test_a_flood_of_output_is_never_held_in_memory(attack: Attack) -> None:
    tracemalloc.start()
    try:
        answer = attack("for i in range(1000): print('x' * 100_000)")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert answer.startswith("error: stopped: it wrote more than 16 MB of output")
    assert peak < 8_000_000


def test_a_flood_into_the_pipe_of_the_report(cpython_attack: Attack) -> None:
    answer = cpython_attack(
        "import os\nwhile True:\n    for fd in range(2, 9):\n        try: os.write(fd, b'x' * 65536)\n"
        "        except OSError: pass"
    )
    assert answer.startswith("error: stopped: it wrote more than 16 MB of output")


@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm"])
def test_files(cpython_attack: Attack, folder: str) -> None:
    one = cpython_attack(f"f = open('{folder}/a', 'wb')\nwhile True: f.write(b'x' * 1_000_000)")
    assert "File too large" in one or "No space left on device" in one
    many = cpython_attack(f"n = 0\nwhile True:\n    open(f'{folder}/{{n}}', 'wb').write(b'x' * 100_000)\n    n += 1")
    assert "No space left on device" in many
    assert not Path(folder, "a").exists()


def test_processes(cpython_attack: Attack) -> None:
    count = (
        "import os, time\nstarted = 0\ntry:\n    while True:\n        if os.fork() == 0:\n            time.sleep(30)\n"
        "        started += 1\nexcept BlockingIOError:\n    print(started)"
    )
    assert cpython_attack(count) == str(LIMITS.processes - 1)


def test_threads(cpython_attack: Attack) -> None:
    count = (
        "from threading import Event, Thread\nstarted = 0\ntry:\n    while True:\n"
        "        Thread(target=Event().wait, daemon=True).start()\n        started += 1\n"
        "except RuntimeError:\n    print(started)"
    )
    assert cpython_attack(count) == str(LIMITS.processes - 1)


def test_a_fork_bomb(cpython_attack: Attack) -> None:
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    assert cpython_attack(bomb, endless=True) == "error: stopped after 0.5 s"


def test_limits_cannot_be_raised(cpython_attack: Attack) -> None:
    answer = cpython_attack(
        "import resource\nfor name in ('AS', 'NPROC', 'FSIZE', 'NOFILE', 'CPU'):\n"
        "    limit = getattr(resource, f'RLIMIT_{name}')\n    most = resource.getrlimit(limit)[1]\n"
        "    try: resource.setrlimit(limit, (most + 1, most + 1))\n    except ValueError as error: print(error)"
    )
    assert answer.splitlines() == ["not allowed to raise maximum limit"] * 5


# --- what it must not break ---


@pytest.mark.parametrize(
    "code",
    [
        "os.kill(os.getppid(), signal.SIGKILL)",
        "os.kill(1, signal.SIGKILL)",
        "os.kill(0, signal.SIGKILL)",
        "os.kill(-1, signal.SIGKILL)",
        "os.killpg(os.getpgid(1), signal.SIGKILL)",
        "os.kill(HOST, signal.SIGKILL)",
        "os.kill(PARENT_OF_HOST, signal.SIGKILL)",
        "os.kill(os.getpid(), signal.SIGSTOP)",
        "os.abort()",
        "os._exit(0)",
        "os._exit(255)",
        "os.closerange(0, 64); time.sleep(100)",
        "os.close(1); os.close(2)",
        "os.setuid(0)",
        "sys.setrecursionlimit(10**9); f = lambda x: f([x]); f(0)",
    ],
)
def test_killing_closing_and_crashing(cpython_attack: Attack, code: str) -> None:
    code = code.replace("PARENT_OF_HOST", str(os.getppid())).replace("HOST", str(os.getpid()))
    cpython_attack(f"import os, signal, sys, time\n{code}", endless=True)  # the next call works, and this process lives


def test_the_python_installation(cpython_attack: Attack) -> None:
    module = Path(os.__file__)
    before = module.read_bytes(), sorted(os.listdir(module.parent))
    changes = [
        "open(os.__file__, 'a').write('#')",
        "open(os.path.join(os.path.dirname(os.__file__), 'left_behind.py'), 'w')",
        "os.remove(os.__file__)",
        "os.chmod(os.__file__, 0o777)",
        "open(sys.executable, 'ab')",
        "open('/left_behind', 'w')",
        "open('/dev/left_behind', 'w')",
        "open('/worker.py', 'w')",
    ]
    answer = cpython_attack(
        f"import os, sys\nfor change in {changes}:\n    try: eval(change)\n    except OSError: print('refused')"
    )
    assert answer.splitlines() == ["refused"] * len(changes)
    look = "all(os.statvfs(path).f_flag & os.ST_RDONLY for path in ('/', '/dev', '/lib', os.__file__, sys.executable))"
    assert cpython_attack(f"import os, sys\n{look}") == "True"
    assert (module.read_bytes(), sorted(os.listdir(module.parent))) == before


@pytest.mark.parametrize("end", ["print('done')", "os._exit(0)", "while True: pass", "os.kill(0, 9)", "1/0"])
def test_no_process_is_left(cpython_attack: Attack, end: str) -> None:
    marker = f"{SECRET}-{time.monotonic_ns()}"
    other = (
        f"subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(30)', {marker!r}], start_new_session=True)"
    )
    code = f"import os, subprocess, sys\nprint({other}.poll(), flush=True)\n{end}"
    answer = cpython_attack(code, endless=end.startswith("while"))
    assert "None" in answer  # it ran
    assert host_processes(marker) == []


def test_system_calls(cpython_attack: Attack) -> None:
    clone = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
    calls = [
        "libc.unshare(0x10000000)",  # a user namespace
        "libc.unshare(0x00020000)",  # a mount namespace
        f"libc.syscall({clone}, 0x10000011, 0, 0, 0, 0)",
        "libc.mount(b'none', b'/tmp', b'tmpfs', 0, b'size=1g')",
        "libc.shmget(0, 1 << 30, 0o1600)",
        "libc.ptrace(16, 1, 0, 0)",
    ]
    answer = cpython_attack(
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        f"for call in {calls}: print(eval(call), ctypes.get_errno())"
    )
    assert answer.splitlines() == [f"-1 {errno.EPERM}"] * len(calls)


def test_memory_outside_of_a_process(cpython_attack: Attack) -> None:
    assert "PermissionError" in cpython_attack("import os\nos.memfd_create('a')")


def verdict(machine: str, number: int, argument: int = 0, architecture: int | None = None) -> int:
    """What the kernel would do: the filter run on one system call."""
    own = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}[machine]
    data = struct.pack("<IIQQ", number, architecture or own, 0, argument)
    code = system_call_filter(machine)
    steps: list[tuple[int, int, int, int]] = list(struct.iter_unpack("=HBBI", code))
    value = position = 0
    while True:
        operation, if_true, if_false, operand = steps[position]
        position += 1
        if operation == 0x20:
            (value,) = struct.unpack_from("<I", data, operand)
        elif operation == 0x06:
            return operand
        else:
            test = {0x15: value == operand, 0x35: value >= operand, 0x45: bool(value & operand)}[operation]
            position += if_true if test else if_false


ALLOW, KILL, REFUSE, UNKNOWN = 0x7FFF0000, 0x80000000, 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS


@pytest.mark.parametrize(
    ("machine", "read", "memfd_create", "unshare", "clone"),
    [("x86_64", 0, 319, 272, 56), ("aarch64", 63, 279, 97, 220)],
)
def test_the_filter_of_system_calls(machine: str, read: int, memfd_create: int, unshare: int, clone: int) -> None:
    assert verdict(machine, read) == ALLOW
    assert verdict(machine, memfd_create) == verdict(machine, unshare) == REFUSE
    assert verdict(machine, clone, 0x11) == ALLOW
    assert verdict(machine, clone, 0x10000011) == REFUSE
    assert verdict(machine, 435) == UNKNOWN  # clone3
    assert verdict(machine, read, architecture=0x40000003) == KILL
    assert verdict("x86_64", 0x40000000 + 319) == UNKNOWN  # the same call by its other number
