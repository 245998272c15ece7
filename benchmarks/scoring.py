"""What a program is worth on examples, and how long its prompts are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

import dspy

from benchmarks.variants import UnfinishedError
from tgrpo_dspy import Failure, Usage
from tgrpo_dspy.runs.usage import UsageLedger
from tgrpo_dspy.sampling import prompts
from tgrpo_dspy.sampling.failures import failure_of, is_scored


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
    """
    # ``dspy.Evaluate`` would score a failure of the network as 0, and asks again for what takes two minutes.
    run = dspy.Parallel(
        num_threads=threads,
        max_errors=len(examples) + 1,
        access_examples=False,
        disable_progress_bar=True,
        timeout=0,
    )
    ledger = UsageLedger()
    with ledger.count("evaluation"):
        found = run([(partial(_score, program, metric), example) for example in examples]) if examples else []
    lost = [result for result in found if not isinstance(result, float)]
    if lost:
        raise UnfinishedError(
            f"{len(lost)} of {len(examples)} examples have no score: {lost[0] or 'the metric failed'}"
        )
    return Scored(found, ledger.total().get("evaluation", Usage()))


def prompt_tokens(program: dspy.Module, examples: Sequence[dspy.Example]) -> float | None:
    """Tokens (estimated) of a prompt as the adapter writes it, averaged over predictors and examples."""
    measured = [
        prompts.prompt_tokens(predictor.signature, predictor.demos, dict(example.inputs()))
        for predictor in program.predictors()
        for example in examples
    ]
    return fmean(measured) if measured else None


def _score(program: dspy.Module, metric: Callable[..., Any], example: dspy.Example) -> float | Failure:
    try:
        prediction = program(**example.inputs())
    except Exception as error:  # any error of a program is its failure
        failure = failure_of(error)
        return 0.0 if is_scored(failure) else failure
    return float(metric(example, prediction))
