"""Runs and resumes one small run in processes that are killed; started by ``test_kill.py``.

One process imports everything and forks a child for every attempt, so that an attempt costs no import.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import dspy

from tests.scripted import Shouting, exact, examples
from tgrpo_dspy import TrainingFreeGRPO
from tgrpo_dspy.library.codec import to_json
from tgrpo_dspy.testing import Call
from tgrpo_dspy.views.report import report_to_json

THREADS = 2
KILLS = 60
KILLS_OF_A_RUN = 6


class Salted(dspy.Module):
    """Shows the model which rollout it is in, so that a model without memory can answer each in its own way."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = dspy.Predict("question, salt -> answer")

    def forward(self, question: str) -> dspy.Prediction:
        return self.answer(question=question, salt=dspy.settings.lm.kwargs.get("rollout_id", 0))


class Logging(Shouting):
    """The model of the toy task, slow enough to be interrupted, which logs every call before it answers.

    It answers by the content of a call alone, so that nothing it knows dies with its process.
    """

    def __init__(self, log: Path) -> None:
        super().__init__()
        self.log = log

    def __call__(self, call: Call) -> dict[str, str]:
        with self.log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(call.text) + "\n")
        time.sleep(0.004)
        return super().__call__(replace(call, number=crc32(call.text.encode())))


def metric(gold: dspy.Example, pred: Any, trace: Any = None) -> dspy.Prediction:
    return dspy.Prediction(score=exact(gold, pred), feedback=f"{pred.answer} is graded")


def run(folder: Path) -> None:
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)
    optimizer = TrainingFreeGRPO(metric=metric, epochs=2, group_size=3, batch_size=3, num_threads=THREADS)
    with dspy.context(lm=Logging(folder / "calls.jsonl").lm()):
        program = optimizer.compile(
            Salted(),
            trainset=examples(6),
            valset=examples(3, "val"),
            run_dir=folder / "run",
            verbose=False,
        )
    assert optimizer.report is not None
    program.save(folder / "program.json")
    (folder / "library.json").write_text(to_json(optimizer.report.library), encoding="utf-8")
    (folder / "report.json").write_text(report_to_json(optimizer.report), encoding="utf-8")


def attempt(folder: Path, kill_after: float | None) -> bool:
    """Run in a child; whether it came to its end."""
    child = os.fork()
    if child == 0:
        try:
            run(folder)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
        os._exit(0)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        return False
    assert os.WEXITSTATUS(status) == 0, "the run failed"
    return True


def main(root: Path) -> None:
    draw = random.Random(7)
    (root / "whole").mkdir()
    started = time.monotonic()
    assert attempt(root / "whole", None)
    length = time.monotonic() - started
    killed = number = 0
    while killed < KILLS:
        folder = root / f"killed-{number}"
        folder.mkdir()
        kills = 0
        while kills < min(KILLS_OF_A_RUN, KILLS - killed) and not (folder / "report.json").exists():
            # A moment of the whole run, so that kills hit its end as well as its beginning.
            kills += not attempt(folder, draw.uniform(0.0, length * (kills + 2) / KILLS_OF_A_RUN))
        attempt(folder, None)
        (folder / "kills").write_text(str(kills), encoding="utf-8")
        killed, number = killed + kills, number + 1


if __name__ == "__main__":
    main(Path(sys.argv[1]))
