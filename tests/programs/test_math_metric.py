"""The reward of a mathematical answer: what it says counts, not how, and no answer can hold up the learning."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dspy
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from programs.math_reasoning import metric
from programs.math_reasoning.answers import MAX_CHARACTERS, readings
from programs.math_reasoning.equality import CheckerError, Equality, TooHardError
from programs.math_reasoning.metric import math_accuracy

pytest.importorskip("math_verify")


def each(table: str) -> list[tuple[str, list[str]]]:
    """Lines of ``label: answer | answer``; a line without a label goes on with the one before."""
    cases: list[tuple[str, list[str]]] = []
    for line in table.strip("\n").splitlines():
        label, _, answers = line.partition(": ")
        if label.strip():
            cases.append((label.strip(), []))
        cases[-1][1].extend(answer.strip() for answer in answers.split(" | "))
    return cases


EQUAL = each(r"""
18: 18 | 18. | 18.0 | 18.00 | 018 | +18 | (18) | {18} | = 18 | `18` | **18** | "18" | 1.8e1 | \left(18\right)
  : $18 | $18.00 | \$18 | €18 | 18 € | US$18 | 18 USD | $18 per day | 18% | 18 \% | 18 percent
  : 18 dollars | 18 more apples | 18cm | 18 cm^2 | 18 cm² | 18 km/h | 18\text{ cm} | 18^\circ | 18° | 18 square feet
  : $18$ | $$18$$ | \(18\) | \[18\] | \text{18} | \mathbf{18} | \boxed{18} | \boxed{\$18} | \boxed{x = 18}
  : \boxed{18\text{ dollars}} | So $3 \cdot 6 = \boxed{18}$. | \boxed{18} and again \boxed{18}
  : x = 18 | $x=18$ | 9 + 9 = 18 | 9 + 9 = 18 dollars | So $m+n=18$. | Therefore, m+n = 18.
  : The answer is 18. | The answer is: $18$ dollars. | Answer: **18** | **Final answer:** $18 | #### 18
  : The answer is 18. This is because 20 - 2 = 18. | The answer to the problem is therefore 18 dollars.
  : Natalia sold 18 clips altogether in April and May. | The two of them make $18 every day. | It's 18!
  : 36/2 | \frac{36}{2} | \dfrac{54}{3} | 6*3 | 6 \times 3 | 3^2+9 | 2**4+2 | sqrt(324) | \sqrt{324}
33: 033 | 33.0
1234: 1,234 | 1 234 | 1\,234 | 1{,}234 | $1,234.00 | 1,234 dollars
1,000,000: 1000000 | 10^6 | 1e6 | 10**6
120: 5! | It is 120!
-5: -5 | -$5 | -5 degrees | - 5
0.5: \frac{1}{2} | \frac12 | 1/2 | .5 | 0.50 | 50% | ½ | 1/2 cup | \frac{1}{2} cups | 2/4
\frac{1}{2}: 0.5 | 1/2 | 50%
3.5: 3 1/2 | 3½ | 3\frac{1}{2} | 3 1/2 hours | 7/2
0.001: 10^{-3} | 10^-3 | 1e-3 | 10**-3
3\pi: 3π | 3*pi | 9.42477796
2\sqrt{3}: 2*sqrt(3) | \sqrt{12} | 2\sqrt 3
x^2+2x+1: (x+1)^2 | x**2 + 2*x + 1 | $1+2x+x^2$
(1, 2): (1,2) | $(1, 2)$ | \left(1, 2\right) | (1.0, 2)
[1, 2): [1,2) | x \in [1,2) | 1 \le x < 2 | 1 <= x < 2
(-\infty, 3): (-∞, 3) | x < 3
\{1, 2\}: {2, 1} | 1, 2 | 1 and 2 | x = 1 or x = 2
\begin{pmatrix}1&2\\3&4\end{pmatrix}: \begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}
2+3i: 3i + 2
B: b | (B) | \text{B} | **B**
18 dollars: 18 | $18
Monday: monday
""")
DIFFERENT = each(r"""
18: 17 | -18 | 180 | 1.8 | 0.18 | 18,000 | 1 8 | 17 1 | 18 20 | 18x | 18i | 18! | 18^2 | 1/18 | 18/0 | 18k | -$18
  : between 18 and 20 | 18 and 20 | 18 or 20 | 2 or 18 | 18, 20 | 18-20 | 18 to 20 | (18, 20) | \{18, 20\}
  : not 18 | It isn't 18. | 18 is wrong | The answer is not 18. | The answer is 20, not 18. | more than 18 | at least 18
  : about 18 | half of 18 | 18 dozen | 18 thousand | 18 and a half | minus 18 | x = 18, y = 20 | x < 18 | \ge 18
  : \boxed{20} | \boxed{18} or \boxed{20} | It is 18. No, the answer is 20. | \boxed{} | eighteen and something
  : I don't know | nan | \infty | x | [] | \ | $
2: 2xy | 2ab | 2m | 2 m | x_2 | 2/3 of it | 2,5
2xy: 2 | xy | 2x
2m: 2 | m
3.5: 31/2 | 2 | 3
(1, 2): (2,1) | [1,2] | (1,2] | (1,2,3) | 1
[1, 2): (1,2) | [1,2] | [1,3)
(-\infty, 3): (-\infty, 3] | x > 3 | 3
\{1, 2\}: 1 | {1, 3} | {1, 2, 3}
x^2+2x+1: x^2+2x | y^2+2y+1 | (x-1)^2
3\pi: 3 | 9.42 | \pi
Monday: Tuesday | Mon | 18
""")
HARD = ("9^{9^{9^9}}", r"\boxed{((((9!)!)!)!)!}", "1e400000000")


def score(label: Any, answer: Any) -> float:
    return float(math_accuracy(dspy.Example(answer=label), dspy.Prediction(answer=answer)).score)


@pytest.fixture
def short() -> Iterator[Equality]:
    with Equality(seconds=0.3) as short:
        yield short


@pytest.mark.parametrize(("label", "answers"), EQUAL)
def test_equal(label: str, answers: list[str]) -> None:
    assert [answer for answer in (label, *answers) if score(label, answer) != 1.0] == []


@pytest.mark.parametrize(("label", "answers"), DIFFERENT)
def test_different(label: str, answers: list[str]) -> None:
    assert [answer for answer in answers if score(label, answer) != 0.0] == []


def test_the_feedback_shows_both() -> None:
    gold = dspy.Example(answer="18")
    right = math_accuracy(gold, dspy.Prediction(answer="$18.00"), None, "predict", None)
    assert (right.score, right.feedback) == (1.0, "right: wrote '$18.00', expected '18'")
    assert math_accuracy(gold, dspy.Prediction(answer="20")).feedback == "wrong: wrote '20', expected '18'"
    unclear = math_accuracy(gold, dspy.Prediction(answer="more than 18")).feedback
    assert unclear == "wrong: wrote 'more than 18', expected '18'. Only one number or expression is an answer."


@pytest.mark.parametrize("answer", [None, "", " \n"])
def test_no_answer(answer: str | None) -> None:
    result = math_accuracy(dspy.Example(answer="18"), dspy.Prediction(answer=answer))
    assert (result.score, result.feedback) == (0.0, "no answer, expected '18'")


def test_no_prediction_and_answers_of_other_types() -> None:
    assert math_accuracy(dspy.Example(answer="18"), None).feedback == "no answer, expected '18'"
    assert [score("18", answer) for answer in (18, 18.0, 17, True, {"answer": 18})] == [1, 1, 0, 0, 0]
    assert [score("-5", "\u22125"), score("18", " 18\n"), score("18", "\ud800")] == [1, 1, 0]
    assert score(18, "18") == 1.0  # a label from a file of the user's


def test_a_long_answer_is_read_at_its_end_and_shown_in_part() -> None:
    solution = "First we add 9 and 8, which is 17. " * 1000 + r"Therefore it is $\boxed{18}$."
    result = math_accuracy(dspy.Example(answer="18"), dspy.Prediction(answer=solution))
    assert result.score == 1.0 and len(result.feedback) < 300
    assert score("1", "+".join(["1"] * MAX_CHARACTERS)) == 0.0
    assert readings(f"{'1' * MAX_CHARACTERS}2") == ()


@pytest.mark.parametrize("answer", HARD)
def test_a_comparison_that_would_never_end(answer: str, short: Equality, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric, "_equality", lambda pid: short)
    assert score("18", "18.0") == 1.0
    before = short._process
    result = math_accuracy(dspy.Example(answer="18"), dspy.Prediction(answer=answer))
    assert result.score == 0.0 and "could not be compared: no result within 0.3 s" in result.feedback
    assert before is not None and before.returncode is not None, "the work has ended"
    assert score("18", "18.0") == 1.0, "the next answer is compared as ever"


@given(st.text(max_size=60) | st.text(alphabet=r"0123456789.,+-*/^_=!%$(){}[]<> \xepi", max_size=40))
@example(r"\frac{1}{" * 20)
@example("(" * 150 + "18" + ")" * 150)
@example("$" * 5000)
@example(r"\(" * 5000)
@example(r"\boxed{" * 5000)
@example("answer" * 5000)
@example("1," * 5000)
@settings(deadline=None)
def test_any_text_is_an_answer(text: str) -> None:
    with_label = math_accuracy(dspy.Example(answer="18"), dspy.Prediction(answer=text))
    assert with_label.score in (0.0, 1.0) and "expected '18'" in with_label.feedback
    assert score(text, "18") in (0.0, 1.0)


def test_many_threads_at_once() -> None:
    numbers = [*range(40)] * 2
    with ThreadPoolExecutor(8) as pool:
        right = list(pool.map(lambda n: score(str(n), rf"\frac{{{2 * n}}}{{2}}"), numbers))
        wrong = list(pool.map(lambda n: score(str(n), rf"\frac{{{2 * n + 2}}}{{2}}"), numbers))
    assert right == [1.0] * 80 and wrong == [0.0] * 80


def test_a_hostile_answer_in_one_thread_spoils_no_other(short: Equality) -> None:
    def compare(answer: str) -> bool | None:
        try:
            return short(["18"], [answer])
        except TooHardError:
            return None

    with ThreadPoolExecutor(8) as pool:
        verdicts = list(pool.map(compare, ["18.0", "36/2", HARD[0], "19", "36/2", "18.0"]))
    assert verdicts == [True, True, None, False, True, True]


def test_an_interruption_leaves_no_answer_for_a_later_question(
    short: Equality, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert short(["1"], ["1"])

    class Interrupting(threading.Timer):
        def join(self, timeout: float | None = None) -> None:
            super().join(timeout)
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading, "Timer", Interrupting)
        with pytest.raises(KeyboardInterrupt):
            short(["1"], ["1"])
    assert not short(["1"], ["2"])


def test_a_failing_checker_is_no_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    gold, pred = dspy.Example(answer="18"), dspy.Prediction(answer="18.0")
    with Equality() as broken:
        monkeypatch.setattr(metric, "_equality", lambda pid: broken)
        assert math_accuracy(gold, pred).score == 1.0
        assert broken._process is not None
        broken._process.kill()
        with pytest.raises(CheckerError, match="process ended with"):
            math_accuracy(gold, pred)
        assert math_accuracy(gold, pred).score == 1.0
    with Equality() as missing:
        monkeypatch.setattr(metric, "_equality", lambda pid: missing)
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(CheckerError, match=r"pip install 'math-verify\[antlr4_13_2\]'"):
            math_accuracy(gold, pred)


def test_a_checker_that_cannot_start(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "math_verify.py").write_text("raise ImportError('no antlr here')", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with Equality() as equal, pytest.raises(CheckerError, match="cannot be used here: ImportError: no antlr here"):
        equal(["1"], ["1"])


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")  # a process that has ended stays listed where nobody collects orphans
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"


def test_the_process_ends_with_the_program_that_asked_it(tmp_path: Any) -> None:
    code = (
        "import dspy; from programs.math_reasoning import metric; from programs.math_reasoning.metric import *;"
        "print(math_accuracy(dspy.Example(answer='18'), dspy.Prediction(answer='36/2')).score);"
        "print(metric._equality(os.getpid())._process.pid)"
    )
    run = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    right, pid = run.stdout.split()
    assert right == "1.0"
    assert not is_running(int(pid))


def test_a_comparison_ends_even_when_nobody_is_left_to_end_it() -> None:
    code = (
        "import os, threading; from programs.math_reasoning.equality import Equality;"
        "equal = Equality(seconds=0.5); equal(['1'], ['1']); print(equal._process.pid, flush=True);"
        f"threading.Timer(0.1, os._exit, [0]).start(); equal(['1'], [{HARD[0]!r}])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    until = time.monotonic() + 60
    while is_running(int(run.stdout)):
        assert time.monotonic() < until, "it still compares"
        time.sleep(0.05)


@pytest.mark.parametrize("seconds", [0, -1.0])
def test_a_deadline_that_is_none(seconds: float) -> None:
    with pytest.raises(ValueError, match="seconds must be positive"):
        Equality(seconds)
