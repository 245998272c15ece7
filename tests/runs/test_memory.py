"""A rollout that is over leaves its numbers behind, not its texts: thousands need hardly more memory than hundreds."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import dspy

from tests.scripted import Shouting, exact, examples
from tgrpo_dspy import TrainingFreeGRPO
from tgrpo_dspy.runs.events import Event, StepFinished
from tgrpo_dspy.testing import Call

STEPS, GROUPS, SIZE = 6, 20, 5
FILLER = "and more of the same " * 200


class Verbose(Shouting):
    """Answers at length; forgets what it was asked."""

    def __call__(self, call: Call) -> Any:
        answer = super().__call__(call)
        self.engine.calls.clear()
        return {**answer, "reasoning": FILLER} if "reasoning" in call.asks_for else answer


def test_rollouts_leave_their_numbers_behind_not_their_texts() -> None:
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)
    sizes: list[int] = []

    def measure(event: Event) -> None:
        if isinstance(event, StepFinished):
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])

    optimizer = TrainingFreeGRPO(metric=exact, epochs=STEPS, group_size=SIZE, num_threads=2)
    tracemalloc.start()
    try:
        with dspy.context(lm=Verbose().lm(), disable_history=True):
            optimizer.compile(
                dspy.ChainOfThought("question -> answer"), trainset=examples(GROUPS), listeners=[measure], verbose=False
            )
    finally:
        tracemalloc.stop()
    per_rollout = (sizes[-1] - sizes[1]) / ((STEPS - 2) * GROUPS * SIZE)
    assert len(FILLER) > 4000
    assert per_rollout < 1500, f"{per_rollout:.0f} bytes a rollout stay"
