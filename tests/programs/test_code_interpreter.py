"""The code interpreter: what a program's answer is, what the tool makes of it, and which interpreter is opened."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dspy
import orjson
import pytest

from programs.code_interpreter import (
    CodeError,
    Interpreter,
    InterpreterUnavailableError,
    Limits,
    open_interpreter,
    python_tool,
)
from programs.code_interpreter.cut_text import CutText
from programs.code_interpreter.fences import without_fences
from programs.code_interpreter.system_calls import MACHINES
from tgrpo_dspy.testing import Call, ScriptedEngine

LIMITS = Limits(seconds=20, memory_mb=256, output_chars=1000)


def opened(kind: Any, limits: Limits = LIMITS) -> Interpreter:
    try:
        return open_interpreter(kind, limits=limits)
    except InterpreterUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def cpython() -> Interpreter:
    """One of the two that run the same CPython: the better one that works here."""
    try:
        return open_interpreter("bubblewrap", limits=LIMITS)
    except InterpreterUnavailableError:
        return opened("host")


@pytest.fixture(params=["cpython", "monty"])
def interpreter(request: pytest.FixtureRequest) -> Interpreter:
    if request.param == "monty":
        return opened("monty")
    found: Interpreter = request.getfixturevalue("cpython")
    return found


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("print(1+1)", "2"),
        ("1+1", "2"),
        ("x = [1, 'a']\nx  # shown\n\n# end\n", "[1, 'a']"),
        ("print('a')\nprint('b')\n'c'", "a\nb\n'c'"),
        ("(1 +\n 2)", "3"),
        ("text = '''\n3\n'''\nlen(text)", "3"),
        ("x = 5", ""),
        ("None", ""),
        ("", ""),
        ("for i in range(2): print(i)", "0\n1"),
        ("if False:\n    1\n    2", ""),
        ("def f():\n    return 4\n\nif __name__ == '__main__':\n    print(f())", "4"),
        ("class A:\n    def __repr__(self): return 'an A'\nA()", "an A"),
        ("'ß€😀'", "'ß€😀'"),
        ("import math, re, json\nmath.gcd(12, 18)", "6"),
    ],
)
def test_the_answer_is_what_was_printed_and_the_last_value(interpreter: Interpreter, code: str, answer: str) -> None:
    assert interpreter.run(code) == answer


@pytest.mark.parametrize(
    ("code", "message", "output"),
    [
        ("print('a')\n1/0", r"(?s)line 2.*1/0.*ZeroDivisionError: division by zero$", "a"),
        ("def f(n):\n    return n[1]\n\nf([])", r"(?s)line 4.*line 2.*IndexError", ""),
        ("def f(:", r"SyntaxError", ""),
        ("  1\n 2", r"(?i)indent", ""),
        ("def f(): return f()\nf()", r"RecursionError", ""),
        ("print(1)\0", r"Error: ", ""),
        ("1/0  # \ud800", r"ZeroDivisionError|surrogates", ""),
        ("raise ValueError('x' * 100_000)", r"characters left out", ""),
    ],
)
def test_an_error_of_the_program(interpreter: Interpreter, code: str, message: str, output: str) -> None:
    with pytest.raises(CodeError, match=message) as error:
        interpreter.run(code)
    assert error.value.output == output
    assert len(str(error.value)) < 2200
    assert "worker.py" not in str(error.value)


def test_nothing_is_left_for_the_next_call(interpreter: Interpreter) -> None:
    interpreter.run("x = 1")
    with pytest.raises(CodeError, match="NameError"):
        interpreter.run("x")


def test_long_output_loses_its_middle(interpreter: Interpreter) -> None:
    output = interpreter.run("print('start')\nfor i in range(20_000): print(i)\nprint('end')")
    assert output.startswith("start\n0\n1\n") and output.rstrip().endswith("19999\nend")
    assert "characters left out" in output and len(output) < 1100


def test_many_threads_at_once(interpreter: Interpreter) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(interpreter.run, [f"{n} * {n}" for n in range(8)])) == [str(n * n) for n in range(8)]


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("from fractions import Fraction\nFraction(1, 2) + 1", "Fraction(3, 2)"),
        ("import sys\nprint('to stderr', file=sys.stderr)\nsys.exit()", "to stderr"),
        ("def g():\n    yield 1\nlist(g())", "[1]"),
        ("from dataclasses import dataclass\n@dataclass\nclass P:\n    x: 'int'\nP(1)", "P(x=1)"),
        ("import sys\nsys.argv[1:], sys.path[0][:1]", "([], '/')"),
        ("from pathlib import Path\nPath('a').write_text('b')\nPath('a').read_text()", "'b'"),
        ("import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'print(3)'], check=True).returncode", "3\n0"),
        (
            "from multiprocessing import Pool\ndef f(x): return -x\nwith Pool(2) as pool: print(pool.map(f, [1]))",
            "[-1]",
        ),
        (f"x = '{'long ' * 50_000}'\nlen(x)", "250000"),
    ],
)
def test_it_is_the_whole_of_cpython(cpython: Interpreter, code: str, answer: str) -> None:
    assert cpython.run(code) == answer


def test_installed_packages_can_be_imported(cpython: Interpreter) -> None:
    if not orjson.__file__.startswith(sys.prefix):
        pytest.skip("orjson is not installed in the prefix of this Python")
    assert cpython.run("import orjson\norjson.dumps([1])") == "b'[1]'"


@pytest.mark.parametrize(
    ("code", "message", "output"),
    [
        ("import sys\nsys.exit('enough')", "^SystemExit: enough$", ""),
        ("print('a')\nimport os\nos._exit(3)", "^ended with exit code 3$", "a"),
        ("print('a')\nimport os\nos.kill(os.getpid(), 9)", "^killed by SIGKILL$", "a"),
        ("import ctypes\nctypes.string_at(0)", "^killed by SIGSEGV$", ""),
        ("import sys\nprint('a')\nsys.stdout.close()\nprint('b')", "closed file", "a"),
        ("input()", "EOFError", ""),
    ],
)
def test_programs_that_end_otherwise(cpython: Interpreter, code: str, message: str, output: str) -> None:
    with pytest.raises(CodeError, match=message) as error:
        cpython.run(code)
    assert error.value.output == output


def test_each_call_has_an_empty_folder_of_its_own(cpython: Interpreter) -> None:
    look = "import os\n[name for name in os.listdir() if os.path.isfile(name)]"
    cpython.run("open('kept', 'w').close()")
    assert cpython.run(look) == "[]"


def test_on_the_host_a_process_may_outlive_the_call_but_not_hold_it() -> None:
    code = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(2)\n    os._exit(0)\nprint('done')"
    assert opened("host", Limits(seconds=1.5)).run(code) == "done"


def test_on_the_host_the_environment_is_empty_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODE_INTERPRETER_CANARY", "a")
    assert opened("host").run("import os\nos.getenv('CODE_INTERPRETER_CANARY', 'none')") == "'none'"


# --- the tool ---


def test_the_tool_hands_back_text_whatever_happens(interpreter: Interpreter) -> None:
    python = python_tool(interpreter)
    assert python(code="```python\n1+1\n```") == "2"
    assert python(code="x = 1") == "(no output: print what you want to see)"
    failed = python(code="print('a')\n1/0")
    assert failed.startswith("error: ") and failed.endswith(
        "ZeroDivisionError: division by zero\nprinted before that:\na"
    )


def test_the_tool_tells_the_model_what_it_is() -> None:
    python = python_tool(opened("host", Limits(seconds=2.5, memory_mb=100)))
    assert python.name == "python"
    assert python.args == {"code": {"type": "string", "description": "the program, as plain Python"}}
    version = f"CPython {sys.version_info.major}.{sys.version_info.minor}"
    for fact in ("Every call starts anew", version, "2.5 s", "100 MB"):
        assert fact in python.desc


def test_the_tool_in_an_event_loop(interpreter: Interpreter) -> None:
    assert asyncio.run(python_tool(interpreter).acall(code="print(1+1)")) == "2"


def test_an_agent_recovers_from_an_error(interpreter: Interpreter) -> None:
    tries = ["1/0", "print(6*7)"]

    def respond(call: Call) -> dict[str, Any]:
        if "answer" in call.asks_for:
            return {"reasoning": "", "answer": "42"}
        turn = call.text.count("observation_")
        if turn < len(tries):
            return {"next_thought": "", "next_tool_name": "python", "next_tool_args": {"code": tries[turn]}}
        return {"next_thought": "", "next_tool_name": "finish", "next_tool_args": {}}

    agent = dspy.ReAct("question -> answer", tools=[python_tool(interpreter)], max_iters=4)
    with dspy.context(lm=ScriptedEngine(respond).lm()):
        trajectory = agent(question="6*7?").trajectory
    assert trajectory["observation_0"].startswith("error: ") and "ZeroDivisionError" in trajectory["observation_0"]
    assert trajectory["observation_1"] == "42"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("print(1)\n", "print(1)\n"),
        ("```python\nprint(1)\n```", "print(1)\n"),
        ("```\nprint(1)\n```\n", "print(1)\n"),
        ("  ```py\nprint(1)", "print(1)"),
        ("Here:\n\n```python\na = 1\n```\nand then\n```python\nprint(a)\n```\nThat is all.", "a = 1\n\nprint(a)\n"),
        ("`1+1`", "1+1"),
        ("```python print(1)```", "print(1)"),
        ("```pyramid```", "pyramid"),
        ('text = """\n```python\nx\n```\n"""', 'text = """\n```python\nx\n```\n"""'),
        ("x = '```'", "x = '```'"),
        ("", ""),
    ],
)
def test_fences(text: str, code: str) -> None:
    assert without_fences(text) == code


# --- limits ---


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"seconds": 0}, "seconds=0 cannot work: use a number above 0"),
        ({"seconds": float("inf")}, "seconds=inf"),
        ({"seconds": float("nan")}, "seconds=nan"),
        ({"memory_mb": 63}, "memory_mb=63 cannot work: use a whole number, 64 or more"),
        ({"memory_mb": 100.5}, "memory_mb=100.5"),
        ({"disk_mb": 0}, "disk_mb=0"),
        ({"processes": 0}, "processes=0"),
        ({"output_chars": 99}, "output_chars=99"),
    ],
)
def test_limits_that_cannot_work(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Limits(**values)


@pytest.mark.parametrize("kind", ["bubblewrap", "monty", "host"])
def test_the_smallest_limits_are_enough_for_a_small_program(kind: str) -> None:
    limits = Limits(seconds=20, memory_mb=64, disk_mb=1, processes=1, output_chars=100)
    assert opened(kind, limits).run("print(1+1)") == "2"


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
@pytest.mark.parametrize("length", [0, 1, 10, 11, 12, 15, 16, 200])
def test_text_is_cut_the_same_whatever_its_pieces(size: int, length: int) -> None:
    text = "".join(chr(0x4E00 + i) for i in range(length))
    pieces = CutText(11)
    for start in range(0, length, size):
        pieces.add(text[start : start + size])
    note = f"\n[... {length - 11} characters left out ...]\n"
    assert str(pieces) == (text if length <= 11 else text[:6] + note + text[-5:])


# --- which interpreter ---


@pytest.fixture
def no_monty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic_monty", None)


FakeBwrap = Callable[[str], None]


@pytest.fixture
def fake_bwrap(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeBwrap:
    """Makes a folder with a script as `bwrap`, or with nothing for "", all that there is on PATH."""

    def make(script: str) -> None:
        if script:
            (tmp_path / "bwrap").write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
            (tmp_path / "bwrap").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))

    return make


def test_bubblewrap_that_is_missing(fake_bwrap: FakeBwrap) -> None:
    fake_bwrap("")
    with pytest.raises(InterpreterUnavailableError, match="bwrap is not installed: apt-get install bubblewrap"):
        open_interpreter("bubblewrap")


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'bwrap: No permissions to create a new namespace' >&2; exit 1", "No permissions to create a new names"),
        ("exit 7", "the worker ended with code 7"),
        ("echo ready >&2; echo nonsense", "under it nonsense"),
    ],
)
def test_bubblewrap_that_does_not_work(fake_bwrap: FakeBwrap, script: str, reason: str) -> None:
    fake_bwrap(script)
    with pytest.raises(InterpreterUnavailableError, match=reason):
        open_interpreter("bubblewrap")


def test_monty_that_is_missing(no_monty: None) -> None:
    with pytest.raises(InterpreterUnavailableError, match="pip install pydantic-monty"):
        open_interpreter("monty")


def test_auto_takes_bubblewrap_where_it_works() -> None:
    if os.name != "posix" or os.uname().machine not in MACHINES:
        pytest.skip("no filter of system calls for this machine")
    if (
        not shutil.which("bwrap")
        or subprocess.run(["bwrap", "--unshare-all", "--ro-bind", "/", "/", "true"]).returncode
    ):
        pytest.skip("a plain bwrap does not work here")
    assert open_interpreter().name == "bubblewrap"


def test_auto_takes_monty_otherwise_and_says_why(fake_bwrap: FakeBwrap, caplog: pytest.LogCaptureFixture) -> None:
    opened("monty")
    fake_bwrap("")
    with caplog.at_level(logging.WARNING):
        assert open_interpreter().name == "monty"
    assert "bwrap is not installed" in caplog.text


def test_auto_never_takes_the_host(fake_bwrap: FakeBwrap, no_monty: None) -> None:
    fake_bwrap("")
    with pytest.raises(InterpreterUnavailableError, match=r'(?s)bwrap is not.*pydantic-monty is not.*kind="host"'):
        open_interpreter()


def test_a_kind_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match="kind='docker' cannot work: use one of auto, bubblewrap, monty, host"):
        open_interpreter("docker")  # type: ignore[arg-type]
