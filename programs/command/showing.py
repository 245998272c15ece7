"""What the command prints and writes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from programs.task import Splits, Task
from tgrpo_dspy import CompileReport, Performance
from tgrpo_dspy.library.files import write_atomically
from tgrpo_dspy.records import Measured
from tgrpo_dspy.runs.events import Event, Listener, RolloutFinished

Scored: TypeAlias = Mapping[str, Mapping[str, Performance]]
"""By set and program, how it did."""

_STUDENT = "student"
_SHOWN_CHARS = 300


def task(console: Console, what: Task, data: Splits) -> None:
    """What is to be learned, by an example of it."""
    console.print(f"{what.name}: {what.source}", highlight=False, markup=False)
    if data.train:
        for name, value in data.train[0].items():
            console.print(f"  {name}: {_cut(str(value))}", highlight=False, markup=False)
    console.print()


def library(console: Console, report: CompileReport) -> None:
    """What was learned, and what came of it."""
    console.print("\n" + report.library.to_markdown() + "\n", highlight=False, markup=False)
    if report.stopped_by is not None:
        console.print(f"Stopped early ({report.stopped_by}); the same command without that bound goes on.")


def scores(console: Console, scored: Scored, repeats: int) -> None:
    """A table of every program on every set, with standard errors over examples."""
    labels = list(next(iter(scored.values()), {}))
    table = Table("", *labels, title=f"Mean@{repeats} ± standard error over examples" if repeats > 1 else "Score")
    for name, by_program in scored.items():
        count = len(next(iter(by_program.values())).runs)
        table.add_row(f"{name} ({count})", *(_measured(done.mean) for done in by_program.values()))
        if repeats > 1:
            best_of = [_measured(done.pass_at(repeats)) for done in by_program.values()]
            table.add_row(f"  Pass@{repeats}", *best_of)
        if any(done.tool_calls.mean for done in by_program.values()):
            calls = [f"{done.tool_calls.mean:.2f}" for done in by_program.values()]
            table.add_row("  tool calls a run", *calls)
        if any(done.failures for done in by_program.values()):
            table.add_row("  failed runs", *(_failures(done) for done in by_program.values()))
        if _STUDENT in by_program and len(by_program) > 1:
            student = by_program[_STUDENT]
            changes = ["" if done is student else _change(done, student) for done in by_program.values()]
            table.add_row("  minus student", *changes)
    console.print(table)


@contextmanager
def progress(console: Console, label: str, runs: int, *, quiet: bool) -> Iterator[Listener]:
    """A bar over the runs of a program, on a terminal; use what it yields as a listener of ``evaluate``."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bar:
        task_id = bar.add_task(f"scoring {label}", total=runs)

        def advance(event: Event) -> None:
            if isinstance(event, RolloutFinished):
                bar.advance(task_id)

        yield advance


def save_scores(file: Path, scored: Scored) -> None:
    """All runs by set and program, as JSON."""
    file.parent.mkdir(parents=True, exist_ok=True)
    found = {name: {label: _data(done) for label, done in by.items()} for name, by in scored.items()}
    write_atomically(file, json.dumps(found, indent=1, ensure_ascii=False) + "\n")


def _data(done: Performance) -> dict[str, Any]:
    return {
        "mean": asdict(done.mean),
        "tool_calls": asdict(done.tool_calls),
        "failures": dict(done.failures),
        "usage": {role: asdict(usage) for role, usage in done.usage.items()},
        "seconds": round(done.seconds, 1),
        "stopped_by": done.stopped_by,
        "scores": done.scores,
    }


def _measured(number: Measured) -> str:
    return f"{number.mean:.3f} ± {number.standard_error:.3f}" if number.n else "no score"


def _change(done: Performance, student: Performance) -> str:
    difference = done.minus(student)
    return f"{difference.mean:+.3f} ± {difference.standard_error:.3f}"


def _failures(done: Performance) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in done.failures.items()) or "0"


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN_CHARS else f"{line[: _SHOWN_CHARS - 1]}…"
