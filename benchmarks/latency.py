"""A model with set latencies, which keeps a log of its calls: what a run waits for can be told from what it does.

The model writes an item in capital letters when its prompt says so, and else in some runs only, so that groups teach;
whatever else it is asked it answers with that one rule. Its k-th call takes the k-th latency of its seed, whoever asks.
"""

from __future__ import annotations

import json
import math
import random
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal

import dspy
from dspy.lm15 import Request, Response

from tgrpo_dspy.testing import Call, ScriptedEngine

Kind = Literal["constant", "heavy"]

RULE = "Write the item in capital letters."
_ONE_IN = 3
_P99 = 20.0  # of the heavy-tailed latencies, in medians; real APIs are like this
_MOST = 60.0
_Z99 = 2.326


@dataclass(frozen=True)
class Timing:
    """One call.

    Args:
        item: of a run of the program, what it was given; "": something else was asked.
        text: of the prompt, when something else was asked.
        temperature: of the call.
        told: whether the prompt states the rule.
        start: seconds since the engine was made.
        latency: what the model itself took, in seconds.
    """

    item: str
    text: str
    temperature: float
    told: bool
    start: float
    latency: float


class SlowEngine(ScriptedEngine):
    """The model.

    Args:
        kind: all latencies the same, or heavy-tailed: log-normal with p99 at 20 medians, at most 60.
        median: seconds.
        seed: of the latencies.
        slots: how many calls the model works on at once; more of them wait.

    Attributes:
        timings: its calls, in the order of their ends.
    """

    def __init__(self, kind: Kind, *, median: float, seed: int, slots: int) -> None:
        super().__init__(self._answer)
        self.timings: list[Timing] = []
        self._numbers = count()
        self._latencies = latencies(kind, median, seed)
        self._places = threading.Semaphore(slots)
        self._made = time.monotonic()

    def complete(self, request: Request) -> Response:
        """Answer after the latency."""
        with self._places:
            with self._lock:
                latency = next(self._latencies)
            start = time.monotonic()
            time.sleep(latency)
            response = super().complete(request)
            call = self.calls.pop()
            item = call.fields.get("item", "")
            self.timings.append(
                Timing(
                    item=item,
                    text="" if item else call.text,
                    temperature=request.config.temperature or 0.0,
                    told=RULE in call.system,
                    start=start - self._made,
                    latency=latency,
                )
            )
            return response

    def _answer(self, call: Call) -> Any:
        return answer(call, self._numbers)


def latencies(kind: Kind, median: float, seed: int) -> Iterator[float]:
    """Seconds of one call after another."""
    drawn = random.Random(f"{seed} {kind}")
    if kind == "constant":
        return iter(lambda: median, None)
    sigma = math.log(_P99) / _Z99
    return (median * min(_MOST, math.exp(sigma * drawn.gauss(0, 1))) for _ in count())


def items(number: int, first: int = 0) -> list[dspy.Example]:
    """Items to write in capital letters."""
    return [
        dspy.Example(item=f"item {i:06}", written=f"ITEM {i:06}").with_inputs("item")
        for i in range(first, first + number)
    ]


def right(gold: dspy.Example, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> Any:
    """The metric."""
    return dspy.Prediction(score=float(gold.written == pred.written), feedback=f"right is {gold.written}")


def student() -> dspy.Module:
    """The program."""
    return dspy.Predict("item -> written")


def longest_rollouts(timings: Iterable[Timing]) -> dict[str, float]:
    """By item, the longest of its rollouts, in seconds."""
    longest: dict[str, float] = {}
    for timing in timings:
        if timing.item and timing.temperature:
            longest[timing.item] = max(longest.get(timing.item, 0.0), timing.latency)
    return longest


def longest_call(timings: Iterable[Timing], part: str = "") -> float:
    """The longest call whose prompt has this part, in seconds; 0: there is none."""
    return max((timing.latency for timing in timings if part in timing.text), default=0.0)


def bound(timings: Sequence[Timing], slots: int, chain: float) -> float:
    """Seconds that no order of the same calls can go below: the work over the slots, or what waits for each other."""
    return max(sum(timing.latency for timing in timings) / slots, chain)


def answer(call: Call, numbers: Iterator[int]) -> Any:
    """What the model writes; ``numbers`` count its runs of the program that no rule tells what is right."""
    if "written" in call.asks_for:
        item = call.fields["item"]
        obeys = RULE in call.text or next(numbers) % _ONE_IN == 0
        return {"written": item.upper() if obeys else item}
    if not call.asks_for:
        return f"```\n{RULE}\n```"
    return {name: _as_asked(name) for name in call.asks_for}


def _as_asked(name: str) -> str:
    if name == "edits":
        return json.dumps([{"operation": "ADD", "lesson": RULE}])
    return json.dumps({"self": RULE}) if name == "module_advice" else RULE
