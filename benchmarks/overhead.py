"""How far a run is from what the model's latency allows.

``python -m benchmarks.overhead`` compiles on a model with set latencies and prints the wall time over the lower bound:
the larger of the latencies' sum over the slots, and the longest chain of calls that need each other's answers. In the
same run it does the work in the structure of the public reference pipeline, stage after stage, and lets DSPy's SIMBA
and GEPA run the program as often. For these two the chain is taken to be their longest call, since what follows from
what is theirs to choose. The numbers are ratios of one process on one machine; seconds are the model's, scaled down.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import heapreplace
from pathlib import Path
from statistics import fmean
from typing import Any

import dspy

from benchmarks.barriers import chain_with_barriers, run_with_barriers
from benchmarks.latency import Kind, SlowEngine, Timing, bound, items, longest_call, longest_rollouts, right, student
from benchmarks.quiet import quiet
from benchmarks.tables import markdown
from tgrpo_dspy import TrainingFreeGRPO
from tgrpo_dspy.library.files import write_atomically

_GROUP = 5
_VALIDATION = 16
RESULT = Path(__file__).parent / "results" / "overhead.json"


def chain_of_step(timings: Sequence[Timing]) -> float:
    """The longest chain of calls of a ``compile`` of one step that need each other's answers, in seconds.

    A reflection needs the rollouts of the items it is shown; curation all reflections; the scoring of the library both.
    Nothing needs the score of the student.
    """
    rollouts = longest_rollouts(timings)
    reflections = [
        timing.latency + max((rollouts[item] for item in rollouts if item in timing.text), default=0.0)
        for timing in timings
        if "## attempts ##" in timing.text
    ]
    learning = max([*rollouts.values(), *reflections], default=0.0) + longest_call(timings, "## proposals ##")
    scores = [timing for timing in timings if timing.item and not timing.temperature]
    student = max((timing.latency for timing in scores if not timing.told), default=0.0)
    library = max((timing.latency for timing in scores if timing.told), default=0.0)
    return max(student, learning + library)


def ours(engine: SlowEngine, examples: int, slots: int) -> float:
    """Run the optimizer once; the longest chain of its calls."""
    optimizer = TrainingFreeGRPO(right, group_size=_GROUP, epochs=1, num_threads=slots)
    optimizer.compile(student(), trainset=items(examples), valset=_validation(), verbose=False)
    return chain_of_step(engine.timings)


def barriers(engine: SlowEngine, examples: int, slots: int) -> float:
    """The same work stage after stage."""
    run_with_barriers(items(examples), _validation(), lm=dspy.settings.lm, group_size=_GROUP, slots=slots)
    return chain_with_barriers(engine.timings)


def simba(engine: SlowEngine, examples: int, slots: int) -> float:
    """SIMBA with as many runs, or as few as it can."""
    size = min(32, examples)
    steps = max(1, round((examples * _GROUP + _VALIDATION - 2 * examples) / (size * (_GROUP + 1))))
    optimizer = dspy.SIMBA(metric=right, bsize=size, num_candidates=_GROUP, max_steps=steps, num_threads=slots)
    optimizer.compile(student(), trainset=items(examples), seed=0)
    return longest_call(engine.timings)


def gepa(engine: SlowEngine, examples: int, slots: int) -> float:
    """GEPA with as many runs."""
    optimizer = dspy.GEPA(
        metric=right,
        max_metric_calls=examples * _GROUP + 2 * _VALIDATION,
        reflection_lm=dspy.settings.lm.copy(temperature=1.0),
        num_threads=slots,
        seed=0,
    )
    optimizer.compile(student(), trainset=items(examples), valset=_validation())
    return longest_call(engine.timings)


MODES: Mapping[str, Callable[[SlowEngine, int, int], float]] = {
    "tgrpo": ours,
    "barriers": barriers,
    "SIMBA": simba,
    "GEPA": gepa,
}


def measure(mode: str, kind: Kind, *, median: float, slots: int, examples: int, seed: int) -> dict[str, Any]:
    """One run: what it did, how long it took, and what it could not have gone below."""
    engine = SlowEngine(kind, median=median, seed=seed, slots=slots)
    with dspy.context(lm=engine.lm(cache=False), disable_history=True), quiet():
        started, cpu = time.monotonic(), time.process_time()
        chain = MODES[mode](engine, examples, slots)
        wall, cpu = time.monotonic() - started, time.process_time() - cpu
    least = bound(engine.timings, slots, chain)
    runs = sum(bool(timing.item) for timing in engine.timings)
    return {
        "mode": mode,
        "latency": kind,
        "slots": slots,
        "examples": examples,
        "seed": seed,
        "runs": runs,
        "other_calls": len(engine.timings) - runs,
        "seconds": round(wall, 3),
        "bound": round(least, 3),
        "ratio": round(wall / least, 3),
        "ideal": round(in_turn([timing.latency for timing in engine.timings], slots) / least, 3),
        "cpu": round(cpu, 3),
    }


def in_turn(latencies: Sequence[float], slots: int) -> float:
    """Seconds that the calls take when each starts as soon as a slot is free and none waits for another.

    A scheduler that does not know the latencies beforehand can do no better on average.
    """
    free = [0.0] * slots
    for latency in latencies:
        heapreplace(free, free[0] + latency)
    return max(free)


def _validation() -> list[dspy.Example]:
    return items(_VALIDATION, first=500_000)


def as_table(results: Sequence[Mapping[str, Any]]) -> str:
    """Means over the seeds, in Markdown."""
    columns = ("latency", "slots", "examples", "mode", "runs", "other calls", "wall / bound", "of the seeds", "CPU s")
    found: defaultdict[tuple[Any, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for result in results:
        found[result["latency"], result["slots"], result["examples"], result["mode"]].append(result)
    return "\n".join(markdown(columns, [list(_row(key, group)) for key, group in found.items()]))


def _row(key: tuple[Any, ...], group: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield from map(str, key)
    yield f"{fmean(result['runs'] for result in group):,.0f}"
    yield f"{fmean(result['other_calls'] for result in group):,.0f}"
    yield f"{fmean(result['ratio'] for result in group):.2f}"
    yield " ".join(f"{result['ratio']:.2f}" for result in group)
    yield f"{fmean(result['cpu'] for result in group):.2f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table and write the numbers."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead", description=__doc__)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--latency", nargs="+", choices=("constant", "heavy"), default=["constant", "heavy"])
    parser.add_argument("--slots", nargs="+", type=int, default=[64])
    parser.add_argument("--examples", nargs="+", type=int, default=[64])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--median", type=float, default=0.1, help="seconds of the median call (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=RESULT, help="file for the numbers (default: %(default)s)")
    args = parser.parse_args(arguments)
    order = [
        (mode, kind, slots, examples, seed)
        for kind in args.latency
        for slots in args.slots
        for examples in args.examples
        for mode in args.modes
        for seed in args.seeds
    ]
    results = []
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)
    for mode in args.modes:  # what is imported late is imported now
        measure(mode, "constant", median=0.001, slots=4, examples=8, seed=0)
    for mode, kind, slots, examples, seed in order:
        found = measure(mode, kind, median=args.median, slots=slots, examples=examples, seed=seed)
        print(json.dumps(found), file=sys.stderr, flush=True)
        results.append(found)
    machine = {"python": platform.python_version(), "dspy": dspy.__version__, "cores": os.cpu_count()}
    write_atomically(args.out, json.dumps({**machine, "median": args.median, "runs": results}, indent=1) + "\n")
    print(as_table(results))
    return 0


if __name__ == "__main__":
    random.seed(0)
    sys.exit(main())
