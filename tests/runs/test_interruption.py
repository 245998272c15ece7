"""Ctrl-C: nothing new is started, what is in flight is kept, and the run can go on."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dspy
import pytest

from tests.scripted import RULE, Shouting, exact, examples
from tgrpo_dspy import Sampling, TrainingFreeGRPO
from tgrpo_dspy.testing import Call

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="sends itself a POSIX signal")
AT_CALL, THREADS = 7, 3


@pytest.fixture(autouse=True)
def terminal() -> Iterator[None]:
    """Ctrl-C does what it does in a terminal, also where the tests run in the background and it would be ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Interrupting(Shouting):
    """Presses Ctrl-C during one of its calls."""

    def __init__(self, at: int | None = AT_CALL) -> None:
        super().__init__()
        self.at = at

    def __call__(self, call: Call) -> dict[str, str]:
        if call.number == self.at:
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.02)
        return super().__call__(call)


class Threads:
    """The exact metric, which remembers when it was last asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, gold: dspy.Example, pred: Any, trace: Any = None) -> bool:
        self.asked += 1
        return exact(gold, pred)


def compiled(model: Shouting, metric: Any, run_dir: Path) -> dspy.Module:
    optimizer = TrainingFreeGRPO(
        metric=metric, epochs=2, group_size=4, num_threads=THREADS, sampling=Sampling(solved_score=None)
    )
    with dspy.context(lm=model.lm()):
        return optimizer.compile(
            dspy.Predict("question -> answer"), trainset=examples(3), run_dir=run_dir, verbose=False
        )


def check_the_run_goes_on(model: Interrupting, metric: Threads, run_dir: Path) -> None:
    calls, asked = len(model.engine.calls), metric.asked
    assert calls <= AT_CALL + THREADS, "nothing new may be started"
    assert asked == calls, "what was in flight is scored"
    time.sleep(0.2)
    assert (len(model.engine.calls), metric.asked) == (calls, asked), "no thread may be left at work"
    assert not [t for t in threading.enumerate() if "AnyIO worker" in t.name]
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)
    later = Interrupting(at=None)
    program = compiled(later, Threads(), run_dir)
    assert RULE in program.signature.instructions
    assert len(later.runs) == 2 * 3 * 4 - calls


def test_ctrl_c_ends_a_run_in_order_and_the_run_goes_on_later(tmp_path: Path) -> None:
    model, metric = Interrupting(), Threads()
    with pytest.raises(KeyboardInterrupt):
        compiled(model, metric, tmp_path)
    check_the_run_goes_on(model, metric, tmp_path)


def test_ctrl_c_inside_a_running_event_loop(tmp_path: Path) -> None:
    model, metric = Interrupting(), Threads()

    async def notebook() -> None:
        # asyncio.run has put its own handler in place; a notebook's kernel raises the exception itself.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        compiled(model, metric, tmp_path)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(notebook())
    check_the_run_goes_on(model, metric, tmp_path)
