"""What the optimizer itself takes, without any latency of a model: CPU time, memory, and how both grow with the work.

``python -m benchmarks.own_cost`` compiles on a model that answers at once, and prints CPU time a rollout beside that of
a plain call of the same program, with and without a ``run_dir``, for growing training sets; the memory that stays; and
the time of what happens once: assembling prompts of a large program, curating many edits, resuming a run, writing its
page. Everything is of one process on one machine: compare ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import diskcache
import dspy

from benchmarks.latency import SlowEngine, items, right, student
from benchmarks.tables import markdown
from tgrpo_dspy import Experience, ExperienceLibrary, TrainingFreeGRPO, inject
from tgrpo_dspy.library.edits import Edit
from tgrpo_dspy.library.files import write_atomically
from tgrpo_dspy.reflection.curation import clusters
from tgrpo_dspy.views.html import html_of_run

_GROUP = 5
RESULT = Path(__file__).parent / "results" / "own_cost.json"


@contextmanager
def _model() -> Iterator[None]:
    engine = SlowEngine("constant", median=0.0, seed=0, slots=64)
    with dspy.context(lm=engine.lm(cache=False), disable_history=True):
        yield


def plain_call(runs: int = 1000) -> float:
    """CPU seconds of one call of the program, by DSPy alone."""
    program, examples = student(), items(runs)
    with _model():
        return _cpu(lambda: [program(**example.inputs()) for example in examples]) / runs


def compiling(rollouts: int, threads: int, run_dir: Path | None) -> float:
    """CPU seconds of a rollout of ``compile``, everything included."""
    return _cpu(lambda: _compile(rollouts, threads, run_dir)) / rollouts


def resuming(rollouts: int, run_dir: Path) -> float:
    """CPU seconds of a run that was killed before its step ended: all of its rollouts are taken from the folder."""
    _compile(rollouts, 4, run_dir)
    with diskcache.Cache(str(run_dir / "store")) as store:
        for key in [key for key in store if not str(key).startswith("work/")]:
            del store[key]
    return _cpu(lambda: _compile(rollouts, 4, run_dir))


def on_disk(rollouts: int, run_dir: Path) -> float:
    """Bytes a rollout in the folder of a run."""
    return sum(file.stat().st_size for file in run_dir.rglob("*") if file.is_file()) / rollouts


def remaining(rollouts: int) -> float:
    """Bytes a rollout that are still there when ``compile`` has returned."""
    trainset = items(rollouts // _GROUP)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        optimizer = _optimizer(4)
        with _model():
            kept = optimizer.compile(student(), trainset=trainset, verbose=False)
        after = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert kept is not None
    return (after - before) / rollouts


def assembling(predictors: int = 200, experiences: int = 60) -> float:
    """CPU seconds to put a library into a program of many predictors."""

    class Large(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = [student() for _ in range(predictors)]

    library = ExperienceLibrary(tuple(_experience(i) for i in range(1, experiences + 1)), next_number=experiences + 1)
    program = Large()
    return _cpu(lambda: inject(program, library))


def curating(edits: int = 2000) -> float:
    """CPU seconds to find which of many different edits overlap."""
    proposed = [Edit(operation="ADD", text=f"field {i}: write kind {i * 7919 % 4001} of it") for i in range(edits)]
    return _cpu(lambda: clusters(proposed, ExperienceLibrary(), similarity=95))


def page(rollouts: int, run_dir: Path) -> float:
    """CPU seconds to write the page of a run."""
    _compile(rollouts, 4, run_dir)
    return _cpu(lambda: html_of_run(run_dir))


def _experience(number: int) -> Experience:
    return Experience(id=f"e{number}", text=f"Rule {number}: write it so and not otherwise.", created=1, changed=1)


def _optimizer(threads: int) -> TrainingFreeGRPO:
    return TrainingFreeGRPO(right, group_size=_GROUP, epochs=1, num_threads=threads)


def _compile(rollouts: int, threads: int, run_dir: Path | None) -> None:
    with _model():
        _optimizer(threads).compile(student(), trainset=items(rollouts // _GROUP), run_dir=run_dir, verbose=False)


def _cpu(work: Callable[[], Any]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print two tables and write the numbers."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.own_cost", description=__doc__)
    parser.add_argument("--rollouts", nargs="+", type=int, default=[500, 2000, 5000, 20_000])
    parser.add_argument("--threads", type=int, default=4, help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=RESULT, help="file for the numbers (default: %(default)s)")
    args = parser.parse_args(arguments)
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)
    _compile(50, args.threads, None)  # what is imported late is imported now
    plain_ms = plain_call() * 1e3
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "dspy": dspy.__version__,
        "cores": os.cpu_count(),
        "threads": args.threads,
        "plain_call_ms": round(plain_ms, 2),
        "rollouts": [_growth(rollouts, args.threads, plain_ms) for rollouts in args.rollouts],
        "once": _once(max(args.rollouts)),
    }
    write_atomically(args.out, json.dumps(found, indent=1) + "\n")
    print(f"A plain call takes {found['plain_call_ms']:.2f} ms of CPU time.\n")
    columns = (
        "rollouts",
        "ms a rollout",
        "beyond a plain call",
        "with run_dir",
        "bytes kept a rollout",
        "bytes on disk a rollout",
    )
    rows = [[f"{row[name]:,}" for name in row] for row in found["rollouts"]]
    print("\n".join(markdown(columns, rows)))
    print()
    print("\n".join(markdown(("once", "seconds"), [[name, f"{value:.2f}"] for name, value in found["once"].items()])))
    return 0


def _growth(rollouts: int, threads: int, plain_ms: float) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        kept_ms = compiling(rollouts, threads, Path(folder) / "run") * 1e3
        disk = on_disk(rollouts, Path(folder) / "run")
    own_ms = compiling(rollouts, threads, None) * 1e3
    return {
        "rollouts": rollouts,
        "ms": round(own_ms, 2),
        "beyond_ms": round(own_ms - plain_ms, 2),
        "run_dir_beyond_ms": round(kept_ms - plain_ms, 2),
        "bytes": round(remaining(rollouts)),
        "disk_bytes": round(disk),
    }


def _once(rollouts: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        return {
            "putting 60 experiences into 200 predictors": assembling(),
            "finding overlaps among 2,000 edits": curating(),
            "writing the page of 5,000 rollouts": page(5000, where / "page"),
            f"going on with {rollouts:,} kept rollouts": resuming(rollouts, where / "resumed"),
        }


if __name__ == "__main__":
    sys.exit(main())
