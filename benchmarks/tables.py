"""Markdown tables of measured cells, from their files only."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean

from benchmarks.rows import Result, Row, rows_of
from benchmarks.statistics import permutation_chance
from tgrpo_dspy.evaluation.scores import paired

SETS = ("held-out", "out-of-domain")
BASELINES = ("student", "paper", "tgrpo")
"""What every row is compared with, as far as it is in the table."""

_NOTHING = "-"


def table(
    results: Sequence[Result], variants: Sequence[str], seeds: Sequence[int], *, against: Sequence[str] = BASELINES
) -> str:
    """The table of one task, and which of its cells are missing.

    ``against`` names the rows that the others are compared with, as far as they are there.

    Raises:
        ValueError: when the results are of different models or sizes, so that they cannot be compared.
    """
    rows = rows_of(results, variants, seeds)
    baselines = [rows[name] for name in against if name in rows]
    columns = [
        "variant",
        "seeds",
        *_score_columns(baselines),
        "LM calls",
        "tokens in / out",
        "prompt tokens",
        "seconds",
    ]
    measured = {(name, seed) for name, row in rows.items() for seed in (*row.by_seed, *row.failed)}
    missing = [f"{name} {seed}" for name in variants for seed in seeds if (name, seed) not in measured]
    failed = [f"- {name} {seed} failed: {why}" for name, row in rows.items() for seed, why in row.failed.items()]
    return "\n".join(
        [
            _heading(results),
            "",
            *markdown(columns, (list(_cells(row, baselines)) for row in rows.values())),
            "",
            *failed,
            f"Missing: {', '.join(missing) or 'nothing'}.",
        ]
    )


def summary(by_task: Mapping[str, Sequence[Result]], variants: Sequence[str], seeds: Sequence[int]) -> str:
    """One table of all tasks: held-out scores, their mean over the tasks, and what the learning took.

    Raises:
        ValueError: when the results are of different models, so that they cannot be compared.
    """
    rows = {name: rows_of(results, variants, seeds) for name, results in by_task.items()}
    lms = {result["lm"] for results in by_task.values() for result in results}
    if len(lms) != 1:
        raise ValueError(f"these results cannot be compared: they are of {', '.join(sorted(lms))}")
    columns = ["variant", *by_task, "mean of tasks", "failed", "LM calls"]
    lines = [_summed(name, [rows[task].get(name) for task in by_task]) for name in variants]
    budget = {result.get("budget") for results in by_task.values() for result in results} - {None}
    heading = f"Held-out scores on {lms.pop()}" + (f", {budget.pop()} LM calls to learn from" if budget else "")
    seeded = f"Mean ± standard error over items; seeds {' '.join(map(str, seeds))}."
    return "\n".join([f"### {heading}", "", seeded, "", *markdown(columns, lines)])


def _summed(name: str, rows: Sequence[Row | None]) -> list[str]:
    scored = [row for row in rows if row is not None and row.by_seed]
    cells = [_short_score(row, "held-out") if row is not None and row.by_seed else _NOTHING for row in rows]
    means = [row.measured("held-out").mean for row in scored]
    mean = f"{fmean(means):.3f}" if len(means) == len(rows) else _NOTHING
    failed = sum(len(row.failed) for row in rows if row is not None)
    return [name, *cells, mean, str(failed), " ".join(f"{row.calls():,.0f}" for row in scored) or _NOTHING]


def _short_score(row: Row, name: str) -> str:
    measured = row.measured(name)
    return f"{measured.mean:.3f} ± {measured.standard_error:.3f}"


def _score(row: Row, name: str) -> str:
    """Mean and standard error over the items of a set; with several seeds, the mean of each."""
    measured = row.measured(name)
    if not measured.n:
        return _NOTHING
    each = [f"{fmean(result['scores'][name]):.3f}" for result in row.by_seed.values()]
    by_seed = f" ({', '.join(each)})" if len(each) > 1 else ""
    return f"{_short_score(row, name)}{by_seed}"


def _difference(row: Row, other: Row, name: str) -> str:
    """What a row scores more than another on the same items and seeds, and how likely chance alone does it.

    The chance is that of a paired permutation test over items, two-sided and not corrected for several rows.
    """
    if other.variant == row.variant:
        return _NOTHING
    seeds = [seed for seed in row.by_seed if seed in other.by_seed]
    mine, theirs = row.by_item(name, seeds), other.by_item(name, seeds)
    both = [key for key in mine if key in theirs]
    if len(both) < 2:
        return _NOTHING
    difference = paired([[mine[key]] for key in both], [[theirs[key]] for key in both])
    counts = f"{difference.wins}/{difference.ties}/{difference.losses}"
    chance = permutation_chance([mine[key] for key in both], [theirs[key] for key in both])
    return f"{difference.mean:+.3f} ± {difference.standard_error:.3f} ({counts}; p={chance:.2g})"


def _cells(row: Row, baselines: Sequence[Row]) -> Iterator[str]:
    """A row as it is printed, its scores compared with those of the baselines."""
    yield row.variant
    if not row.by_seed:
        yield f"failed: {' '.join(map(str, row.failed))}"
        return
    yield " ".join([*map(str, row.by_seed), *(f"({seed} failed)" for seed in row.failed)])
    for name in SETS:
        yield _score(row, name)
        yield from (_difference(row, baseline, name) for baseline in baselines)
    yield f"{row.calls():,.0f}"
    yield f"{row.used('prompt_tokens'):,.0f} / {row.used('completion_tokens'):,.0f}"
    tokens, counted = row.prompt_tokens()
    yield f"{'' if counted else '~'}{tokens:,.0f}"
    yield f"{row.seconds():,.0f}"


def markdown(columns: Sequence[str], lines: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table; short rows are filled up."""
    padded = ([*line, *[_NOTHING] * (len(columns) - len(line))] for line in lines)
    return [f"| {' | '.join(line)} |" for line in (columns, ["---"] * len(columns), *padded)]


def _score_columns(baselines: Sequence[Row]) -> list[str]:
    return [column for name in SETS for column in (name, *(f"{name} - {row.variant}" for row in baselines))]


def _heading(results: Sequence[Result]) -> str:
    """What all results of a task have in common."""
    names = ("task", "source", "lm", "reflection_lm", "sizes", "budget")
    common = {json.dumps([result.get(name) for name in names]) for result in results}
    if len(common) != 1:
        raise ValueError("these results cannot be compared: " + "; ".join(sorted(common)))
    task, source, lm, reflection_lm, sizes, budget = json.loads(common.pop())
    reflecting = f", reflection by {reflection_lm}" if reflection_lm else ""
    amounts = ", ".join(f"{name} {value}" for name, value in sizes.items())
    budgeted = f"; {budget} LM calls to learn from" if budget else ""
    return f"### {task}\n\n{source}. {lm}{reflecting}; {amounts}{budgeted}."
