"""The example programs as tasks: GSM8K by reasoning alone and with a Python tool, and questions to a local web."""

from __future__ import annotations

import atexit
from contextlib import ExitStack
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import dspy

from benchmarks.variants import MissingFeatureError
from programs.code_interpreter import InterpreterUnavailableError, open_interpreter, python_tool
from programs.math_reasoning.data import splits as problems
from programs.math_reasoning.metric import math_accuracy
from programs.math_reasoning.program import agent as solver
from programs.math_reasoning.program import chain_of_thought
from programs.task import Sizes, Splits, Task
from programs.web_search.local_web import questions
from programs.web_search.local_web.stable import StableWeb, stable_web
from programs.web_search.metric import exact_answer
from programs.web_search.program import agent as searcher

_MAX_ITERS = 6
_PROBLEMS = Sizes(train=16, val=12, test=40, ood=20)
_QUESTIONS = Sizes(train=16, val=12, test=40, ood=20, group_size=4)


def tasks(data_dir: Path) -> list[Task]:
    """The tasks; problems are read from ``data_dir``, interpreter and web are opened when a student needs them."""
    reasoning = Task(
        name="gsm8k",
        source="GSM8K (MIT), reasoning alone; out-of-domain: AIME 2024 and 2025",
        student=chain_of_thought,
        metric=math_accuracy,
        splits=partial(_problems, data_dir=data_dir),
        sizes=_PROBLEMS,
        local_lm={"max_tokens": 768},
    )
    with_tool = replace(
        reasoning,
        name="gsm8k_python",
        source="GSM8K (MIT), with a Python tool; out-of-domain: AIME 2024 and 2025",
        student=_solver,
    )
    web = Task(
        name="local_web",
        source="CIA World Factbook (public domain) as a local web; out-of-domain: Africa",
        student=_searcher,
        metric=exact_answer,
        splits=_questions,
        sizes=_QUESTIONS,
        local_lm={"context": 8192},
    )
    return [reasoning, with_tool, web]


def _problems(seed: int, sizes: Sizes, *, data_dir: Path) -> Splits:
    return problems("gsm8k", seed, sizes, data_dir)


def _questions(seed: int, sizes: Sizes) -> Splits:
    return questions.splits(seed, train=sizes.train, val=sizes.val, test=sizes.test, ood=sizes.ood)


def _solver() -> dspy.Module:
    try:
        interpreter = open_interpreter()
    except InterpreterUnavailableError as error:
        raise MissingFeatureError(str(error)) from error
    return solver(python_tool(interpreter), max_iters=_MAX_ITERS)


def _searcher() -> dspy.Module:
    web = _web()
    return searcher(web, web, max_iters=_MAX_ITERS)


@cache
def _web() -> StableWeb:
    """The local web, served until the process ends."""
    served = ExitStack()
    atexit.register(served.close)
    return served.enter_context(stable_web())
