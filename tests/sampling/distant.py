"""A run of the toy task that can take place in other processes, for the tests of executors.

The model answers by the content of a call alone, so that every process that asks it gets the same answers.
"""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import dspy

from tests.runs.kill_child import Salted, metric
from tests.scripted import Shouting, examples, reflects
from tgrpo_dspy import CompileReport, TrainingFreeGRPO
from tgrpo_dspy.library.codec import to_json
from tgrpo_dspy.testing import Call
from tgrpo_dspy.views.report import report_to_json


class Distant(Shouting):
    """The model of the toy task. Writes down who answers which call when.

    Args:
        log: where.
        dies_at: the first process beside this one that answers a call when that many have ended kills itself in the
            middle of it, once; None: none does.
        always: every process that answers a call kills itself.
    """

    def __init__(self, log: Path, dies_at: int | None = None, *, always: bool = False) -> None:
        super().__init__(lucky=3)
        self.log, self.dies_at, self.always, self.home = log, dies_at, always, os.getpid()

    def __call__(self, call: Call) -> dict[str, str]:
        if not reflects(call):
            self.note("begins", call)
            if os.getpid() != self.home and self.has_to_die():
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.01)
        answer = super().__call__(replace(call, number=crc32(call.text.encode())))
        if not reflects(call):
            self.note("ends", call)
        return answer

    def note(self, what: str, call: Call) -> None:
        line = json.dumps([os.getpid(), what, crc32(call.text.encode())]) + "\n"
        with self.log.open("a", encoding="utf-8") as file:
            file.write(line)

    def has_to_die(self) -> bool:
        if self.always:
            return True
        ended = [line for line in noted(self.log) if line[1] == "ends"]
        if self.dies_at is None or len(ended) < self.dies_at:
            return False
        try:
            self.log.with_suffix(".dead").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


def noted(log: Path) -> list[tuple[int, str, int]]:
    """What the models wrote down: process, whether a call begins or ends, and a number that stands for the call."""
    return [tuple(json.loads(line)) for line in log.read_text(encoding="utf-8").splitlines()]


def most_at_once(log: Path) -> int:
    """How many calls were under way at the same time."""
    now = most = 0
    for _, what, _ in noted(log):
        now += 1 if what == "begins" else -1
        most = max(most, now)
    return most


def learned(
    model: Shouting,
    executor: Any,
    *,
    student: dspy.Module | None = None,
    score: Any = metric,
    threads: int = 4,
    size: int = 3,
    compiling: dict[str, Any] | None = None,
    **settings: Any,
) -> tuple[str, str, CompileReport]:
    """A run on ``size`` examples, twice: the program and the library as JSON, and the report."""
    settings = {"epochs": 2, "group_size": 3} | settings
    optimizer = TrainingFreeGRPO(metric=score, num_threads=threads, executor=executor, **settings)
    with dspy.context(lm=model.lm()):
        program = optimizer.compile(
            student or Salted(), trainset=examples(size), valset=examples(2, "val"), verbose=False, **(compiling or {})
        )
    report = optimizer.report
    assert report is not None
    return json.dumps(program.dump_state()), to_json(report.library), report


def without_timings(report: CompileReport) -> Any:
    text = report_to_json(report)
    return json.loads(text, object_hook=lambda found: {k: v for k, v in found.items() if k != "seconds"})
