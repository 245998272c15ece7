"""Markdown tables of measured cells, from their files only."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from tgrpo_dspy.evaluation.scores import over_examples, paired

SETS = ("held-out", "out-of-domain")
BASELINES = ("student", "paper", "tgrpo")
"""What every row is compared with, as far as it is in the table."""

_NOTHING = "-"

Result = Mapping[str, Any]
"""What the file of a cell holds."""


@dataclass(frozen=True)
class Row:
    """The results of one variant on one task, by seed, and why other seeds have none."""

    variant: str
    by_seed: Mapping[int, Result]
    failed: Mapping[int, str]

    def by_item(self, name: str, seeds: Iterable[int]) -> dict[str, float]:
        """The mean score of every item of a set over the seeds: standard errors are to be over items, not over runs."""
        scores: defaultdict[str, list[float]] = defaultdict(list)
        for result in (self.by_seed[seed] for seed in seeds):
            for key, score in zip(result["items"][name], result["scores"][name], strict=True):
                scores[key].append(score)
        return {key: fmean(found) for key, found in scores.items()}

    def score(self, name: str) -> str:
        """Mean and standard error over the items of a set; with several seeds, the mean of each."""
        measured = over_examples(list(self.by_item(name, self.by_seed).values()))
        if not measured.n:
            return _NOTHING
        each = [f"{fmean(result['scores'][name]):.3f}" for result in self.by_seed.values()]
        by_seed = f" ({', '.join(each)})" if len(each) > 1 else ""
        return f"{measured.mean:.3f} ± {measured.standard_error:.3f}{by_seed}"

    def difference(self, name: str, other: Row | None) -> str:
        """What it scores more than another variant on the same items and seeds."""
        if other is None or other.variant == self.variant:
            return _NOTHING
        seeds = [seed for seed in self.by_seed if seed in other.by_seed]
        mine, theirs = self.by_item(name, seeds), other.by_item(name, seeds)
        both = [key for key in mine if key in theirs]
        if len(both) < 2:
            return _NOTHING
        difference = paired([[mine[key]] for key in both], [[theirs[key]] for key in both])
        counts = f"{difference.wins}/{difference.ties}/{difference.losses}"
        return f"{difference.mean:+.3f} ± {difference.standard_error:.3f} ({counts})"

    def used(self, what: str) -> str:
        """Mean over the seeds of what the learning used."""
        return f"{fmean(sum(role[what] for role in r['usage'].values()) for r in self.by_seed.values()):,.0f}"

    def calls(self) -> str:
        """Mean LM calls of the learning.

        Of several answers to one question the meter counts one; what was spent before a resume is in the meter only.
        """
        metered = [sum(role["calls"] for role in result["usage"].values()) for result in self.by_seed.values()]
        spent = [result["this_try"].get("spent", 0) for result in self.by_seed.values()]
        return f"{fmean(map(max, metered, spent)):,.0f}"

    def seconds(self) -> str:
        """Mean time that the learning took, as far as it was not kept from an earlier try."""
        return f"{fmean(result['this_try']['seconds'] for result in self.by_seed.values()):,.0f}"

    def prompt_tokens(self) -> str:
        """Mean tokens of a prompt as the provider counts them, or else as estimated, marked by ~."""
        found = [result["prompt_tokens_per_call"] for result in self.by_seed.values()]
        counted = [tokens["provider"] for tokens in found if tokens["provider"] is not None]
        return f"{fmean(counted):,.0f}" if counted else f"~{fmean(tokens['estimated'] for tokens in found):,.0f}"

    def cells(self, rows: Mapping[str, Row]) -> Iterator[str]:
        """The row as it is printed."""
        yield self.variant
        if not self.by_seed:
            yield f"failed: {' '.join(map(str, self.failed))}"
            return
        yield " ".join([*map(str, self.by_seed), *(f"({seed} failed)" for seed in self.failed)])
        for name in SETS:
            yield self.score(name)
            yield from (self.difference(name, rows[baseline]) for baseline in BASELINES if baseline in rows)
        yield self.calls()
        yield f"{self.used('prompt_tokens')} / {self.used('completion_tokens')}"
        yield self.prompt_tokens()
        yield self.seconds()


def read(folder: Path) -> list[Result]:
    """Every result in the folder."""
    return [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))]


def table(results: Sequence[Result], variants: Sequence[str], seeds: Sequence[int]) -> str:
    """The table of one task, and which of its cells are missing.

    Raises:
        ValueError: when the results are of different models or sizes, so that they cannot be compared.
    """
    rows = _rows(results, variants, seeds)
    columns = ["variant", "seeds", *_score_columns(rows), "LM calls", "tokens in / out", "prompt tokens", "seconds"]
    measured = {(name, seed) for name, row in rows.items() for seed in (*row.by_seed, *row.failed)}
    missing = [f"{name} {seed}" for name in variants for seed in seeds if (name, seed) not in measured]
    failed = [f"- {name} {seed} failed: {why}" for name, row in rows.items() for seed, why in row.failed.items()]
    return "\n".join(
        [
            _heading(results),
            "",
            *_markdown(columns, (list(row.cells(rows)) for row in rows.values())),
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
    rows = {name: _rows(results, variants, seeds) for name, results in by_task.items()}
    lms = {result["lm"] for results in by_task.values() for result in results}
    if len(lms) != 1:
        raise ValueError(f"these results cannot be compared: they are of {', '.join(sorted(lms))}")
    columns = ["variant", *by_task, "mean of tasks", "failed", "LM calls"]
    lines = [_summed(name, [rows[task].get(name) for task in by_task]) for name in variants]
    budget = {result.get("budget") for results in by_task.values() for result in results} - {None}
    heading = f"Held-out scores on {lms.pop()}" + (f", {budget.pop()} LM calls to learn from" if budget else "")
    seeded = f"Mean ± standard error over items; seeds {' '.join(map(str, seeds))}."
    return "\n".join([f"### {heading}", "", seeded, "", *_markdown(columns, lines)])


def _summed(name: str, rows: Sequence[Row | None]) -> list[str]:
    scored = [row for row in rows if row is not None and row.by_seed]
    measured = [over_examples(list(row.by_item("held-out", row.by_seed).values())) for row in scored]
    by_row = dict(zip(map(id, scored), measured, strict=True))
    cells = [
        f"{by_row[id(row)].mean:.3f} ± {by_row[id(row)].standard_error:.3f}" if id(row) in by_row else _NOTHING
        for row in rows
    ]
    mean = f"{fmean(each.mean for each in measured):.3f}" if len(measured) == len(rows) else _NOTHING
    failed = sum(len(row.failed) for row in rows if row is not None)
    return [name, *cells, mean, str(failed), " ".join(row.calls() for row in scored) or _NOTHING]


def _rows(results: Sequence[Result], variants: Sequence[str], seeds: Sequence[int]) -> dict[str, Row]:
    """The rows that have a result, in the order of the variants."""
    found: defaultdict[str, dict[int, Result]] = defaultdict(dict)
    for result in results:
        found[result["variant"]][result["seed"]] = result
    rows = {}
    for name in variants:
        there = {seed: found[name][seed] for seed in seeds if seed in found[name]}
        scored = {seed: result for seed, result in there.items() if "failed" not in result}
        failed = {seed: result["failed"] for seed, result in there.items() if "failed" in result}
        if there:
            rows[name] = Row(name, scored, failed)
    return rows


def _markdown(columns: Sequence[str], lines: Iterable[Sequence[str]]) -> list[str]:
    padded = ([*line, *[_NOTHING] * (len(columns) - len(line))] for line in lines)
    return [f"| {' | '.join(line)} |" for line in (columns, ["---"] * len(columns), *padded)]


def _score_columns(rows: Mapping[str, Row]) -> list[str]:
    baselines = [baseline for baseline in BASELINES if baseline in rows]
    return [column for name in SETS for column in (name, *(f"{name} - {baseline}" for baseline in baselines))]


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
