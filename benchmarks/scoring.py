"""What a program is worth on examples, and how long its prompts are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import dspy

from benchmarks.variants import UnfinishedError
from tgrpo_dspy import Usage, evaluate
from tgrpo_dspy.sampling import prompts


@dataclass(frozen=True)
class Scored:
    """One score per example, and what the runs took."""

    scores: list[float]
    usage: Usage

    @property
    def prompt_tokens_per_call(self) -> float | None:
        """As the provider counts them; None where it does not."""
        return self.usage.prompt_tokens / self.usage.calls if self.usage.prompt_tokens else None


def score(program: dspy.Module, examples: Sequence[dspy.Example], metric: Callable[..., Any], threads: int) -> Scored:
    """Run the program on every example. A program that fails scores 0; an LM that fails scores nothing.

    Raises:
        UnfinishedError: when an example has no score.
        LMUnavailableError: when none has.
    """
    if not examples:
        return Scored([], Usage())
    done = evaluate(program, devset=examples, metric=metric, num_threads=threads)
    scores = [run.score for runs in done.runs for run in runs if run.score is not None]
    if len(scores) < len(examples):
        why = done.stopped_by or ", ".join(f"{count} {kind}" for kind, count in done.failures.items())
        raise UnfinishedError(f"{len(examples) - len(scores)} of {len(examples)} examples have no score: {why}")
    return Scored(scores, done.usage.get("evaluation", Usage()))


def prompt_tokens(program: dspy.Module, examples: Sequence[dspy.Example]) -> float | None:
    """Tokens (estimated) of a prompt as the adapter writes it, averaged over predictors and examples."""
    measured = [
        prompts.prompt_tokens(predictor.signature, predictor.demos, dict(example.inputs()))
        for predictor in program.predictors()
        for example in examples
    ]
    return fmean(measured) if measured else None
