"""Measured cells as rows: what a variant scored on a task over the seeds, and what that took."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from tgrpo_dspy.evaluation.scores import over_examples
from tgrpo_dspy.records import Measured

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

    def measured(self, name: str) -> Measured:
        """Mean and standard error over the items of a set."""
        return over_examples(list(self.by_item(name, self.by_seed).values()))

    def calls(self) -> float:
        """Mean LM calls of the learning.

        Of several answers to one question the meter counts one; what was spent before a resume is in the meter only.
        """
        metered = [sum(role["calls"] for role in result["usage"].values()) for result in self.by_seed.values()]
        spent = [result["this_try"].get("spent", 0) for result in self.by_seed.values()]
        return fmean(map(max, metered, spent))

    def used(self, what: str) -> float:
        """Mean over the seeds of what the learning used."""
        return fmean(sum(role[what] for role in result["usage"].values()) for result in self.by_seed.values())

    def seconds(self) -> float:
        """Mean time that the learning took, as far as it was not kept from an earlier try."""
        return fmean(result["this_try"]["seconds"] for result in self.by_seed.values())

    def prompt_tokens(self) -> tuple[float, bool]:
        """Mean tokens of a prompt, and whether the provider counted them; else they are estimated."""
        found = [result["prompt_tokens_per_call"] for result in self.by_seed.values()]
        counted = [tokens["provider"] for tokens in found if tokens["provider"] is not None]
        return (fmean(counted), True) if counted else (fmean(tokens["estimated"] for tokens in found), False)


def read(folder: Path) -> list[Result]:
    """Every result in the folder."""
    return [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))]


def rows_of(results: Sequence[Result], variants: Sequence[str], seeds: Sequence[int]) -> dict[str, Row]:
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
