"""Scores of programs on the same examples, and what sets them apart, with an interval."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import dspy

_RESAMPLES = 10_000


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """Mean difference of paired scores with its standard error and a 95 % bootstrap interval."""

    mean: float
    standard_error: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:+.3f} ({self.low:+.3f} to {self.high:+.3f})"


def scores(
    program: dspy.Module,
    examples: Sequence[dspy.Example],
    metric: Callable[..., Any],
    *,
    num_threads: int,
    verbose: bool,
) -> list[float]:
    """One score per example, by ``dspy.Evaluate`` with the program's own LM settings."""
    evaluate = dspy.Evaluate(
        devset=list(examples),
        metric=metric,
        num_threads=num_threads,
        max_errors=len(examples) + 1,
        display_progress=verbose,
    )
    return [float(score) for _, _, score in evaluate(program).results]


def paired_difference(after: Sequence[float], before: Sequence[float]) -> PairedDifference:
    """What ``after`` scores more than ``before`` on the same examples.

    Raises:
        ValueError: for sequences of different lengths, or with fewer than two scores.

    Example:
        >>> paired_difference([1.0, 1.0, 0.5], [0.5, 0.5, 0.0]).mean
        0.5
    """
    if len(after) != len(before) or len(after) < 2:
        raise ValueError(
            f"a paired comparison needs two equally long lists of 2 or more, got {len(after)}, {len(before)}"
        )
    differences = [a - b for a, b in zip(after, before, strict=True)]
    draw = random.Random(0)
    means = sorted(statistics.fmean(draw.choices(differences, k=len(differences))) for _ in range(_RESAMPLES))
    return PairedDifference(
        mean=statistics.fmean(differences),
        standard_error=statistics.stdev(differences) / len(differences) ** 0.5,
        low=means[int(0.025 * _RESAMPLES)],
        high=means[int(0.975 * _RESAMPLES) - 1],
    )
