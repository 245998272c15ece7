"""The structure of the public reference pipeline on the calls of ours: every stage waits for all of the one before.

It is a mode of the benchmark, to see what waiting costs: rollouts of a batch, a summary of each, an advantage of each
group, an update from each advantage, one update of the library for the batch, and the scoring.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import dspy

from benchmarks.latency import Timing, longest_call, longest_rollouts, right, student

T = TypeVar("T")

_SUMMARY, _ADVANTAGE, _UPDATE, _BATCH = "summary", "advantage", "update", "batch_update"


def run_with_barriers(
    trainset: Sequence[dspy.Example],
    valset: Sequence[dspy.Example],
    *,
    lm: dspy.LM,
    group_size: int,
    slots: int,
    temperature: float = 0.7,
) -> None:
    """One step of the method, stage after stage, on ``slots`` threads."""
    with ThreadPoolExecutor(slots) as pool:

        def stage(function: Callable[[T], Any], things: Iterable[T]) -> list[Any]:
            return list(pool.map(lambda thing: _within(lm, function, thing), things))

        def rollout(place: tuple[int, dspy.Example]) -> tuple[str, str, float]:
            number, example = place
            with dspy.context(lm=lm.copy(rollout_id=number + 1, temperature=temperature)):
                predicted = student()(**example.inputs())
            return example.item, predicted.written, right(example, predicted).score

        def score(example: dspy.Example) -> float:
            return float(right(example, student()(**example.inputs())).score)

        stage(score, valset)
        places = list(enumerate(example for example in trainset for _ in range(group_size)))
        groups: defaultdict[str, list[tuple[str, str, float]]] = defaultdict(list)
        for done in stage(rollout, places):
            groups[done[0]].append(done)
        taught = [group for group in groups.values() if len({reward for _, _, reward in group}) > 1]
        attempts = [f"{item}, number {n}: {written}" for group in taught for n, (item, written, _) in enumerate(group)]
        summaries = stage(_asks("attempt", _SUMMARY), attempts)
        by_group = [summaries[i : i + group_size] for i in range(0, len(summaries), group_size)]
        named = [f"{group[0][0]}: {found}" for group, found in zip(taught, by_group, strict=True)]
        advantages = stage(_asks("summaries", _ADVANTAGE), named)
        updates = stage(_asks("advantage", _UPDATE), [f"{n}: {a}" for n, a in zip(named, advantages, strict=True)])
        stage(_asks("updates", _BATCH), ["\n".join(updates)])
        stage(score, valset)


def chain_with_barriers(timings: Sequence[Timing]) -> float:
    """The longest chain of calls that need each other's answers, in seconds; no stage needs all of the one before."""
    scored = [timing.latency for timing in timings if timing.item and not timing.temperature]
    by_kind = defaultdict(list)
    for timing in timings:  # what a stage is given is named in its prompts too, so the latest stage first
        kind = next((kind for kind in (_BATCH, _UPDATE, _ADVANTAGE, _SUMMARY) if f"## {kind} ##" in timing.text), "")
        by_kind[kind].append(timing)
    chains = [
        rollout + sum(longest_call(by_kind[kind], item) for kind in (_SUMMARY, _ADVANTAGE, _UPDATE))
        for item, rollout in longest_rollouts(timings).items()
    ]
    half = len(scored) // 2  # the student first, which nothing waits for, and the library last
    learned = max(chains, default=0.0) + longest_call(by_kind[_BATCH]) + max(scored[half:], default=0.0)
    return max(learned, *scored[:half])


def _asks(given: str, asked: str) -> Callable[[str], str]:
    def ask(text: str) -> str:
        return str(dspy.Predict(f"{given} -> {asked}")(**{given: text})[asked])

    return ask


def _within(lm: dspy.LM, function: Callable[[T], Any], thing: T) -> Any:
    with dspy.context(lm=lm):
        return function(thing)
