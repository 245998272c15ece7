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
BASELINES = ("student", "paper")
_NOTHING = "-"

Result = Mapping[str, Any]
"""What the file of a cell holds."""


@dataclass(frozen=True)
class Row:
    """The results of one variant on one task, by seed."""

    variant: str
    by_seed: Mapping[int, Result]

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
        return f"{difference.mean:+.3f} ± {difference.standard_error:.3f}"

    def validation(self) -> str:
        """Mean validation score; every seed has other examples."""
        return f"{fmean(fmean(result['scores']['validation']) for result in self.by_seed.values()):.3f}"

    def used(self, what: str) -> str:
        """Mean over the seeds of what the learning used."""
        return f"{fmean(sum(role[what] for role in r['usage'].values()) for r in self.by_seed.values()):,.0f}"

    def prompt_tokens(self) -> str:
        """Mean tokens of a prompt as the provider counts them, or else as estimated, marked by ~."""
        found = [result["prompt_tokens_per_call"] for result in self.by_seed.values()]
        counted = [tokens["provider"] for tokens in found if tokens["provider"] is not None]
        return f"{fmean(counted):,.0f}" if counted else f"~{fmean(tokens['estimated'] for tokens in found):,.0f}"

    def cells(self, rows: Mapping[str, Row]) -> Iterator[str]:
        """The row as it is printed."""
        yield self.variant
        yield " ".join(map(str, self.by_seed))
        yield self.validation()
        for name in SETS:
            yield self.score(name)
            yield from (self.difference(name, rows.get(baseline)) for baseline in BASELINES)
        yield self.used("calls")
        yield f"{self.used('prompt_tokens')} / {self.used('completion_tokens')}"
        yield self.prompt_tokens()


def read(folder: Path) -> list[Result]:
    """Every result in the folder."""
    return [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))]


def table(results: Sequence[Result], variants: Sequence[str], seeds: Sequence[int]) -> str:
    """The table of one task, and which of its cells are missing.

    Raises:
        ValueError: when the results are of different models or sizes, so that they cannot be compared.
    """
    found: defaultdict[str, dict[int, Result]] = defaultdict(dict)
    for result in results:
        found[result["variant"]][result["seed"]] = result
    rows = {name: Row(name, {seed: found[name][seed] for seed in seeds if seed in found[name]}) for name in variants}
    rows = {name: row for name, row in rows.items() if row.by_seed}
    columns = ["variant", "seeds", "validation", *_score_columns(), "LM calls", "tokens in / out", "prompt tokens"]
    lines = [columns, ["---"] * len(columns), *(list(row.cells(rows)) for row in rows.values())]
    missing = [f"{name} {seed}" for name in variants for seed in seeds if seed not in found.get(name, {})]
    return "\n".join(
        [
            _heading(results),
            "",
            *(f"| {' | '.join(line)} |" for line in lines),
            "",
            f"Missing: {', '.join(missing) or 'nothing'}.",
        ]
    )


def _score_columns() -> list[str]:
    return [column for name in SETS for column in (name, *(f"{name} - {baseline}" for baseline in BASELINES))]


def _heading(results: Sequence[Result]) -> str:
    """What all results of a task have in common."""
    common = {json.dumps([r["task"], r["source"], r["lm"], r["reflection_lm"], r["sizes"]]) for r in results}
    if len(common) != 1:
        raise ValueError("these results cannot be compared: " + "; ".join(sorted(common)))
    task, source, lm, reflection_lm, sizes = json.loads(common.pop())
    reflecting = f", reflection by {reflection_lm}" if reflection_lm else ""
    amounts = ", ".join(f"{name} {value}" for name, value in sizes.items())
    return f"### {task}\n\n{source}. {lm}{reflecting}; {amounts}."
